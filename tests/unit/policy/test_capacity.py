"""Sizes as people write them, and whether the checkpoints of a run fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptctl.errors import UsageError
from ckptctl.model.mount import MountRow, PathFacts
from ckptctl.model.quota import Quota
from ckptctl.model.report import Severity
from ckptctl.policy.capacity import Wanted, fits, needed_bytes, parse_count, quota_findings


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


sizes = st.integers(0, 10**16)


@given(st.integers(1, 10**15), st.integers(2, 9), sizes, sizes, st.none() | st.integers(1, 10**16), sizes)
def test_what_fits_is_what_is_kept_and_the_one_being_written_with_a_margin(
    one: int, keep: int, held: int, free: int, limit: int | None, used: int
) -> None:
    quota = Quota("user 7", used, None, limit, 1, None, None)
    found = fits(facts(free), Wanted(one, "as said", keep, held), [quota])
    need = max(0, needed_bytes(one, keep) - held)
    assert needed_bytes(one, keep) >= (keep + 1) * one
    too_much = need > free or (limit is not None and need > max(0, limit - used))
    assert (found.severity is Severity.ERROR) is too_much
    assert (found.name == "no-space") is too_much


def test_a_file_system_that_says_nothing_refuses_nothing_and_a_quota_still_does() -> None:
    wanted = Wanted(10**12, "as said", 2)
    assert fits(facts(0, total=0), wanted).severity is Severity.INFO
    found = fits(facts(0, total=0), wanted, [Quota("group 8", 0, None, 10**12, 0, None, None)])
    assert (found.name, "group 8" in found.message) == ("no-space", True)


def test_quotas_that_nobody_told_are_said_not_to_be_counted() -> None:
    assert "quotas are not counted: no `lfs`" in fits(facts(10**15), Wanted(1, "as said", 2), [], "no `lfs`").message
    assert "quotas" not in fits(facts(10**15), Wanted(1, "as said", 2)).message


@pytest.mark.parametrize(
    ("quota", "names"),
    [
        (Quota("u", 10, None, None, 10, None, None), []),
        (Quota("u", 90, None, 100, 0, None, None), []),
        (Quota("u", 91, None, 100, 0, None, None), ["low-quota"]),
        (Quota("u", 100, None, 100, 0, None, None), ["no-quota"]),
        (Quota("u", 60, 50, 100, 0, None, None, "6d"), ["low-quota"]),
        (Quota("u", 40, 50, 100, 0, None, None), []),
        (Quota("u", 50, 50, None, 0, None, None), ["no-quota"]),
        (Quota("u", 0, None, None, 1000, None, 1000), ["no-quota"]),
        (Quota("u", 95, None, 100, 95, None, 100), ["low-quota", "low-quota"]),
    ],
)
def test_quotas_that_are_used_up_or_nearly(quota: Quota, names: list[str]) -> None:
    assert [finding.name for finding in quota_findings([quota], "/m")] == names
