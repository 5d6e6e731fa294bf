"""Sizes as people write them, and whether the checkpoints of a run fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptctl.errors import UsageError
from ckptctl.model.mount import MountRow, PathFacts
from ckptctl.model.report import Severity
from ckptctl.policy.capacity import fits, needed_bytes, parse_count


def facts(free: int, total: int = 10**15) -> PathFacts:
    """Return facts of a file system with so much space."""
    row = MountRow(1, 0, 0, 1, "/", "/m", ("rw",), (), "lustre", "source", ("rw",))
    return PathFacts("/m", "/m", "/m", "", row, 0, 0, 0, total, free, None, None)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("900GB", 900 * 10**9),
        ("2.3TB", 2_300_000_000_000),
        ("1.5TiB", 3 << 39),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("70B", 70 * 10**9),
        ("7b", 7 * 10**9),
        ("800M", 800 * 10**6),
        ("123", 123),
        ("", None),
        ("-1GB", None),
        ("12i", None),
        ("GB", None),
        ("1e9", None),
    ],
)
def test_sizes_and_counts(text: str, count: int | None) -> None:
    if count is None:
        with pytest.raises(UsageError, match="not a size"):
            parse_count(text)
    else:
        assert parse_count(text) == count


@given(st.integers(1, 10**15), st.integers(2, 9), st.integers(0, 10**16), st.integers(0, 10**16))
def test_what_fits_is_what_is_kept_and_the_one_being_written_with_a_margin(one: int, keep: int, held: int, free: int) -> None:
    found = fits(facts(free), one, keep, held, "as said")
    need = max(0, needed_bytes(one, keep) - held)
    assert needed_bytes(one, keep) >= (keep + 1) * one
    assert (found.severity is Severity.ERROR) is (need > free)
    assert (found.name == "no-space") is (need > free)


def test_a_file_system_that_says_nothing_refuses_nothing() -> None:
    assert fits(facts(0, total=0), 10**12, 2, 0, "as said").severity is Severity.INFO
