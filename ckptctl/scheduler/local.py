"""The embedded scheduler as a process inside one of its jobs sees it."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ckptctl.errors import SchedulerError, UsageError
from ckptctl.interfaces import Launch, SchedulerCapabilities
from ckptctl.model.job import Ability, Job, JobState, Node, NodeState, TaskAnswer, comment_word
from ckptctl.scheduler import local_process as process
from ckptctl.scheduler.local_queue import (
    ENV_BOOT_ID,
    ENV_JOB,
    ENV_NODE,
    ENV_STATE,
    LOST,
    POLL_S,
    NewTask,
    Queue,
    job_of,
)

_END_SLACK_S = 5.0  # for a node to see an order and report, on a busy machine


class LocalScheduler:
    """The `Scheduler` of local jobs. It works where `LocalCluster` started the process, and as a spectator elsewhere.

    Outside a job it needs the state folder of a cluster for anything but `this_node` and `current_job`. On a node that
    the controller has lost sight of every call that needs the controller raises `SchedulerError`, as with Slurm.
    """

    name = "local"
    capabilities = SchedulerCapabilities(single_machine=True, launches_tasks=True)

    def __init__(self, state: Path | None = None) -> None:
        here = os.environ.get(ENV_STATE, "")
        self._state = state if state is not None else Path(here) if here else None
        inside = bool(here) and (state is None or state.resolve() == Path(here))
        self._node = os.environ.get(ENV_NODE, "") if inside else ""
        self._boot_id = os.environ.get(ENV_BOOT_ID, "") if inside else ""
        self._job = os.environ.get(ENV_JOB, "") if inside else ""

    def this_node(self) -> Node:
        """Return the node this process runs on; outside a job the host name and the kernel's boot id."""
        if self._node and self._boot_id:
            return Node(self._node, self._boot_id)
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                boot_id = file.read().strip()
        except OSError:
            boot_id = ""
        return Node(socket.gethostname().split(".")[0], boot_id)

    def current_job(self) -> Job | None:
        """Return the job this process runs in, or None."""
        if not self._job:
            return None
        job = self.job(self._job)
        if job is None:
            raise SchedulerError(f"the local cluster does not know this process's own job {self._job}", context=self._where)
        return job

    def job(self, job_id: str) -> Job | None:
        """Return a job by id, or None when the cluster does not know it."""
        with self._queue() as queue:
            row = queue.job_row(job_id)
            return job_of(row) if row is not None else None

    def nodes(self, names: Sequence[str]) -> dict[str, NodeState]:
        """Return the state of each named node: UP, DOWN, UNKNOWN, or SUSPECT when its daemon is silent."""
        with self._queue() as queue:
            rows = queue.node_rows()
            after_s = queue.row("SELECT suspect_after_s FROM controller")[0]
        return {name: _state(rows[name], after_s) if name in rows else NodeState.UNKNOWN for name in names}

    def ask_nodes(
        self, job: Job, argv: Sequence[str], *, deadline_s: float, env: Mapping[str, str] | None = None
    ) -> list[TaskAnswer]:
        """Run `argv` once on each node of the job; stdout is the answer, stderr goes to this process's stderr."""
        end_s = time.monotonic() + deadline_s
        with self._queue() as queue:
            with queue.transaction():
                boots = self._running(queue, job)
                tasks = [NewTask(node, boots[node]) for node in job.nodes]
                told = {**os.environ, **(env or {})}
                launch = queue.add_launch(queue.job_row(job.id), "probe", argv, told, str(Path.cwd()), tasks,
                                          launcher=os.getpid(), kill_at_s=end_s)  # fmt: skip
            try:
                rows = _wait_for_tasks(queue, launch, end_s)
            finally:
                with queue.transaction():
                    queue.end_launch(launch, 0)
                ended = _wait_for_tasks(queue, launch, time.monotonic() + _END_SLACK_S)
        return [_answer(row, last, deadline_s) for row, last in zip(rows, ended, strict=True)]

    def launch(self, job: Job, argv: Sequence[str], env: Mapping[str, str]) -> Launch:
        """Start `argv` once per slot on each node of `job.nodes` (which may be some of the allocation's), node by node.

        Every task gets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, NODE_RANK, MASTER_ADDR and MASTER_PORT; its
        output goes where that of this process goes. The first task that fails ends the others and gives the exit code;
        tasks of a node that is or gets lost count as killed (137).
        """
        with self._queue() as queue, queue.transaction():
            boots = self._running(queue, job)
            row = queue.job_row(job.id)
            slots = int(row["tasks_per_node"])
            common = {
                **os.environ,
                **env,
                "WORLD_SIZE": str(slots * len(job.nodes)),
                "LOCAL_WORLD_SIZE": str(slots),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(_free_port()),
            }
            tasks = [
                NewTask(
                    node,
                    boots[node],
                    {"RANK": str(number * slots + slot), "LOCAL_RANK": str(slot), "NODE_RANK": str(number)},
                )
                for number, node in enumerate(job.nodes)
                for slot in range(slots)
            ]
            launch = queue.add_launch(row, "task", argv, common, str(Path.cwd()), tasks, launcher=os.getpid())
            return LocalLaunch(queue.path.parent, launch, self._boot_id)

    def run_on(self, partition: str, argv: Sequence[str], *, nodes: int) -> int:  # noqa: ARG002 - there are none
        """Raise `UsageError`: all nodes are this machine."""
        raise UsageError(f"there is no partition {partition}: all local nodes are this machine", hint="leave --on away")

    def host_list(self, nodes: Sequence[str]) -> str:
        """Return the names, separated by commas."""
        return ",".join(nodes)

    def can_requeue(self, job: Job) -> Ability:
        """Say whether `requeue` is going to work."""
        try:
            now = self.job(job.id)
        except SchedulerError as exc:
            return Ability(False, exc.message, exc.hint)
        if now is None:
            return Ability(False, f"the local cluster does not know job {job.id}")
        if not now.requeueable:
            return Ability(False, f"job {job.id} was submitted as not requeueable", "submit it with requeueable=True")
        if now.state is not JobState.RUNNING:
            return Ability(False, f"job {job.id} is {now.state.value}, not RUNNING")
        return Ability(True, f"job {job.id} is RUNNING and requeueable")

    def requeue(self, job: Job, *, hold: bool = False) -> None:
        """Send the running job back to the queue; a no-op when this incarnation of it went back already."""
        with self._queue() as queue, queue.transaction():
            row = queue.job_row(job.id)
            if row is not None:
                going_back = row["state"] == JobState.COMPLETING.value and row["next"] == JobState.PENDING.value
                if going_back or row["state"] == JobState.PENDING.value or row["restart"] > job.restart:
                    return
                if row["state"] == JobState.RUNNING.value and row["requeueable"]:
                    queue.complete(row["id"], JobState.PENDING, "requeued by the job", held=hold)
                    return
        problem = "is not known" if row is None else f"is {row['state']}" if row["requeueable"] else "is not requeueable"
        raise SchedulerError(f"can't requeue job {job.id}: it {problem}", context=self._where)

    def exclude(self, job: Job, nodes: Sequence[str]) -> tuple[str, ...]:
        """Keep `nodes`, too, out of the next allocation of a requeued job; return the whole list."""
        with self._queue() as queue, queue.transaction():
            row = queue.job_row(job.id)
            going_back = row is not None and (
                row["state"] == JobState.PENDING.value
                or (row["state"] == JobState.COMPLETING.value and row["next"] == JobState.PENDING.value)
            )
            if not going_back:
                state = row["state"] if row is not None else "not known"
                raise SchedulerError(
                    f"can't exclude nodes for job {job.id}: it is {state}", context=self._where, hint="requeue it first"
                )
            strange = [node for node in nodes if node not in queue.node_rows()]
            if strange:
                raise SchedulerError(f"the local cluster has no node {strange[0]!r}", context=self._where)
            excluded = tuple(dict.fromkeys([*json.loads(row["excluded"]), *nodes]))
            queue.change("UPDATE jobs SET excluded = ? WHERE id = ?", json.dumps(excluded), row["id"])
            return tuple(json.loads(queue.job_row(job.id)["excluded"]))

    def set_comment(self, job: Job, key: str, value: str) -> None:
        """Set the word `key=value` in the job's comment, whose words are separated by blanks."""
        if not key or any(char.isspace() or char == "=" for char in key):
            raise UsageError("a comment's key holds no blank and no '='", context=key)
        with self._queue() as queue, queue.transaction():
            row = queue.job_row(job.id)
            if row is None:
                raise SchedulerError(f"can't comment job {job.id}: it is not known", context=self._where)
            words = [word for word in row["comment"].split() if not word.startswith(f"{key}=")]
            queue.change("UPDATE jobs SET comment = ? WHERE id = ?", " ".join([*words, comment_word(key, value)]), row["id"])

    @property
    def _where(self) -> str:
        return str(self._state)

    @contextmanager
    def _queue(self) -> Iterator[Queue]:
        if self._state is None:
            raise SchedulerError("this process belongs to no local cluster", hint=f"{ENV_STATE} is not set")
        with Queue(self._state) as queue:
            _check_contact(queue, self._boot_id)
            yield queue

    def _running(self, queue: Queue, job: Job) -> dict[str, str]:
        """Return the boot of each node that the running incarnation `job` was given."""
        row = queue.job_row(job.id)
        if row is None or row["state"] != JobState.RUNNING.value or row["restart"] != job.restart:
            what = "is not known" if row is None else f"is {row['state']} with restart {row['restart']}"
            raise SchedulerError(
                f"nothing can be started for restart {job.restart} of job {job.id}: it {what}", context=self._where
            )
        boots: dict[str, str] = dict(zip(json.loads(row["nodes"]), json.loads(row["boots"]), strict=True))
        strange = [node for node in job.nodes if node not in boots]
        if strange or not job.nodes:
            raise SchedulerError(f"job {job.id} was not given the nodes {strange}", context=", ".join(boots))
        return boots


