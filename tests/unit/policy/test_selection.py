"""The fence that readers hold against older generations, and the order in which a start looks at candidates."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptctl.model.checkpoint import CheckpointId
from ckptctl.policy.selection import Fence, newest_first

NEXT = 9  # a generation newer than all that the drawn fences limit
STEPS = st.integers(0, 60)
FENCES = st.builds(Fence, st.dictionaries(st.integers(1, NEXT - 1), STEPS))
IDS = st.builds(CheckpointId, STEPS, st.integers(1, NEXT + 2))


@pytest.mark.parametrize(
    ("step", "generation", "counts"),
    [(0, 1, True), (7, 1, True), (8, 1, True), (9, 1, False), (3, 2, False), (0, 2, True), (99, 3, True), (99, 4, True)],
)
def test_a_limited_generation_counts_up_to_its_limit_and_any_other_at_every_step(
    step: int, generation: int, counts: bool
) -> None:
    assert Fence({1: 8, 2: 0}).counts(CheckpointId(step, generation)) is counts


def test_without_a_resume_point_everything_counts() -> None:
    assert Fence({}).counts(CheckpointId(10**9, 1))
    assert Fence({}).refusal(CheckpointId(10**9, 1)) == ""


def test_a_refusal_names_the_generation_and_the_step_it_counts_to() -> None:
    assert Fence({4: 120}).refusal(CheckpointId(121, 4)).startswith("fenced: generation 4 counts only up to step 120,")


def test_a_start_limits_all_older_generations_and_neither_itself_nor_newer_ones() -> None:
    assert Fence({}).resumed_at(4, 20, [1, 2, 3, 4, 5]).limits == {1: 20, 2: 20, 3: 20}


def test_a_lower_limit_stays_and_a_higher_one_comes_down() -> None:
    assert Fence({1: 5, 2: 50}).resumed_at(4, 20, [3]).limits == {1: 5, 2: 20, 3: 20}


def test_a_limited_generation_that_is_not_listed_any_more_stays_limited() -> None:
    assert Fence({1: 5}).resumed_at(3, 20, []).limits == {1: 5}


def test_a_start_at_step_0_disowns_everything_later() -> None:
    fence = Fence({1: 40}).resumed_at(3, 0, [1, 2])
    assert not any(fence.counts(CheckpointId(1, generation)) for generation in (1, 2))


@given(FENCES, IDS)
def test_there_is_a_refusal_exactly_where_it_does_not_count(fence: Fence, one: CheckpointId) -> None:
    assert bool(fence.refusal(one)) is not fence.counts(one)


@given(FENCES, STEPS, st.sets(st.integers(1, NEXT + 3)))
def test_limits_never_grow_and_none_is_lost(fence: Fence, step: int, older: set[int]) -> None:
    before = dict(fence.limits)
    after = fence.resumed_at(NEXT, step, older).limits
    assert set(after) == set(before) | {old for old in older if old < NEXT}
    assert all(limit <= min(step, before.get(old, step)) for old, limit in after.items())
    assert fence.limits == before


@given(FENCES, STEPS, st.sets(st.integers(1, NEXT - 1)), IDS)
def test_what_was_fenced_once_never_counts_again(fence: Fence, step: int, older: set[int], one: CheckpointId) -> None:
    after = fence.resumed_at(NEXT, step, older)
    assert fence.counts(one) or not after.counts(one)


@given(FENCES, STEPS, st.sets(st.integers(1, NEXT - 1)))
def test_a_start_twice_at_the_same_step_is_a_start_once(fence: Fence, step: int, older: set[int]) -> None:
    once = fence.resumed_at(NEXT, step, older)
    assert once.resumed_at(NEXT, step, older) == once


@given(FENCES, IDS)
def test_what_a_start_took_still_counts_after_it(fence: Fence, one: CheckpointId) -> None:
    if one.generation < NEXT and fence.counts(one):
        assert fence.resumed_at(NEXT, one.step, range(1, NEXT)).counts(one)


def test_the_highest_step_comes_first_and_of_one_step_the_newest_generation() -> None:
    ids = [CheckpointId(*pair) for pair in [(8, 1), (12, 1), (8, 3), (4, 9), (8, 2)]]
    assert [(one.step, one.generation) for one in newest_first(ids)] == [(12, 1), (8, 3), (8, 2), (8, 1), (4, 9)]


@given(st.lists(IDS, max_size=20).flatmap(st.permutations))
def test_candidates_are_all_there_newest_first_whatever_their_order_was(ids: list[CheckpointId]) -> None:
    found = newest_first(iter(ids))
    assert sorted(found) == sorted(ids)
    pairs = [(one.step, one.generation) for one in found]
    assert all(newer >= older for newer, older in itertools.pairwise(pairs))
