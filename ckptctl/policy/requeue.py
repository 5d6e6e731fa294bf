"""What to do with a job whose incarnation ended: facts in, a decision with its reason out. Pure.

Infrastructure never eats the application's budget: the two count separately (a node loss says nothing about the code).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ckptctl.model.job import Action, Cause, Decision

INFRASTRUCTURE = frozenset({Cause.NODE, Cause.STORAGE, Cause.TAKEN})
APPLICATION = frozenset({Cause.APPLICATION, Cause.UNKNOWN})


@dataclass(frozen=True)
class Budgets:
    """How many incarnations in a row may end without a newer complete checkpoint before the job is held."""

    application: int = 3
    infrastructure: int = 10


@dataclass(frozen=True)
class Ended:
    """How one incarnation of the lineage ended: where it resumed, and the last complete step it left."""

    cause: Cause
    resumed: int
    last_complete: int

    @property
    def progressed(self) -> bool:
        """Whether it left a newer complete checkpoint than it resumed from."""
        return self.last_complete > self.resumed


def decide(now: Ended, earlier: Sequence[Ended], budgets: Budgets, *, blamed: Sequence[str] = (), detail: str = "") -> Decision:
    """Decide about the incarnation that ended `now`, knowing the `earlier` ones of the same job (oldest first).

    `blamed` are nodes with evidence against them: they go into the exclusion of a requeue. `detail` is appended to the reason.
    """
    cause = now.cause
    tail = f": {detail}" if detail else ""
    if cause is Cause.FINISHED:
        return Decision(Action.STOP, cause, "the run is finished")
    if cause is Cause.NEVER_RESTART:
        return Decision(Action.STOP, cause, "the application ended with exit code 93: never restart")
    if cause is Cause.CANCELLED:
        return Decision(Action.STOP, cause, "the job was cancelled; a cancelled job is never requeued")
    if cause is Cause.FENCED:
        return Decision(Action.STOP, cause, f"a newer generation holds the checkpoint root{tail}")
    if cause is Cause.REFUSED:
        return Decision(Action.STOP, cause, f"refused before training{tail}")
    if cause is Cause.TAKEN:
        return Decision(Action.HANDS_OFF, cause, f"the scheduler itself took the job away{tail}")
    if cause is Cause.STOPPED:
        return Decision(Action.REQUEUE, cause, f"stopped at step {now.last_complete} before the run was finished{tail}")
    kind = INFRASTRUCTURE if cause in INFRASTRUCTURE else APPLICATION
    budget = budgets.infrastructure if cause in INFRASTRUCTURE else budgets.application
    idle = _without_progress(now, earlier, kind)
    if idle >= budget:
        return Decision(
            Action.HOLD,
            cause,
            f"no progress: {idle} incarnation{'s' * (idle > 1)} in a row ended ({cause.value}) without a complete checkpoint "
            f"newer than step {now.resumed}{tail}",
            tuple(blamed),
        )
    why = f"{cause.value} failure, last complete step {now.last_complete}{tail}"
    if idle:
        why += f" ({idle} of {budget} without progress)"
    return Decision(Action.REQUEUE, cause, why, tuple(blamed))


def _without_progress(now: Ended, earlier: Sequence[Ended], kind: frozenset[Cause]) -> int:
    """Count the incarnations of this kind, up to `now`, since the last one of any kind that made progress."""
    count = 0
    for ended in (now, *reversed(earlier)):
        if ended.progressed:
            break
        count += ended.cause in kind
    return count
