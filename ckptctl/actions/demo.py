"""`demo`: the main job on the embedded cluster: a node lost in the middle of a save, and the same parameters at the end."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ckptctl.actions import inspect
from ckptctl.actions.check import CheckResult, check
from ckptctl.errors import CkptctlError, DeadlineExceeded, PlacementRefused, PluginBroken, UsageError
from ckptctl.model.checkpoint import PROOF
from ckptctl.model.job import Job, JobState
from ckptctl.model.verdict import Placement
from ckptctl.scheduler.local_controller import LocalCluster
from ckptctl.storage.repository import Repository

NODES, RANKS_PER_NODE, SAVE_EVERY = 2, 2, 4
_DEADLINE_S = 300.0
_STOPPED_LOOK_S = 5.0
_LIST_S = 0.5


@dataclass(frozen=True)
class DemoEvent:
    """Something to show: a run's progress (`step` of `total` in an incarnation), or a sentence."""

    run: str
    restart: int
    step: int
    total: int
    text: str = ""


@dataclass(frozen=True)
class DemoIncarnation:
    """One row of the demo's table."""

    generation: int
    nodes: tuple[str, ...]
    cause: str
    resumed: int
    reached: int
    lost_steps: int
    seconds: float


@dataclass(frozen=True)
class DemoResult:
    """What the demo saw; nothing in it is assumed."""

    root: str
    placement: str
    incarnations: tuple[DemoIncarnation, ...]
    victim: str
    receipts_at_kill: int
    mid_save_step: int
    fingerprint: str
    undisturbed: str
    quarantined: tuple[str, ...]
    refusal: CheckResult

    @property
    def identical(self) -> bool:
        """Whether both runs ended with the same parameters, bit for bit."""
        return bool(self.fingerprint) and self.fingerprint == self.undisturbed


def demo(root: str, steps: int, tell: Callable[[DemoEvent], None], accept: frozenset[Placement] = frozenset()) -> DemoResult:
    """Run the demo in a new folder below `root`.

    Raises `PlacementRefused` when even a single machine may not keep checkpoints there.
    """
    script = _example()
    base = Path(root).absolute() / time.strftime("%Y%m%d-%H%M%S")
    try:
        base.mkdir(parents=True)
    except FileExistsError as exc:
        raise UsageError("the demo's folder exists already", context=str(base), hint="run it again") from exc
    placed = check(str(base), single_machine=True, accept=accept)
    if not placed.verdict.allowed:
        raise PlacementRefused(
            f"{placed.verdict.placement.value}: {placed.verdict.reason}",
            context=str(base),
            hint="give another folder with --root, or --accept-class CONTAINER_EPHEMERAL inside a container",
        )
    calm = _Scene(base / "undisturbed", script, steps, tell, accept)
    with LocalCluster(calm.state, nodes=NODES, slots=RANKS_PER_NODE, kill_wait_s=3) as cluster:
        undisturbed = calm.play(cluster, disturb=None)
    storm = _Scene(base / "disturbed", script, steps, tell, accept)
    with LocalCluster(storm.state, nodes=NODES + 1, slots=RANKS_PER_NODE, kill_wait_s=3) as cluster:
        killer = _Killer(storm.root, cluster)
        fingerprint = storm.play(cluster, disturb=killer)
    quarantine = os.path.join(storm.root, PROOF, "quarantine")
    return DemoResult(
        root=str(storm.root),
        placement=f"{placed.verdict.placement.value} ({placed.verdict.reason})",
        incarnations=storm.table(),
        victim=killer.victim,
        receipts_at_kill=killer.receipts,
        mid_save_step=killer.step,
        fingerprint=fingerprint,
        undisturbed=undisturbed,
        quarantined=tuple(sorted(os.listdir(quarantine))),
        refusal=check("/dev/shm/x"),  # noqa: S108 - looked at, never written
    )


def _example() -> Path:
    for module, hint in (
        ("ckptctl_examples.train_fsdp2", "install ckptctl from its repository"),
        ("torch", "add ckptctl[torch]"),
    ):
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise PluginBroken(f"the demo needs {module}, which is not installed", hint=hint)
    script = importlib.util.find_spec("ckptctl_examples.train_fsdp2")
    return Path(str(script.origin if script else ""))


