"""`run`: one incarnation of a training job, from the check of all nodes to the decision what becomes of the job."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType

from ckptctl import __version__, events
from ckptctl.actions import nodes as node_checks
from ckptctl.actions.ending import Observer
from ckptctl.actions.prove import prove
from ckptctl.errors import (
    EXIT_REQUEUE_ME,
    CkptctlError,
    NotShared,
    PlacementRefused,
    RequeueRefused,
    SchedulerError,
    StorageFault,
    UsageError,
)
from ckptctl.interfaces import Launch, Scheduler
from ckptctl.model.job import Ability, Action, Cause, Decision, Job, JobState, NodeState
from ckptctl.model.manifest import Generation
from ckptctl.policy import nodes as node_policy
from ckptctl.policy.nodes import NodesVerdict
from ckptctl.policy.proof import Proof
from ckptctl.policy.site import Mode
from ckptctl.saving.session import Incarnation
from ckptctl.settings import Settings
from ckptctl.storage import journal, start
from ckptctl.storage.repository import Repository

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
_POLL_S = 0.1


@dataclass(frozen=True)
class RunRequest:
    """What to run: the checkpoint root (`%A`, `%a`, `%j` are expanded), the command, and what is allowed beyond the rules."""

    root: str
    command: tuple[str, ...]
    settings: Settings
    take_over: bool = False
    allow_older: bool = False


@dataclass(frozen=True)
class RunResult:
    """How the incarnation ended. `ours` tells an exit code of ckptctl from the application's own."""

    exit_code: int
    decision: Decision
    ours: bool


def run(request: RunRequest, scheduler: Scheduler) -> RunResult:
    """Run one incarnation inside a job. Raises what refuses the start; returns once the job's fate is decided and acted on.

    Order: every node is asked before anything is created; the generation is taken and the resume point durable before the
    first rank starts; a decision is in the journal before the scheduler hears of it.
    """
    job = scheduler.current_job()
    if job is None:
        raise UsageError(
            f"not inside a {scheduler.name} job",
            hint="use it in an sbatch script: exec ckptctl run --root … -- srun …; on a workstation add --scheduler local",
        )
    if not request.command:
        raise UsageError("no command to run", hint="put it after --: ckptctl run --root … -- srun python train.py")
    return _Run(request, scheduler, job).go()


def expand_root(root: str, job: Job) -> str:
    """Expand `%A` (array or job id), `%a` (array task) and `%j` (id as the scheduler's commands take it); `%%` is a `%`."""
    array, _, task = job.id.partition("_")
    values = {"A": array, "a": task or "0", "j": job.id, "%": "%"}
    out, rest = [], iter(root)
    for letter in rest:
        if letter != "%":
            out.append(letter)
            continue
        key = next(rest, "")
        if key not in values:
            raise UsageError(f"unknown %{key} in the checkpoint root {root!r}", hint="known: %A %a %j %%")
        out.append(values[key])
    return os.path.abspath("".join(out))


