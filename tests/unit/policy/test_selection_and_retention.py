"""The fence, the order of candidates, and what may be deleted."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from ckptctl.model.checkpoint import CheckpointId
from ckptctl.policy.retention import MINIMUM, Kept, disposable
from ckptctl.policy.selection import Fence, newest_first

IDS = st.builds(CheckpointId, st.integers(0, 40), st.integers(1, 6))


def kept(ids: set[CheckpointId]) -> list[Kept]:
    """Return complete checkpoints with a sequence in the order of their steps."""
    return [Kept(one, number) for number, one in enumerate(sorted(ids), 1)]


def test_a_generation_counts_up_to_where_a_newer_one_resumed() -> None:
    fence = Fence({}).resumed_at(2, 8, [1])
    assert fence.counts(CheckpointId(8, 1))
    assert not fence.counts(CheckpointId(9, 1))
    assert fence.counts(CheckpointId(900, 2))
    assert "counts only up to step 8" in fence.refusal(CheckpointId(9, 1))
    assert fence.refusal(CheckpointId(8, 1)) == ""


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12))
def test_limits_never_grow_over_any_chain_of_starts(steps: list[int]) -> None:
    fence = Fence({})
    for generation, step in enumerate(steps, 2):
        after = fence.resumed_at(generation, step, range(1, generation))
        assert set(after.limits) == set(range(1, generation))
        assert all(after.limits[old] <= fence.limits.get(old, step) for old in after.limits)
        assert all(limit <= step for limit in after.limits.values())
        fence = after


@given(st.lists(IDS))
def test_candidates_are_looked_at_by_step_then_generation_newest_first(ids: list[CheckpointId]) -> None:
    found = newest_first(ids)
    assert sorted(found) == sorted(ids)
    assert all(a >= b for a, b in itertools.pairwise(found))


@given(st.sets(IDS, max_size=30), st.integers(0, 6), st.integers(0, 7))
def test_the_newest_steps_always_stay_and_the_rest_goes_by_the_rule(
    ids: set[CheckpointId], keep_last: int, keep_every: int
) -> None:
    complete = kept(ids)
    gone = disposable(complete, keep_last=keep_last, keep_every=keep_every)
    assert gone == sorted(gone)
    left = {one.id for one in complete} - set(gone)
    steps = sorted({one.step for one in ids})
    assert set(steps[-max(keep_last, MINIMUM) :]) <= {one.step for one in left}
    newest = {max(one for one in ids if one.step == step) for step in steps}
    assert left <= newest, "of one step only the newest generation's stays"
    by_id = {one.id: one.sequence for one in complete}
    for one in newest - left:
        assert not keep_every or by_id[one] % keep_every
    for one in left:
        if one.step not in steps[-max(keep_last, MINIMUM) :]:
            assert keep_every
            assert by_id[one] % keep_every == 0
