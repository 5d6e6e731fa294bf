"""Which layouts suit which shards."""

from __future__ import annotations

import pytest

from ckptctl.model.quota import Component
from ckptctl.policy.lustre import LARGE_SHARD_BYTES, SMALL_SHARD_BYTES, layout_findings

ONE, ALL, FOUR = (Component(0, None, 1),), (Component(0, None, -1),), (Component(0, None, 4),)
GROWING = (Component(0, 1 << 20, 0), Component(1 << 20, 1 << 30, 1), Component(1 << 30, None, 8))


@pytest.mark.parametrize(
    ("layout", "shard", "name"),
    [
        (ONE, LARGE_SHARD_BYTES, "lustre-narrow"),
        (ONE, LARGE_SHARD_BYTES - 1, "lustre-layout"),
        (ONE, SMALL_SHARD_BYTES, "lustre-layout"),
        (FOUR, LARGE_SHARD_BYTES, "lustre-layout"),
        (ALL, LARGE_SHARD_BYTES, "lustre-layout"),
        (ALL, SMALL_SHARD_BYTES, "lustre-wide"),
        (FOUR, SMALL_SHARD_BYTES, "lustre-layout"),
        (GROWING, LARGE_SHARD_BYTES, "lustre-layout"),
        (GROWING, SMALL_SHARD_BYTES, "lustre-layout"),
        ((Component(0, 1 << 40, 1),), LARGE_SHARD_BYTES, "lustre-narrow"),
        (ONE, None, "lustre-layout"),
    ],
)
def test_layouts_and_shards(layout: tuple[Component, ...], shard: int | None, name: str) -> None:
    (found,) = layout_findings(layout, shard, "/lustre/run")
    assert found.name == name
    assert (found.severity.value == "warning") is (name != "lustre-layout")
    assert ("lfs setstripe" in found.remedy) is (name != "lustre-layout")


def test_without_a_layout_there_is_nothing_to_say() -> None:
    assert layout_findings((), 10**12, "/x") == ()