class _Scene:
    """One job on one embedded cluster, watched through the files that it writes."""

    def __init__(
        self, base: Path, script: Path, steps: int, tell: Callable[[DemoEvent], None], accept: frozenset[Placement]
    ) -> None:
        self.base, self.script, self.steps, self.tell = base, script, steps, tell
        self.name = base.name
        self.root, self.state = str(base / "checkpoints"), base / "cluster"
        self.log, self.result, self.output = base / "steps.jsonl", base / "result.json", base / "output.log"
        self.accept = accept
        base.mkdir()
        self._changes: list[tuple[float, Job]] = []
        self._old_log = 0

    def play(self, cluster: LocalCluster, disturb: _Killer | None) -> str:
        """Run the job to its end and return the fingerprint of its parameters."""
        argv = [sys.executable, "-m", "ckptctl.cli.main", "run", "--scheduler", "local", "--root", self.root]
        argv += [word for kind in sorted(self.accept) for word in ("--accept-class", kind.value)]
        argv += ["--", sys.executable, str(self.script), "--steps", str(self.steps), "--save-every", str(SAVE_EVERY)]
        argv += ["--result", str(self.result), "--log", str(self.log)]
        job_id = cluster.submit(
            argv, nodes=NODES, tasks_per_node=RANKS_PER_NODE, env={"OMP_NUM_THREADS": "1"}, name=self.name, stdout=self.output
        )
        deadline = time.monotonic() + _DEADLINE_S
        shown = (-1, -1)
        while True:
            cluster.step()
            job = cluster.job(job_id)
            if not self._changes or self._changes[-1][1].restart != job.restart:
                self._changes.append((time.monotonic(), job))
                self._old_log = os.path.getsize(self.log) if self.log.exists() else 0
            step = self._step(job.restart + 1)
            if step is not None and (job.restart, step) != shown:
                shown = (job.restart, step)
                self.tell(DemoEvent(self.name, job.restart, step, self.steps))
            if disturb is not None and disturb.look(job):
                self.tell(DemoEvent(self.name, job.restart, disturb.step, self.steps, disturb.said))
            if job.state not in (JobState.PENDING, JobState.RUNNING, JobState.COMPLETING):
                break
            if time.monotonic() > deadline:
                raise DeadlineExceeded(
                    f"the {self.name} run did not end within {_DEADLINE_S:.0f} s",
                    context=str(self.output),
                    hint="read that log",
                )
            time.sleep(0.0005 if disturb is not None and disturb.hunting else 0.02)
        self._changes.append((time.monotonic(), job))
        if not self.result.exists():
            raise CkptctlError(
                f"the {self.name} run ended as {job.state.value} without a result",
                context=str(self.output),
                hint="read that log",
            )
        return str(json.loads(self.result.read_text())["fingerprint"])

    def _step(self, generation: int) -> int | None:
        """Return the step that this incarnation is at: what it resumed from until it has trained one; None before that."""
        try:
            with open(self.log, "rb") as file:
                file.seek(max(self._old_log, os.path.getsize(self.log) - 400))
                lines = file.read().splitlines()
            return int(json.loads(lines[-1])["step"])
        except (OSError, ValueError, IndexError):
            point = Repository(self.root).resume_point()
            return point.step if point is not None and point.generation == generation else None

    def table(self) -> tuple[DemoIncarnation, ...]:
        """Return the incarnations as the checkpoint root's journal and the training's own log tell them."""
        steps = [json.loads(line) for line in self.log.read_text().splitlines()]
        rows = inspect.incarnations(self.root)
        found = []
        for number, row in enumerate(rows):
            until = rows[number + 1].started_ms if number + 1 < len(rows) else float("inf")
            mine = [entry["step"] for entry in steps if row.started_ms <= entry["time"] * 1000 < until]
            reached = max(mine, default=row.resumed)
            resumed_next = rows[number + 1].resumed if number + 1 < len(rows) else reached
            began, ended = self._changes[number][0], self._changes[number + 1][0]
            found.append(
                DemoIncarnation(
                    generation=row.generation,
                    nodes=row.nodes,
                    cause=row.cause,
                    resumed=row.resumed,
                    reached=reached,
                    lost_steps=reached - resumed_next,
                    seconds=ended - began,
                )
            )
        return tuple(found)


class _Killer:
    """Loses the job's second node in the middle of a save, and proves it: some receipts are there, and not all.

    The node's processes are stopped as soon as one of their shards appears: earlier, and the others would wait for them before
    they write; later, and their receipt would be there. When the other node's receipt is there and theirs is not, the node is
    killed. A save that was too fast lets them go on; the next one is tried.
    """

    def __init__(self, root: str, cluster: LocalCluster) -> None:
        self._repository = Repository(root)
        self._cluster = cluster
        self.victim, self.said = "", ""
        self.receipts, self.step = 0, 0
        self._done = False
        self._seen: set[str] = set()
        self._pids: list[int] = []
        self._listed = 0.0

    @property
    def hunting(self) -> bool:
        """Whether it still waits for its moment."""
        return not self._done

    def look(self, job: Job) -> bool:
        """Look once; returns True when the node was lost just now."""
        if self._done or job.state is not JobState.RUNNING or job.restart or not self._repository.exists:
            return False
        if len(self._repository.folders()) < 2:
            return False
        victim = job.nodes[-1]
        if time.monotonic() - self._listed > _LIST_S:  # beforehand: it takes longer than the moment that is waited for
            self._pids, self._listed = self._cluster.node_pids(victim), time.monotonic()
        staging = self._repository.staging(1)
        try:
            fresh = [name for name in os.listdir(staging) if name not in self._seen]
        except OSError:
            return False
        if not fresh:
            return False
        self._seen.update(fresh)
        folder, pids = os.path.join(staging, fresh[0]), self._pids
        shards = [f"__{rank}_0.distcp" for rank in range((NODES - 1) * RANKS_PER_NODE, NODES * RANKS_PER_NODE)]
        deadline = time.monotonic() + _STOPPED_LOOK_S
        while not any(os.path.exists(os.path.join(folder, shard)) for shard in shards):
            if time.monotonic() > deadline or not os.path.isdir(folder):
                return False
        _signal(pids, signal.SIGSTOP)
        others = [node for node in job.nodes if node != victim]
        deadline = time.monotonic() + _STOPPED_LOOK_S
        while time.monotonic() < deadline:
            if self._repository.receipt(folder, victim) is not None or not os.path.isdir(folder):
                break
            count = sum(self._repository.receipt(folder, node) is not None for node in others)
            if count == len(others):
                self.receipts, self.victim, self.step = count, victim, int(fresh[0].removeprefix("step-"))
                self._cluster.kill_node(victim)
                self._done = True
                self.said = (
                    f"node {victim} is lost in the middle of the save of step {self.step}: {count} of {len(job.nodes)} receipts"
                )
                return True
            time.sleep(0.001)
        _signal(pids, signal.SIGCONT)
        return False


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