class _Run:
    def __init__(self, request: RunRequest, scheduler: Scheduler, job: Job) -> None:
        self.request, self.scheduler, self.job = request, scheduler, job
        self.settings = request.settings
        self.root = expand_root(request.root, job)
        self.repository = Repository(self.root)
        self.observer = Observer(scheduler, job, self.repository, request.settings)
        self.ability = Ability(False, "not asked yet")
        self.signals: list[int] = []
        self.launch: Launch | None = None

    def go(self) -> RunResult:
        with self._signals_noted():
            self._introduce()
            verdict = self._check_nodes()
            if verdict.refused:
                self._refuse(verdict)
            if verdict.blamed:
                return self._go_back(verdict.blamed)
            events.emit(events.PROBE, f"checkpoint root {self.root}: {verdict.summary}")
            self.repository.create()
            excluded = self._excluded_but_here()
            if excluded:
                return self._go_back(excluded)
            started = self._begin()
            self._clear_refusals()
            incarnation = Incarnation.of(started, self.root)
            launched = time.monotonic()
            told = {**incarnation.environment(), **self.settings.for_ranks()}
            self.launch = self.scheduler.launch(self.job, self.request.command, told)
            for number in self.signals:
                self.launch.signal(number)
            code, blamed = self._watch(self.launch)
            events.emit(events.LAUNCH, f"the command ended with {code} after {time.monotonic() - launched:.1f} s", code=code)
            ending = self.observer.decide(started, code, self.signals, blamed)
            point = started.point
            return self._act(
                ending.decision, ending.code, generation=point.generation, step=ending.last_complete, resumed=point.step
            )

    # --- before the launch ---------------------------------------------------------------------------------------

    def _introduce(self) -> None:
        job = self.job
        events.emit(
            events.RUN_START,
            f"job {job.id}, restart {job.restart}, on {len(job.nodes)} node(s): {', '.join(job.nodes[:8])}"
            + (" …" if len(job.nodes) > 8 else ""),
            job=job.id,
            restart=job.restart,
            nodes=job.nodes,
        )
        self.ability = self.scheduler.can_requeue(job)
        if self.ability.ok:
            events.emit(events.RUN_ABILITY, f"will requeue this job after a failure: {self.ability.reason}")
        else:
            events.emit(
                events.RUN_ABILITY,
                f"will NOT be able to requeue this job: {self.ability.reason}; {self.ability.remedy}",
                level=logging.WARNING,
            )
        warning = _parent_warning()
        if warning:
            events.emit(events.RUN_WARNING, warning, level=logging.WARNING)

    def _check_nodes(self) -> NodesVerdict:
        """Ask all nodes, then have them prove that they share the root. Nothing is created before both."""
        try:
            verdict = node_checks.ask(self.scheduler, self.job, self.root, self.settings)
        except SchedulerError as exc:
            if self.ability.ok:
                raise
            events.emit(
                events.PROBE,
                f"the other nodes can't be asked from here ({exc.message}): only this node is judged; every rank still "
                "compares what it sees of the root before it trains",
                level=logging.WARNING,
            )
            return node_checks.ask_here(self.scheduler, self.root, self.settings)
        judged = verdict.fine or verdict.provable
        if not judged or self.scheduler.capabilities.single_machine or len(self.job.nodes) < 2:
            return verdict
        try:
            found = prove(self.scheduler, self.job, self.root, self.settings).verdict
        except StorageFault as exc:  # of this node: the others were fine a moment ago
            return NodesVerdict({self.scheduler.this_node().name: exc.message}, None, verdict.summary)
        if found.proof is Proof.UNPROVED_SINGLE_NODE:
            return replace(verdict, summary=f"{verdict.summary}; not proved: {found.reason}")
        if verdict.refused and found.proof is Proof.PROVED:
            said = f"{verdict.refused[1]}; all nodes share it by proof, so the job goes on"
            events.emit(events.PROBE, f"{said}: have the site declare it (docs: choose your mounts)", level=logging.WARNING)
            return NodesVerdict({}, None, said)
        if verdict.refused:
            return verdict
        return NodesVerdict(found.blamed, None, f"{verdict.summary}, shared by proof")

    def _refuse(self, verdict: NodesVerdict) -> None:
        """Raise for a root that is refused on every node, unless the site only wants such things recorded or told."""
        refusal = node_checks.refusal(verdict, self.root)
        mode = self.settings.site.mode
        if mode is Mode.ENFORCE or not isinstance(refusal, PlacementRefused):
            raise refusal
        level = logging.WARNING if mode is Mode.WARN else logging.INFO
        events.emit(events.PROBE, f"{refusal.message} (the site's mode is {mode.value}: the job goes on)", level=level)

    def _begin(self) -> start.Started:
        boots = {node.name: node.boot_id for node in [self.scheduler.this_node()]}
        record = start.new_record(
            self.repository,
            scheduler=self.scheduler.name,
            job=self.job.id,
            restart=self.job.restart,
            user=self.job.user,
            nodes=self.job.nodes,
            boot_ids=boots,
        )
        options = start.StartOptions(
            take_over=self.request.take_over,
            allow_older=self.request.allow_older,
            settle_s=self.settings.settle_s,
            silent_s=self.settings.silent_s,
            tool=f"ckptctl {__version__}",
        )
        started = start.begin(self.repository, record, self._alive, options)
        point = started.point
        what = (
            f"resumes at step {point.step} from {point.folder}"
            if point.folder
            else "starts at step 0: nothing was ever committed"
        )
        events.emit(
            events.RESUME,
            f"generation {point.generation} {what}"
            + (f"; recovered {', '.join(point.recovered)}" if point.recovered else "")
            + (f"; set aside {', '.join(point.set_aside)}" if point.set_aside else ""),
            generation=point.generation,
            step=point.step,
        )
        for skip in point.skipped:
            events.emit(
                events.RESUME, f"not step {skip.step} of generation {skip.generation}: {skip.reason}", level=logging.WARNING
            )
        node_checks.compare_volume(started, self.root)
        return started

    def _alive(self, holder: Generation) -> bool | None:
        """Say whether another job holds the root. The same job's earlier incarnations are ended by the scheduler."""
        if holder.scheduler != self.scheduler.name:
            return None
        if self.scheduler.capabilities.single_machine:  # job ids of embedded queues are not unique; the process is
            return _is_ckptctl(holder.pid) if holder.host == os.uname().nodename else None
        if holder.job == self.job.id:
            return False
        found = self.scheduler.job(holder.job)
        return None if found is None or found.state is JobState.UNKNOWN else found.state.alive

    def _excluded_but_here(self) -> dict[str, str]:
        """Return nodes of this allocation that a recent decision of this job excluded (its update may have been lost)."""
        oldest_ms = (time.time() - self.settings.exclude_hours * 3600) * 1000
        found: dict[str, str] = {}
        for event in self.repository.journal.events(journal.DECISION):
            if event.time_ms < oldest_ms:
                continue
            facts = self.repository.journal.facts(event)
            if facts.get("job") == self.job.id and isinstance(facts.get("exclude"), list):
                found.update(dict.fromkeys(facts["exclude"], f"was excluded by generation {event.generation}"))
        return {node: why for node, why in found.items() if node in self.job.nodes}

    def _go_back(self, blamed: Mapping[str, str]) -> RunResult:
        """Give the allocation back before training because of single nodes: requeue without them."""
        reason = node_policy.name_them(blamed)
        events.emit(events.PROBE, f"not shared: {reason}", level=logging.ERROR, nodes=list(blamed))
        count = node_policy.refusal_count(self.job.comment.split()) + 1
        if not self.ability.ok:
            raise NotShared(
                f"single nodes are at fault: {reason}", context=self.root, hint=f"cannot requeue: {self.ability.reason}"
            )
        widespread = 2 * len(blamed) > len(self.job.nodes)
        exclude = () if widespread else tuple(blamed)
        why = f"refused before training on {len(blamed)} of {len(self.job.nodes)} node(s): {reason}"
        if widespread:
            why += " (most of the nodes: the file system is at fault, nobody is excluded)"
        decision = Decision(Action.REQUEUE, Cause.REFUSED, why, exclude)
        if count > self.settings.budget_infrastructure:
            decision = Decision(Action.HOLD, Cause.REFUSED, f"refused before training {count} times: {reason}", exclude)
        self.scheduler.set_comment(self.job, "ckptctl_refused", str(count))
        self.scheduler.set_comment(self.job, "ckptctl", reason)
        return self._act(decision, NotShared.exit_code, generation=0, step=0)

    def _clear_refusals(self) -> None:
        if node_policy.refusal_count(self.job.comment.split()):
            self._try_comment("ckptctl_refused", "0")

    # --- while it runs -------------------------------------------------------------------------------------------

    @contextmanager
    def _signals_noted(self) -> Iterator[None]:
        """Note signals instead of dying of them, and pass them on to the command while there is one."""

        def note(number: int, _frame: FrameType | None) -> None:
            self.signals.append(number)
            if self.launch is not None:
                self.launch.signal(number)

        before = {number: signal.signal(number, note) for number in _FORWARDED}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _watch(self, launch: Launch) -> tuple[int, dict[str, str]]:
        """Wait for the command, and for the nodes below it: a launcher may wait for a dead node for ever."""
        next_look = time.monotonic() + self.settings.node_poll_s
        suspect_since: dict[str, float] = {}
        told = 0
        while True:
            code = launch.poll()
            if code is not None:
                return code, {}
            for number in self.signals[told:]:
                events.emit(events.SIGNAL, f"got {signal.Signals(number).name}, passed on to the command")
                told += 1
            if time.monotonic() >= next_look:
                next_look = time.monotonic() + self.settings.node_poll_s
                lost = self._lost_nodes(suspect_since)
                if lost and self.observer.state() is JobState.RUNNING:  # else its fate is not ours to decide
                    events.emit(events.NODE_STATE, node_policy.name_them(lost), level=logging.ERROR, nodes=list(lost))
                    launch.end(self.settings.end_grace_s)
                    code = launch.poll()
                    return (code if code is not None else 137), lost
            time.sleep(_POLL_S)

    def _lost_nodes(self, suspect_since: dict[str, float]) -> dict[str, str]:
        now, lost = time.monotonic(), {}
        for node, state in self.observer.node_states().items():  # none while the controller is away: training goes on
            if state is NodeState.DOWN:
                lost[node] = "is DOWN"
            elif state is NodeState.SUSPECT:
                since = suspect_since.setdefault(node, now)
                if now - since >= self.settings.suspect_grace_s:
                    lost[node] = f"has not responded for {now - since:.0f} s"
            else:
                suspect_since.pop(node, None)
        return lost

    # --- after it ended ------------------------------------------------------------------------------------------

    def _act(self, decision: Decision, code: int, *, generation: int, step: int, resumed: int = 0) -> RunResult:
        """Carry a decision out: journal first, then the scheduler, then the exclusion. Every call may be repeated."""
        level = logging.INFO if decision.action is Action.STOP and code == 0 else logging.WARNING
        events.emit(events.DECISION, f"{decision.action.value}: {decision.reason}", level=level, cause=decision.cause.value)
        if decision.action is Action.HANDS_OFF:
            return RunResult(code or 128 + signal.SIGTERM, decision, ours=False)
        self._journal(decision, code, generation, step, resumed)
        if decision.action is Action.STOP:
            return RunResult(code, decision, ours=False)
        if not self.ability.ok:
            events.emit(events.DECISION, f"not requeued: {self.ability.reason}; {self.ability.remedy}", level=logging.ERROR)
            return RunResult(code or EXIT_REQUEUE_ME, decision, ours=not code)
        if decision.action is Action.HOLD:
            self._try_comment("ckptctl", decision.reason)
            self.scheduler.requeue(self.job, hold=True)
            self._wait_for_end()
            return RunResult(RequeueRefused.exit_code, decision, ours=True)
        self.scheduler.requeue(self.job)
        if decision.exclude:
            kept_out = self.scheduler.exclude(self.job, decision.exclude)
            events.emit(events.DECISION, f"excluded from the next allocation: {', '.join(kept_out)}")
        self._wait_for_end()
        return RunResult(0, decision, ours=True)

    def _journal(self, decision: Decision, code: int, generation: int, step: int, resumed: int) -> None:
        if not generation:
            return  # refused before training: the root may not even be visible here; evidence is in the job's comment
        try:
            self.repository.journal.write(
                journal.DECISION,
                generation,
                step,
                job=self.job.id,
                restart=self.job.restart,
                action=decision.action.value,
                cause=decision.cause.value,
                reason=decision.reason,
                exclude=list(decision.exclude),
                exit_code=code,
                resumed=resumed,
                nodes=list(self.job.nodes),
            )
        except CkptctlError as exc:
            events.emit(events.DECISION, f"the decision could not be journalled: {exc.message}", level=logging.ERROR)

    def _try_comment(self, key: str, value: str) -> None:
        try:
            self.scheduler.set_comment(self.job, key, value)
        except SchedulerError as exc:
            events.emit(events.RUN_WARNING, f"could not set the job's comment: {exc.message}", level=logging.WARNING)

    def _wait_for_end(self) -> None:
        """Stay until the scheduler's SIGTERM says that the requeue is under way; leaving earlier would end the job instead."""
        deadline = time.monotonic() + 10
        while signal.SIGTERM not in self.signals and time.monotonic() < deadline:
            time.sleep(0.02)


def _parent_warning() -> str:
    """Return a warning when the parent is a batch shell that traps no signal: `--signal=B:` would never reach us."""
    try:
        with open(f"/proc/{os.getppid()}/comm", encoding="utf-8") as file:
            name = file.read().strip()
        with open(f"/proc/{os.getppid()}/status", encoding="utf-8") as file:
            caught = next(int(line.split()[1], 16) for line in file if line.startswith("SigCgt:"))
    except (OSError, StopIteration, ValueError):
        return ""
    wanted = (1 << (signal.SIGTERM - 1)) | (1 << (signal.SIGUSR1 - 1))
    if name not in ("bash", "sh", "dash", "zsh", "ksh", "slurm_script") or caught & wanted:
        return ""
    return f"the parent is a shell ({name}) that passes no signal on: write `exec ckptctl run …` in the batch script"


def _is_ckptctl(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"ckptctl" in file.read()
    except OSError:
        return False
