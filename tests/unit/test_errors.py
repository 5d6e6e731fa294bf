"""The exception tree: one exit code per family, one reference per error, and what a user sees."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator

import pytest

from ckptctl import errors
from ckptctl.errors import CkptctlError


def tree(of: type[CkptctlError] = CkptctlError) -> Iterator[type[CkptctlError]]:
    """Return all errors below one."""
    for child in of.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from tree(child)


def test_each_family_has_an_exit_code_of_its_own() -> None:
    codes = [family.exit_code for family in CkptctlError.__subclasses__() if family.__module__ == errors.__name__]
    assert len(codes) == len(set(codes))
    assert not {0, 1, errors.EXIT_REQUEUE_ME, errors.EXIT_NEVER_RESTART, 126, 127, 130, 137, 143} & set(codes)


def test_each_error_has_a_reference_of_its_own_and_its_familys_code() -> None:
    references = [one.reference for one in tree()]
    assert len(references) == len(set(references))
    for family in CkptctlError.__subclasses__():
        if family.__module__ == errors.__name__:
            assert {one.exit_code for one in tree(family)} <= {family.exit_code}


def test_the_tree_in_the_documentation_is_the_tree() -> None:
    told = re.findall(r"── (\w+) +(\d+)", errors.__doc__ or "")
    assert {(name, int(code)) for name, code in told} == {(one.__name__, one.exit_code) for one in tree()}


@pytest.mark.parametrize("kind", list(tree()), ids=lambda kind: kind.__name__)
def test_an_error_goes_from_rank_to_rank_unchanged(kind: type[CkptctlError]) -> None:
    error = pickle.loads(pickle.dumps(kind("what", context="where", hint="to do")))
    assert type(error) is kind
    assert (error.message, error.context, error.hint, str(error)) == ("what", "where", "to do", "what")


def test_an_error_says_what_where_and_what_to_do() -> None:
    error = errors.StorageFault("cannot write", context="/shared/x", hint="check the mount")
    assert error.render().splitlines() == ["cannot write", "  where: /shared/x", "  to do: check the mount"]
    assert errors.StorageFault("only this").render() == "only this"
