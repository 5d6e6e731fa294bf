"""What becomes of a job: every branch, and the two budgets that never eat each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptctl.model.job import Action, Cause
from ckptctl.policy.requeue import INFRASTRUCTURE, Budgets, Ended, decide

BUDGETS = Budgets(application=2, infrastructure=3)
DECIDED = [Cause.FINISHED, Cause.NEVER_RESTART, Cause.CANCELLED, Cause.FENCED, Cause.REFUSED]


def idle(cause: Cause) -> Ended:
    """Return an incarnation that made no progress."""
    return Ended(cause, 40, 40)


def busy(cause: Cause) -> Ended:
    """Return an incarnation that left a newer checkpoint."""
    return Ended(cause, 40, 80)


@pytest.mark.parametrize("cause", DECIDED)
def test_what_is_over_stops_whatever_came_before(cause: Cause) -> None:
    decision = decide(idle(cause), [idle(Cause.APPLICATION)] * 9, BUDGETS, blamed=["n3"])
    assert (decision.action, decision.cause, decision.exclude) == (Action.STOP, cause, ())
    assert decision.reason


def test_what_the_scheduler_took_is_left_alone() -> None:
    assert decide(idle(Cause.TAKEN), [idle(Cause.TAKEN)] * 9, BUDGETS).action is Action.HANDS_OFF


def test_an_agreed_stop_is_requeued_and_costs_nothing() -> None:
    assert decide(idle(Cause.STOPPED), [idle(Cause.APPLICATION)] * 9, BUDGETS, detail="SIGUSR1").action is Action.REQUEUE


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause not in (*DECIDED, Cause.TAKEN, Cause.STOPPED)])
def test_a_failure_is_requeued_until_its_budget_is_spent(cause: Cause) -> None:
    budget = BUDGETS.infrastructure if cause in INFRASTRUCTURE else BUDGETS.application
    for earlier in range(budget + 2):
        decision = decide(idle(cause), [idle(cause)] * earlier, BUDGETS, blamed=["n3"], detail="why")
        held = earlier + 1 >= budget
        assert decision.action is (Action.HOLD if held else Action.REQUEUE)
        assert ("no progress" in decision.reason) is held
        assert decision.reason.endswith(": why") or "without progress)" in decision.reason
        assert decision.exclude == ("n3",)


@pytest.mark.parametrize("cause", [Cause.APPLICATION, Cause.NODE, Cause.STORAGE])
def test_progress_starts_the_count_again(cause: Cause) -> None:
    assert decide(busy(cause), [idle(cause)] * 20, BUDGETS).action is Action.REQUEUE
    assert decide(idle(cause), [*[idle(cause)] * 20, busy(cause)], BUDGETS).action is Action.REQUEUE


def test_agreed_stops_eat_nobodys_budget() -> None:
    stops = [idle(Cause.STOPPED)] * 9
    assert decide(idle(Cause.APPLICATION), stops, BUDGETS).action is Action.REQUEUE
    assert decide(idle(Cause.NODE), stops, BUDGETS).action is Action.REQUEUE


@given(st.lists(st.sampled_from(sorted(INFRASTRUCTURE)), max_size=30))
def test_infrastructure_never_eats_the_budget_of_the_application(causes: list[Cause]) -> None:
    assert decide(idle(Cause.APPLICATION), [idle(cause) for cause in causes], BUDGETS).action is Action.REQUEUE


@given(st.lists(st.sampled_from([cause for cause in Cause if cause not in INFRASTRUCTURE]), max_size=30))
def test_the_application_never_eats_the_budget_of_infrastructure(causes: list[Cause]) -> None:
    assert decide(idle(Cause.NODE), [idle(cause) for cause in causes], BUDGETS).action is Action.REQUEUE


@given(st.lists(st.tuples(st.sampled_from([Cause.APPLICATION, Cause.NODE, Cause.STORAGE]), st.booleans()), max_size=30))
def test_a_job_that_never_progresses_is_held_in_the_end(history: list[tuple[Cause, bool]]) -> None:
    earlier: list[Ended] = []
    for cause, progressed in history:
        now = busy(cause) if progressed else idle(cause)
        if decide(now, earlier, BUDGETS).action is Action.HOLD:
            assert not now.progressed
            return
        earlier.append(now)
    tail = 0
    for ended in reversed(earlier):
        if ended.progressed:
            break
        tail += 1
    assert tail < BUDGETS.application + BUDGETS.infrastructure - 1
