"""Why an incarnation ended, and what becomes of its job: the facts gathered for `policy.requeue`."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ckptctl.actions import nodes as node_checks
from ckptctl.errors import EXIT_NEVER_RESTART, CkptctlError, SchedulerError
from ckptctl.interfaces import Scheduler
from ckptctl.model.job import Cause, Decision, Job, JobState, NodeState
from ckptctl.policy import nodes as node_policy
from ckptctl.policy import requeue
from ckptctl.settings import Settings
from ckptctl.storage import journal
from ckptctl.storage.repository import Repository
from ckptctl.storage.start import Started


@dataclass(frozen=True)
class Ending:
    """The decision about an ended incarnation, the exit code of its application, and its last complete step."""

    decision: Decision
    code: int
    last_complete: int


@dataclass(frozen=True)
class Observer:
    """Looks at one job of one checkpoint root, from its batch host, while other nodes or this node's mount may be gone."""

    scheduler: Scheduler
    job: Job
    repository: Repository
    settings: Settings

    def state(self) -> JobState:
        """Return the state of this incarnation: PENDING when the job was requeued already, UNKNOWN when nobody can say."""
        try:
            found = self.scheduler.job(self.job.id)
        except SchedulerError:
            return JobState.UNKNOWN
        if found is None:
            return JobState.UNKNOWN
        return JobState.PENDING if found.restart > self.job.restart else found.state

    def node_states(self) -> dict[str, NodeState]:
        """Return the states of the job's nodes; none while the controller is away."""
        try:
            return self.scheduler.nodes(self.job.nodes)
        except SchedulerError:
            return {}

    def decide(self, started: Started, code: int, signals: Sequence[int], lost: Mapping[str, str]) -> Ending:
        """Decide about the incarnation that ended with `code` after `signals`; `lost` are nodes it was ended for."""
        generation, resumed = started.point.generation, started.point.step
        cause, detail, blamed = self._cause(generation, code, signals, lost)
        if cause is Cause.NEVER_RESTART:
            code = EXIT_NEVER_RESTART  # a launcher that killed the other ranks tells of the kill instead
        last = max(resumed, self._last_complete()) if cause is not Cause.TAKEN else resumed
        budgets = requeue.Budgets(self.settings.budget_application, self.settings.budget_infrastructure)
        now = requeue.Ended(cause, resumed, last)
        return Ending(requeue.decide(now, self._earlier(), budgets, blamed=tuple(blamed), detail=detail), code, last)

    def _cause(
        self, generation: int, code: int, signals: Sequence[int], lost: Mapping[str, str]
    ) -> tuple[Cause, str, Mapping[str, str]]:
        state = self.state()
        if state not in (JobState.RUNNING, JobState.UNKNOWN):
            return Cause.TAKEN, f"its state is {state.value}", {}
        if state is JobState.UNKNOWN and signals:
            return Cause.TAKEN, "the controller does not answer, and a signal came", {}
        try:
            if self.repository.newest_generation() > generation:
                return Cause.FENCED, f"generation {self.repository.newest_generation()}", {}
            words = self.repository.journal.events(journal.STOPPED, journal.NEVER)
            said = {event.name for event in words if event.generation == generation}
        except CkptctlError:
            said = set()  # this node's mount is gone too; the nodes' answers below say so
        if code == 0:
            if journal.STOPPED not in said:
                return Cause.FINISHED, "", {}
            return Cause.STOPPED, ", ".join(sorted({signal.Signals(number).name for number in signals})), {}
        if code == EXIT_NEVER_RESTART or journal.NEVER in said:
            return Cause.NEVER_RESTART, "", {}
        if not lost:
            words_of = {NodeState.DOWN: "is DOWN", NodeState.SUSPECT: "does not respond"}
            lost = {node: words_of[one] for node, one in self.node_states().items() if one in words_of}
        if lost:
            return Cause.NODE, node_policy.name_them(lost), lost
        try:
            verdict = node_checks.ask(self.scheduler, self.job, self.repository.root, self.settings)
        except SchedulerError as exc:
            return Cause.APPLICATION, f"exit code {code}; the nodes could not be asked: {exc.message}", {}
        if verdict.refused:
            return Cause.STORAGE, f"{verdict.refused[1]} (every node; nobody is excluded)", {}
        if 2 * len(verdict.blamed) > len(self.job.nodes):
            reason = (
                f"{node_policy.name_them(verdict.blamed)} (most of the nodes: the file system is at fault, nobody is excluded)"
            )
            return Cause.STORAGE, reason, {}
        if verdict.blamed:
            return Cause.STORAGE, node_policy.name_them(verdict.blamed), verdict.blamed
        return Cause.APPLICATION, f"exit code {code}", {}

    def _last_complete(self) -> int:
        """Return the last complete step as far as this node can see; 0 when its own mount is gone: the next start will know."""
        try:
            return next((found.id.step for found in self.repository.complete()), 0)
        except CkptctlError:
            return 0

    def _earlier(self) -> list[requeue.Ended]:
        """Return how this job's earlier incarnations ended, oldest first."""
        found = []
        try:
            decisions = self.repository.journal.events(journal.DECISION)
        except CkptctlError:
            return []
        for event in decisions:
            facts = self.repository.journal.facts(event)
            if facts.get("job") == self.job.id and facts.get("cause") in set(Cause):
                found.append(requeue.Ended(Cause(facts["cause"]), int(facts.get("resumed", 0)), event.step))
        return found