class LocalLaunch:
    """A started training command; it may be polled from any process of the job."""

    def __init__(self, state: Path, launch: int, boot_id: str) -> None:
        self._state = state
        self._launch = launch
        self._boot_id = boot_id
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code once all tasks have ended; None before.

        On a node that the controller lost sight of only the tasks of this node are seen, and the command counts as lost
        (137) once they have ended.
        """
        if self._code is None:
            with Queue(self._state) as queue:
                try:
                    _check_contact(queue, self._boot_id)
                except SchedulerError:
                    self._code = None if self._tasks_here(queue) else LOST
                    return self._code
                if queue.row("SELECT 1 FROM tasks WHERE launch = ? AND state != 'DONE'", self._launch) is None:
                    self._code = queue.row("SELECT exit_code FROM launches WHERE id = ?", self._launch)[0] or 0
        return self._code

    def signal(self, number: int) -> None:
        """Send a signal to the main process of every task."""
        with Queue(self._state) as queue:
            try:
                _check_contact(queue, self._boot_id)
            except SchedulerError:
                for proc in self._tasks_here(queue):
                    process.send(proc, number)
                return
            queue.change(
                "INSERT INTO signals (boot_id, task, number) SELECT boot_id, id, ? FROM tasks"
                " WHERE launch = ? AND state = 'RUNNING'",
                number, self._launch,
            )  # fmt: skip

    def end(self, grace_s: float) -> None:
        """End all tasks with everything they started: SIGTERM, then SIGKILL after `grace_s`; wait for it."""
        with Queue(self._state) as queue:
            end_s = time.monotonic() + grace_s
            try:
                _check_contact(queue, self._boot_id)
            except SchedulerError:
                self._end_here(queue, end_s)
                return
            with queue.transaction():
                queue.end_launch(self._launch, grace_s)
            _wait_for_tasks(queue, self._launch, end_s + _END_SLACK_S)

    def _tasks_here(self, queue: Queue) -> list[process.Proc]:
        """Return the living tasks of this node's boot by process id, for when the queue can't be believed."""
        rows = queue.rows(
            "SELECT pid, start FROM tasks WHERE launch = ? AND boot_id = ? AND pid IS NOT NULL",
            self._launch,
            self._boot_id,
        )
        found = (process.read(row["pid"]) for row in rows if process.same(row["pid"], row["start"]))
        return [proc for proc in found if proc is not None]

    def _end_here(self, queue: Queue, end_s: float) -> None:
        for proc in self._tasks_here(queue):
            process.send(proc, signal.SIGTERM)
        while self._tasks_here(queue) and time.monotonic() < end_s:
            time.sleep(POLL_S)
        process.kill_all(lambda: self._tasks_here(queue), deadline_s=_END_SLACK_S)


def _check_contact(queue: Queue, boot_id: str) -> None:
    """Raise when the controller is gone or, for a process on a node, no longer works with this boot of it."""
    controller = queue.row("SELECT * FROM controller")
    if controller is None or not process.same(controller["pid"], controller["start"]):
        raise SchedulerError("the controller of the local cluster is gone", context=str(queue.path))
    if boot_id and not queue.is_up(boot_id):
        raise SchedulerError("the controller of the local cluster can't be reached from this node", context=boot_id)


def _wait_for_tasks(queue: Queue, launch: int, end_s: float) -> list[Any]:
    """Return the tasks of a launch once all have ended, or as they are at the deadline."""
    while True:
        rows = queue.rows("SELECT * FROM tasks WHERE launch = ? ORDER BY id", launch)
        if all(row["state"] == "DONE" for row in rows) or time.monotonic() >= end_s:
            return rows
        time.sleep(POLL_S)


def _answer(row: Any, last: Any, deadline_s: float) -> TaskAnswer:
    """Make the answer of one node of its task at the deadline (`row`) and after it was ended (`last`)."""
    if row["state"] != "DONE":
        problem = f"not done within {deadline_s:g} s"
        if last["state"] != "DONE":
            problem += f", and process {last['pid']} did not end when killed"
        return TaskAnswer(row["node"], None, last["output"], problem)
    if row["problem"]:
        return TaskAnswer(row["node"], None, row["output"], row["problem"])
    return TaskAnswer(row["node"], row["exit_code"], row["output"])


def _state(row: Any, suspect_after_s: float) -> NodeState:
    if row["state"] != "UP":
        return NodeState.DOWN
    silent_s = time.monotonic() - row["beat_s"]  # one clock for all processes: they are on one machine
    return NodeState.SUSPECT if silent_s > suspect_after_s else NodeState.UP


def _free_port() -> int:
    """Return a port that nobody listens on now, outside the range from which the kernel takes ports for connections."""
    chance = random.SystemRandom()
    for port in (*chance.sample(range(15000, 32000), 50), 0):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise SchedulerError("no free port on this machine")
