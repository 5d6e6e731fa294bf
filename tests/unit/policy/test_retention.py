"""What may be deleted: never the newest, by sequence and not by step, oldest first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptctl.model.checkpoint import CheckpointId
from ckptctl.policy.retention import MINIMUM, Kept, disposable

LINEAGES = st.sets(st.builds(CheckpointId, st.integers(0, 30), st.integers(1, 4)), max_size=20).flatmap(
    lambda ids: st.permutations([Kept(one, number) for number, one in enumerate(sorted(ids), 1)])
)


def saved(*steps: int, generation: int = 1, first: int = 1) -> list[Kept]:
    """Return complete checkpoints of these steps, in sequence."""
    return [Kept(CheckpointId(step, generation), number) for number, step in enumerate(steps, first)]


def gone(complete: list[Kept], keep_last: int, keep_every: int) -> list[int]:
    """Return the steps that may go."""
    return [one.step for one in disposable(complete, keep_last=keep_last, keep_every=keep_every)]


@pytest.mark.parametrize("keep_last", [-3, 0, 1, 2])
def test_two_stay_however_few_are_asked_for(keep_last: int) -> None:
    assert gone(saved(10, 20, 30, 40), keep_last, 0) == [10, 20]


@pytest.mark.parametrize("count", range(MINIMUM + 1))
def test_nothing_goes_while_there_are_no_more_than_two(count: int) -> None:
    assert gone(saved(*range(count)), 0, 0) == []


@pytest.mark.parametrize(("keep_last", "left"), [(3, [10]), (4, []), (9, [])])
def test_as_many_as_asked_for_stay(keep_last: int, left: list[int]) -> None:
    assert gone(saved(10, 20, 30, 40), keep_last, 0) == left


@pytest.mark.parametrize(
    ("keep_every", "left"), [(0, [7, 8, 9, 10]), (1, []), (2, [7, 9]), (3, [7, 8, 10]), (9, [7, 8, 9, 10])]
)
def test_every_nth_stays_by_its_sequence_whatever_its_step(keep_every: int, left: list[int]) -> None:
    assert gone(saved(7, 8, 9, 10, 11, 12), 2, keep_every) == left


def test_the_sequence_counts_on_over_generations_and_gaps() -> None:
    complete = [*saved(10, 20), *saved(30, 40, 50, generation=2, first=6)]
    assert gone(complete, 2, 3) == [10, 20]
    assert gone(complete, 2, 2) == [10]


def test_of_one_step_the_newest_generation_stands_and_the_others_go_even_among_the_newest() -> None:
    complete = [*saved(10, 20), *saved(20, 30, generation=2, first=3)]
    assert disposable(complete, keep_last=3, keep_every=1) == [CheckpointId(20, 1)]


def test_a_superseded_checkpoint_is_not_counted_as_one_that_stays() -> None:
    complete = [*saved(10, 20), *saved(20, generation=2, first=3), *saved(20, generation=3, first=4)]
    assert disposable(complete, keep_last=2, keep_every=0) == [CheckpointId(20, 1), CheckpointId(20, 2)]


@given(LINEAGES, st.integers(-1, 8), st.integers(0, 6))
def test_the_newest_are_always_kept_and_the_rest_comes_oldest_first(
    complete: list[Kept], keep_last: int, keep_every: int
) -> None:
    found = disposable(complete, keep_last=keep_last, keep_every=keep_every)
    assert found == sorted(set(found))
    assert set(found) <= {kept.id for kept in complete}
    newest: dict[int, CheckpointId] = {one.step: one for one in sorted(kept.id for kept in complete)}
    stay = [newest[step] for step in sorted(newest)][-max(keep_last, MINIMUM) :]
    assert not set(stay) & set(found)
    assert len(stay) >= min(MINIMUM, len(newest))


@given(LINEAGES, st.integers(0, 8), st.integers(0, 6))
def test_what_stays_stays_when_asked_again(complete: list[Kept], keep_last: int, keep_every: int) -> None:
    found = disposable(complete, keep_last=keep_last, keep_every=keep_every)
    left = [kept for kept in complete if kept.id not in found]
    assert disposable(left, keep_last=keep_last, keep_every=keep_every) == []


@given(LINEAGES, st.integers(0, 6), st.integers(0, 6))
def test_the_order_of_the_listing_does_not_matter(complete: list[Kept], keep_last: int, keep_every: int) -> None:
    in_order = sorted(complete, key=lambda kept: kept.id)
    again = disposable(in_order, keep_last=keep_last, keep_every=keep_every)
    assert disposable(complete, keep_last=keep_last, keep_every=keep_every) == again
