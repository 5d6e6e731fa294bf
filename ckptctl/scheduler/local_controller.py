"""The controller of the local scheduler: nodes, allocations and the life of jobs, driven by its caller.

It does nothing between two calls of `step`: whoever owns a `LocalCluster` steps it, most often through `run_until`.
"""

from __future__ import annotations

import json
import os
import pwd
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptctl import events
from ckptctl.errors import DeadlineExceeded, SchedulerError, UsageError
from ckptctl.model.job import Job, JobState, NodeState
from ckptctl.scheduler import local_process as process
from ckptctl.scheduler.local_queue import ENV_ALL, ENV_BOOT_ID, POLL_S, NewTask, Queue, job_of

_UNFINISHED = (JobState.PENDING, JobState.RUNNING, JobState.COMPLETING)
_START_DEADLINE_S = 60.0
_KILL_DEADLINE_S = 15.0
_PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])


@dataclass
class _Boot:
    """A node daemon that this controller started and has not verified to be gone."""

    node: str
    boot_id: str
    popen: subprocess.Popen[bytes]
    partitioned: bool = False

    def died(self) -> bool:
        """Whether the daemon has ended. It is left unreaped, so that its group's id can't be given away yet."""
        if self.popen.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def members(self) -> list[process.Proc]:
        """Return the living processes of the node, its daemon first; none once it was verified gone and reaped.

        First, because ends go in this order: a daemon that outlived its tasks for a moment would report their deaths.
        """
        if self.popen.returncode is not None:
            return []
        found = process.members(self.popen.pid, ENV_BOOT_ID, self.boot_id)
        return sorted(found, key=lambda proc: proc.pid != self.popen.pid)


class LocalCluster:
    """Nodes that are process groups on this machine, a queue, and the rules by which Slurm treats jobs.

    A job gets whole nodes, its batch command runs on the first of them. A node is lost when its daemon is gone: its
    tasks count as killed, and the job is requeued when it was the batch host (other losses are left to the job, as with
    `--no-kill`). `step` must be called often: nothing is noticed or started otherwise. `close`, or leaving the `with`
    block, ends every process of the cluster; they also end by themselves within moments of this process's death.

    Use it from one thread. `on_change` is called with a job whenever its state has changed.
    """

    def __init__(
        self,
        state: Path,
        nodes: int,
        slots: int,
        *,
        kill_wait_s: float = 5.0,
        suspect_after_s: float = 10.0,
        on_change: Callable[[Job], None] | None = None,
    ) -> None:
        if nodes < 1 or slots < 1:
            raise UsageError("a local cluster has at least one node and one slot", context=f"{nodes} nodes, {slots} slots")
        self.state = state.resolve()
        self.slots = slots
        self.node_names = tuple(f"n{ordinal + 1}" for ordinal in range(nodes))
        self._kill_wait_s = kill_wait_s
        self._on_change = on_change
        self._told: dict[int, tuple[JobState, int]] = {}
        self._boots: dict[str, _Boot] = {}  # by node
        self._queue = Queue(self.state, create=True)
        self._closed = False
        self._in_charge = False
        try:
            self._take_over(suspect_after_s)
            for name in self.node_names:
                self._boot(name)
            self._wait_for_nodes(self.node_names)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # jobs

    def submit(
        self,
        argv: Sequence[str],
        *,
        nodes: int,
        tasks_per_node: int = 1,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        name: str = "",
        stdout: Path | None = None,
        requeueable: bool = True,
    ) -> str:
        """Queue a job and return its id; it starts with a later `step`.

        `argv` runs once, on the first node, with `env` added to the environment of this process. stdout and stderr of
        the job are appended to the file `stdout`, or go where those of this process go.
        """
        if not argv or not 1 <= tasks_per_node <= self.slots or not 1 <= nodes <= len(self.node_names):
            raise UsageError(
                "the local cluster can never run this job",
                context=f"{nodes} nodes with {tasks_per_node} tasks each asked for,"
                f" {len(self.node_names)} nodes with {self.slots} slots there, command {list(argv)}",
            )
        base = {key: value for key, value in os.environ.items() if key not in ENV_ALL}
        number = self._queue.insert(
            "INSERT INTO jobs (user, name, state, argv, env, cwd, stdout, node_count, tasks_per_node, requeueable)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            _user(), name or Path(argv[0]).name, JobState.PENDING.value, json.dumps(list(argv)),
            json.dumps({**base, **(env or {})}), str((cwd or Path.cwd()).resolve()),
            str(stdout.resolve()) if stdout else None, nodes, tasks_per_node, int(requeueable),
        )  # fmt: skip
        return str(number)

    def job(self, job_id: str) -> Job:
        """Return a job as it is now; `SchedulerError` for one that was never submitted."""
        return job_of(self._row(job_id))

    def exit_code(self, job_id: str) -> int | None:
        """Return the exit code of the last batch command of a job, None when none has ended yet."""
        code = self._row(job_id)["exit_code"]
        return None if code is None else int(code)

    def cancel(self, job_id: str) -> None:
        """End a job for good: SIGTERM, SIGKILL after the kill wait, CANCELLED. No error when it has ended."""
        with self._queue.transaction():
            row = self._row(job_id)
            state = JobState(row["state"])
            if state is JobState.PENDING:
                self._set_state(row["id"], JobState.CANCELLED, "cancelled")
            elif state is JobState.RUNNING:
                self._queue.complete(row["id"], JobState.CANCELLED, "cancelled")
            elif state is JobState.COMPLETING and row["next"] == JobState.PENDING.value:
                self._queue.change(
                    "UPDATE jobs SET next = ?, reason = 'cancelled', held = 0 WHERE id = ?",
                    JobState.CANCELLED.value, row["id"],
                )  # fmt: skip

    def requeue(self, job_id: str, *, hold: bool = False) -> None:
        """Send a running job back to the queue from outside, as an administrator does."""
        with self._queue.transaction():
            row = self._row(job_id)
            if row["state"] == JobState.RUNNING.value:
                self._queue.complete(row["id"], JobState.PENDING, "requeued from outside", held=hold)

    def release(self, job_id: str) -> None:
        """Let a held job start again."""
        self._queue.change("UPDATE jobs SET held = 0 WHERE id = ?", self._row(job_id)["id"])

    def signal(self, job_id: str, number: int, *, batch_only: bool = True) -> None:
        """Send a signal to the batch command's process, or to every process of the job on its nodes."""
        with self._queue.transaction():
            row = self._row(job_id)
            if batch_only:
                self._queue.change(
                    "INSERT INTO signals (boot_id, task, number) SELECT boot_id, tasks.id, ? FROM tasks"
                    " JOIN launches ON launches.id = launch"
                    " WHERE job = ? AND restart = ? AND kind = 'batch' AND state = 'RUNNING'",
                    number, row["id"], row["restart"],
                )  # fmt: skip
            elif JobState(row["state"]).alive:
                for boot_id in self._live_boots(row):
                    self._queue.change("INSERT INTO signals (boot_id, number) VALUES (?, ?)", boot_id, number)

    # driving

    def step(self) -> None:
        """Notice what has happened, do what is due, and return at once."""
        self._notice_lost_nodes()
        for row in self._queue.rows("SELECT * FROM jobs WHERE state = 'RUNNING' ORDER BY id"):
            self._look_after(row)
        for row in self._queue.rows("SELECT * FROM jobs WHERE state = 'COMPLETING' ORDER BY id"):
            self._go_on_ending(row)
        for row in self._queue.rows("SELECT * FROM jobs WHERE state = 'PENDING' ORDER BY id"):
            self._try_to_start(row)
        if self._on_change is not None:
            for row in self._queue.rows("SELECT * FROM jobs ORDER BY id"):
                now = (JobState(row["state"]), int(row["restart"]))
                if self._told.get(row["id"]) != now:
                    self._told[row["id"]] = now
                    self._on_change(job_of(row))

    def wait(self, condition: Callable[[], bool], *, deadline_s: float, what: str) -> None:
        """Step until `condition` holds; `DeadlineExceeded`, naming `what` was waited for, when it does not in time."""
        end_s = time.monotonic() + deadline_s
        while True:
            self.step()
            if condition():
                return
            if time.monotonic() > end_s:
                raise DeadlineExceeded(f"not within {deadline_s:g} s: {what}", context=str(self.state))
            time.sleep(POLL_S)

    def run_until(self, job_id: str, *, deadline_s: float, between: Callable[[], None] = lambda: None) -> Job:
        """Step until the job has ended, or waits for what only the caller can give; return it.

        A returned job that is PENDING is held or lacks nodes (`reason`): `release` or `start_node` and call again.
        `between` is called after every step. `DeadlineExceeded` when neither happens in time.
        """

        def settled() -> bool:
            between()
            return self._settled(job_id)

        self.wait(
            settled,
            deadline_s=deadline_s,
            what=f"the end of job {job_id}, {self._row(job_id)['state']}",
        )
        return self.job(job_id)

    # nodes

    def nodes(self) -> dict[str, NodeState]:
        """Return the state of every node."""
        return {name: node_state(row["state"]) for name, row in self._queue.node_rows().items()}

    def node_pids(self, name: str) -> list[int]:
        """Return the ids of the living processes of a node, its daemon's first; empty for a node that is gone."""
        boot = self._boots.get(self._known(name))
        return [proc.pid for proc in boot.members()] if boot is not None else []

    def kill_node(self, name: str) -> None:
        """Lose a node: SIGKILL for all its processes, at once. The controller notices with its next `step`."""
        boot = self._boots.get(self._known(name))
        if boot is not None:
            self._end_boot(boot)

    def partition_node(self, name: str) -> None:
        """Lose sight of a node: it counts as DOWN, but its processes live on and reach the controller no more."""
        boot = self._boots.get(self._known(name))
        if boot is None:
            raise SchedulerError(f"node {name} is down already", context=str(self.state))
        boot.partitioned = True
        self._lose(boot, "not responding")

    def start_node(self, name: str) -> None:
        """Boot a node that is DOWN, and wait until it is UP. What a partition left running there is killed first."""
        self._notice_lost_nodes()
        boot = self._boots.get(self._known(name))
        if boot is not None and not boot.partitioned:
            return
        if boot is not None:
            self._end_boot(boot)
            del self._boots[name]
        self._boot(name)
        self._wait_for_nodes([name])

    def close(self) -> None:
        """End every process of the cluster and verify it; unfinished jobs become CANCELLED. Safe to call twice."""
        if self._closed:
            return
        left: list[str] = []
        for boot in self._boots.values():
            try:
                self._end_boot(boot)
            except SchedulerError as exc:
                left.append(f"{exc.message} ({exc.context})")
        self._closed = True
        try:
            if self._in_charge:
                with self._queue.transaction():
                    self._abandon(JobState.CANCELLED, "the local cluster was closed")
                    self._queue.change("DELETE FROM controller")
        finally:
            self._queue.close()
        if left:
            raise SchedulerError("processes of the local cluster could not be ended", context="; ".join(left))

    # inside

    def _row(self, job_id: str) -> Any:
        row = self._queue.job_row(job_id)
        if row is None:
            raise SchedulerError(f"the local cluster knows no job {job_id}", context=str(self.state))
        return row

    def _known(self, name: str) -> str:
        if name not in self.node_names:
            raise UsageError(f"the local cluster has no node {name!r}", context=", ".join(self.node_names))
        return name

    def _take_over(self, suspect_after_s: float) -> None:
        me = process.read(os.getpid())
        with self._queue.transaction():
            for row in self._queue.rows("SELECT * FROM controller"):
                if process.same(row["pid"], row["start"]):
                    raise SchedulerError(
                        "another controller works with this local queue",
                        context=f"process {row['pid']}, {self.state}",
                        hint="end it, or use another state folder",
                    )
            self._queue.change("DELETE FROM controller")
            self._queue.change(
                "INSERT INTO controller VALUES (?, ?, ?, ?)",
                os.getpid(), me.start if me else 0, self._kill_wait_s, suspect_after_s,
            )  # fmt: skip
            old = [row["boot_id"] for row in self._queue.node_rows().values()]
            self._abandon(JobState.NODE_FAIL, "the controller ended without closing the local cluster")
            self._queue.change("DELETE FROM nodes")
        self._in_charge = True
        # The daemons of a controller that was killed end by themselves, but maybe not yet.
        left = process.kill_all(
            lambda: [proc for proc in process.every().values() if process.variable(proc.pid, ENV_BOOT_ID) in old],
            deadline_s=_KILL_DEADLINE_S if old else 0,
        )
        if left:
            raise SchedulerError(
                "processes of an earlier local cluster could not be ended", context=str([proc.pid for proc in left])
            )

    def _abandon(self, state: JobState, reason: str) -> None:
        marks = ", ".join("?" * len(_UNFINISHED))
        self._queue.change(
            f"UPDATE jobs SET state = ?, reason = ? WHERE state IN ({marks})",  # noqa: S608 - only question marks
            state.value, reason, *(one.value for one in _UNFINISHED),
        )  # fmt: skip
        self._queue.change("UPDATE nodes SET state = 'DOWN', reason = ?", reason)
        self._queue.change("UPDATE tasks SET state = 'DONE', exit_code = 137 WHERE state != 'DONE'")

    def _boot(self, name: str) -> None:
        boot_id = f"{name}-{secrets.token_hex(8)}"
        folder = self.state / "nodes" / name
        folder.mkdir(parents=True, exist_ok=True)
        self._queue.change(
            "INSERT OR REPLACE INTO nodes (name, ordinal, slots, boot_id, state) VALUES (?, ?, ?, ?, 'STARTING')",
            name, self.node_names.index(name), self.slots, boot_id,
        )  # fmt: skip
        paths = [_PACKAGE_PARENT, *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {key: value for key, value in os.environ.items() if key not in ENV_ALL}
        popen = subprocess.Popen(
            [sys.executable, "-m", "ckptctl.scheduler.local_node", str(self.state), name],
            cwd=folder,
            env={**env, "PYTHONPATH": os.pathsep.join(paths), ENV_BOOT_ID: boot_id},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._boots[name] = _Boot(name, boot_id, popen)

    def _wait_for_nodes(self, names: Iterable[str]) -> None:
        end_s = time.monotonic() + _START_DEADLINE_S
        for name in names:
            while True:
                row = self._queue.node_rows()[name]
                if row["state"] == "UP":
                    break
                if self._boots[name].died() or time.monotonic() > end_s:
                    log = self.state / "nodes" / name / "node.log"
                    said = log.read_text(errors="replace")[-2000:] if log.exists() else ""
                    raise SchedulerError(f"local node {name} does not start", context=said or str(log))
                time.sleep(POLL_S)

    def _end_boot(self, boot: _Boot) -> None:
        left = process.kill_all(boot.members, deadline_s=_KILL_DEADLINE_S)
        if left:
            raise SchedulerError(
                f"processes of local node {boot.node} could not be ended", context=str([proc.pid for proc in left])
            )
        boot.popen.wait()  # it is dead: this only reaps it

    def _lose(self, boot: _Boot, reason: str) -> None:
        with self._queue.transaction():
            self._queue.lose_boot(boot.node, boot.boot_id, reason)
        events.emit(events.NODE_STATE, f"local node {boot.node} is DOWN: {reason}", node=boot.node, state="DOWN")

    def _notice_lost_nodes(self) -> None:
        for boot in list(self._boots.values()):
            if boot.died():
                self._end_boot(boot)
                del self._boots[boot.node]
                if not boot.partitioned:
                    self._lose(boot, "its daemon is gone")

    def _live_boots(self, row: Any) -> list[str]:
        return [boot_id for boot_id in json.loads(row["boots"]) if self._queue.is_up(boot_id)]

    def _look_after(self, row: Any) -> None:
        """See to a RUNNING job: its batch command may have ended, its batch host may be lost."""
        with self._queue.transaction():
            row = self._row(str(row["id"]))
            if row["state"] != JobState.RUNNING.value:
                return
            task = self._queue.row(
                "SELECT tasks.state, tasks.exit_code FROM tasks JOIN launches ON launches.id = launch"
                " WHERE job = ? AND restart = ? AND kind = 'batch'",
                row["id"], row["restart"],
            )  # fmt: skip
            host = json.loads(row["nodes"])[0]
            if not self._queue.is_up(json.loads(row["boots"])[0]):
                following = JobState.PENDING if row["requeueable"] else JobState.NODE_FAIL
                self._queue.complete(row["id"], following, f"NodeFail: batch host {host} is lost")
            elif task is not None and task["state"] == "DONE":
                following = JobState.COMPLETED if task["exit_code"] == 0 else JobState.FAILED
                self._queue.change("UPDATE jobs SET exit_code = ? WHERE id = ?", task["exit_code"], row["id"])
                reason = "" if task["exit_code"] == 0 else f"NonZeroExitCode: {task['exit_code']}"
                self._queue.complete(row["id"], following, reason)

    def _go_on_ending(self, row: Any) -> None:
        """See to a COMPLETING job: order its end on its nodes, wait for them, then let it become what follows."""
        number, restart = row["id"], row["restart"]
        if row["end_at_s"] is None:
            with self._queue.transaction():
                for boot_id in self._live_boots(row):
                    self._queue.change("INSERT OR IGNORE INTO ends (boot_id, job, restart) VALUES (?, ?, ?)",
                                       boot_id, number, restart)  # fmt: skip
                end_at_s = time.monotonic() + self._kill_wait_s + _KILL_DEADLINE_S
                self._queue.change("UPDATE jobs SET end_at_s = ? WHERE id = ?", end_at_s, number)
            return
        waiting = [
            one["boot_id"]
            for one in self._queue.rows("SELECT boot_id FROM ends WHERE job = ? AND restart = ? AND done = 0", number, restart)
            if self._queue.is_up(one["boot_id"])
        ]
        if waiting and time.monotonic() > row["end_at_s"]:
            # As Slurm drains a node where processes would not die; here the node can be ended as a whole.
            for boot in [boot for boot in self._boots.values() if boot.boot_id in waiting]:
                self._end_boot(boot)
                del self._boots[boot.node]
                self._lose(boot, "the job's processes did not end")
            return
        if waiting:
            return
        with self._queue.transaction():
            row = self._row(str(number))
            self._queue.change("DELETE FROM ends WHERE job = ? AND restart = ?", number, restart)
            if row["next"] != JobState.PENDING.value:
                self._set_state(number, JobState(row["next"]), row["reason"])
                return
            self._queue.change(
                "UPDATE jobs SET state = 'PENDING', restart = restart + 1, nodes = '[]', boots = '[]' WHERE id = ?",
                number,
            )

    def _set_state(self, number: int, state: JobState, reason: str) -> None:
        self._queue.change("UPDATE jobs SET state = ?, reason = ? WHERE id = ?", state.value, reason, number)

    def _try_to_start(self, row: Any) -> None:
        """Give a PENDING job its nodes and start its batch command, or say why not."""
        with self._queue.transaction():
            row = self._row(str(row["id"]))
            if row["state"] != JobState.PENDING.value:
                return
            free, lacking = self._free_nodes(row)
            if row["held"] or len(free) < row["node_count"]:
                reason = "JobHeldUser: the job is held" if row["held"] else lacking
                if reason != row["reason"]:
                    self._set_state(row["id"], JobState.PENDING, reason)
                return
            chosen = free[: row["node_count"]]
            self._queue.change(
                "UPDATE jobs SET state = 'RUNNING', reason = '', nodes = ?, boots = ?, exit_code = NULL WHERE id = ?",
                json.dumps([one["name"] for one in chosen]), json.dumps([one["boot_id"] for one in chosen]), row["id"],
            )  # fmt: skip
            task = NewTask(chosen[0]["name"], chosen[0]["boot_id"])
            self._queue.add_launch(row, "batch", json.loads(row["argv"]), json.loads(row["env"]), row["cwd"], [task])

    def _free_nodes(self, row: Any) -> tuple[list[Any], str]:
        """Return the nodes a job could have now, and, should they be too few, the reason in words."""
        excluded = set(json.loads(row["excluded"]))
        used = {
            name
            for other in self._queue.rows("SELECT nodes FROM jobs WHERE state IN ('RUNNING', 'COMPLETING')")
            for name in json.loads(other["nodes"])
        }
        free, why = [], []
        for name, node in self._queue.node_rows().items():
            if name in excluded:
                why.append(f"{name} excluded")
            elif node["state"] != "UP":
                why.append(f"{name} {node['state']}")
            elif name in used:
                why.append(f"{name} in use")
            else:
                free.append(node)
        return free, f"Resources: {row['node_count']} nodes wanted, {len(free)} free ({', '.join(why)})"

    def _settled(self, job_id: str) -> bool:
        """Whether a job has ended, or waits for something that does not come by itself."""
        row = self._row(job_id)
        state = JobState(row["state"])
        if state is not JobState.PENDING:
            return state not in _UNFINISHED
        excluded = set(json.loads(row["excluded"]))
        can_come = [
            name
            for name, node in self._queue.node_rows().items()
            if name not in excluded and node["state"] in ("UP", "STARTING")
        ]
        return bool(row["held"]) or len(can_come) < row["node_count"]


def node_state(text: str) -> NodeState:
    """Return the state of a node as the queue has it; a node that starts is not there yet."""
    return NodeState.UP if text == "UP" else NodeState.DOWN


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
