"""The daemon of one local node: `python -m ckptctl.scheduler.local_node STATE NAME`, started by the controller.

The node is this process's group. The daemon starts what is ordered for its boot, tells how it ended, and ends it when
asked. It never outlives its controller, and nothing it started outlives it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ckptctl.scheduler import local_process as process
from ckptctl.scheduler.local_queue import (
    ENV_BOOT_ID,
    ENV_JOB,
    ENV_NODE,
    ENV_RESTART,
    ENV_STATE,
    ENV_TASK,
    POLL_S,
    Queue,
)

BEAT_S = 1.0
_OUTPUT_LIMIT_BYTES = 4 << 20  # of a probe's answer; the rest is cut


@dataclass
class _Task:
    """A running task: its main process and, once its end was ordered, when it is killed."""

    id: int
    launch: int
    kind: str
    pid: int
    popen: subprocess.Popen[bytes]
    answer: Path | None
    deadline_s: float | None
    end_at_s: float | None = None
    overdue: bool = False


@dataclass
class _JobEnd:
    """The end of a job on this node, ordered by the controller."""

    job: int
    restart: int
    kill_at_s: float


@dataclass
class NodeDaemon:
    """The loop of one node in one boot."""

    queue: Queue
    state: Path
    name: str
    boot_id: str
    controller: int
    tasks: dict[int, _Task] = field(default_factory=dict)  # by process id
    ends: list[_JobEnd] = field(default_factory=list)
    seen: int = -1
    beat_s: float = 0.0

    def run(self) -> None:
        """Serve until the controller is gone."""
        wake, wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # with a handler the death of a child ends the wait below
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        process.adopt_orphans()
        self.queue.change("UPDATE nodes SET state = 'UP' WHERE boot_id = ? AND state = 'STARTING'", self.boot_id)
        while os.getppid() == self.controller:
            self._reap()
            self._beat()
            version = self.queue.version()
            if version != self.seen:
                self.seen = version
                self._take_orders()
            self._enforce()
            if select.select([wake], [], [], POLL_S)[0]:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)

    def end_everything(self) -> None:
        """SIGKILL every process of this node except this one."""
        me = os.getpid()

        def others() -> list[process.Proc]:
            self._collect()
            return [proc for proc in process.members(me, ENV_BOOT_ID, self.boot_id) if proc.pid != me]

        process.kill_all(others, deadline_s=5)

    # orders

    def _take_orders(self) -> None:
        for row in self.queue.rows("SELECT * FROM signals WHERE boot_id = ? ORDER BY id", self.boot_id):
            for task in self.tasks.values():
                if task.id == row["task"]:
                    self._signal([task.pid], row["number"])
            if row["task"] is None:
                self._signal([proc.pid for proc in self._mine()], row["number"])
            self.queue.change("DELETE FROM signals WHERE id = ?", row["id"])
        for row in self.queue.rows("SELECT job, restart FROM ends WHERE boot_id = ? AND done = 0 ORDER BY job", self.boot_id):
            if not any(end.job == row["job"] and end.restart == row["restart"] for end in self.ends):
                self.ends.append(_JobEnd(row["job"], row["restart"], time.monotonic() + self.queue.kill_wait_s()))
                self._terminate(self._mine())
        for row in self.queue.rows(
            "SELECT id, grace_s FROM tasks WHERE boot_id = ? AND state = 'RUNNING' AND grace_s IS NOT NULL",
            self.boot_id,
        ):
            for task in self.tasks.values():
                if task.id == row["id"]:
                    self._end_task(task, row["grace_s"])
        for row in self.queue.rows(
            "SELECT tasks.*, job, launches.restart AS restart, kind, launches.argv AS argv, launches.cwd AS cwd,"
            " launcher, launches.env AS launch_env, stdout"
            " FROM tasks JOIN launches ON launches.id = launch JOIN jobs ON jobs.id = job"
            " WHERE boot_id = ? AND tasks.state = 'WAITING' ORDER BY tasks.id",
            self.boot_id,
        ):
            self._start(row)

    def _start(self, row: Any) -> None:
        if not self.queue.change(
            "UPDATE tasks SET state = 'RUNNING' WHERE id = ? AND state = 'WAITING' AND boot_id IN"
            " (SELECT boot_id FROM nodes WHERE state = 'UP')",
            row["id"],
        ):
            return
        env = {
            **json.loads(row["launch_env"]),
            **json.loads(row["env"]),
            ENV_STATE: str(self.state),
            ENV_JOB: str(row["job"]),
            ENV_RESTART: str(row["restart"]),
            ENV_NODE: self.name,
            ENV_BOOT_ID: self.boot_id,
            ENV_TASK: str(row["id"]),
        }
        answer = self.state / "nodes" / self.name / f"answer-{row['id']}" if row["kind"] == "probe" else None
        argv = json.loads(row["argv"])
        with contextlib.ExitStack() as files:
            err = 2
            try:
                out, err = self._outputs(row, answer, files)
                popen = subprocess.Popen(
                    argv,
                    cwd=row["cwd"],
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    preexec_fn=functools.partial(process.die_with, os.getpid()),  # noqa: PLW1509 - one thread
                )
            except (OSError, ValueError) as exc:
                problem = f"can't start {argv[0]!r} on node {self.name}: {exc}"
                os.write(err, f"ckptctl: {problem}\n".encode())
                self._finish(row["id"], row["launch"], row["kind"], 126 if isinstance(exc, PermissionError) else 127,
                             problem=problem)  # fmt: skip
                return
        born = process.read(popen.pid)
        self.tasks[popen.pid] = _Task(row["id"], row["launch"], row["kind"], popen.pid, popen, answer, row["kill_at_s"])
        self.queue.change("UPDATE tasks SET pid = ?, start = ? WHERE id = ?", popen.pid, born.start if born else 0, row["id"])

    def _outputs(self, row: Any, answer: Path | None, files: contextlib.ExitStack) -> tuple[int, int]:
        """Open stdout and stderr of a task; 1 and 2 stand for those of this process, which are the controller's."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY
        opened: list[int] = []
        for number in (1, 2):
            descriptor = number
            if number == 1 and answer is not None:
                descriptor = os.open(answer, flags | os.O_CREAT | os.O_TRUNC, 0o600)
            else:
                try:  # like srun's, the tasks' output goes where that of the launching process goes
                    # Non-blocking, or a pipe that nobody reads any more would stop the node here.
                    descriptor = os.open(f"/proc/{row['launcher'] or 'none'}/fd/{number}", flags | os.O_NONBLOCK)
                    os.set_blocking(descriptor, True)
                except OSError:  # the launcher is the controller, has ended, or writes to a socket
                    if row["stdout"]:
                        descriptor = os.open(row["stdout"], flags | os.O_CREAT, 0o644)
            if descriptor != number:
                files.callback(os.close, descriptor)
            opened.append(descriptor)
        return opened[0], opened[1]

    # ends

    def _collect(self) -> list[tuple[int, int]]:
        """Reap the dead children; return process id and exit code of each."""
        dead: list[tuple[int, int]] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return dead
            if not pid:
                return dead
            code = os.waitstatus_to_exitcode(status)
            dead.append((pid, code if code >= 0 else 128 - code))

    def _reap(self) -> None:
        ended = False
        for pid, code in self._collect():
            task = self.tasks.pop(pid, None)
            if task is None:
                continue  # an orphan that was adopted
            ended = True
            task.popen.returncode = code  # it was reaped here: Popen must not look for it
            output = ""
            if task.answer is not None:
                with contextlib.suppress(OSError):
                    with task.answer.open("rb") as file:
                        output = file.read(_OUTPUT_LIMIT_BYTES).decode(errors="replace")
                    task.answer.unlink()
            problem = "not done within its deadline" if task.overdue else ""
            self._finish(task.id, task.launch, task.kind, code, output=output, problem=problem)
        if ended:
            self._end_leftovers()

    def _finish(self, task: int, launch: int, kind: str, code: int, *, output: str = "", problem: str = "") -> None:
        with self.queue.transaction():
            if not self.queue.is_up(self.boot_id):
                return  # partitioned: what happens here reaches nobody
            new = self.queue.change(
                "UPDATE tasks SET state = 'DONE', exit_code = ?, output = ?, problem = ?"
                " WHERE id = ? AND state != 'DONE'",
                code, output, problem, task,
            )  # fmt: skip
            if new and code and kind == "task":
                self.queue.fail_launch(launch, code)
                self.seen = -1  # its other tasks may be ours, and our own changes don't show in the version

    def _end_leftovers(self) -> None:
        """SIGKILL what ended tasks left behind, as a jobstep does; the batch command's go with the job."""
        running = {str(task.id) for task in self.tasks.values()}
        table = process.every()
        for proc in table.values():
            if proc.parent != os.getpid() or proc.pid in self.tasks:
                continue
            mark = process.variable(proc.pid, ENV_TASK)
            if mark is None or mark in running:
                continue
            row = self.queue.row("SELECT kind FROM launches JOIN tasks ON launch = launches.id WHERE tasks.id = ?",
                                 mark)  # fmt: skip
            if row is not None and row["kind"] != "batch":
                for one in (*process.descendants(proc.pid, table), proc):
                    process.send(one, signal.SIGKILL)

    def _end_task(self, task: _Task, grace_s: float) -> None:
        end_at_s = time.monotonic() + grace_s
        if task.end_at_s is None:
            task.end_at_s = end_at_s
            if grace_s > 0:
                self._terminate(self._tree(task))
        task.end_at_s = min(task.end_at_s, end_at_s)

    def _enforce(self) -> None:
        """Kill what has used up its grace; report the jobs whose last process has gone."""
        now = time.monotonic()
        for task in self.tasks.values():
            if task.deadline_s is not None and now >= task.deadline_s:
                task.end_at_s = now
                task.overdue = True  # so that its death is not taken for an answer
            if task.end_at_s is not None and now >= task.end_at_s:
                for proc in self._tree(task):
                    process.send(proc, signal.SIGKILL)
        for end in list(self.ends):
            left = self._mine()
            if not left and not self.tasks:
                self.ends.remove(end)
                self.queue.change(
                    "UPDATE ends SET done = 1 WHERE boot_id = ? AND job = ? AND restart = ?",
                    self.boot_id, end.job, end.restart,
                )  # fmt: skip
            elif now >= end.kill_at_s:
                for proc in left:
                    process.send(proc, signal.SIGKILL)

    # processes

    def _mine(self) -> list[process.Proc]:
        """Return all processes of the job on this node: a node serves one job at a time."""
        return process.descendants(os.getpid(), process.every())

    def _tree(self, task: _Task) -> list[process.Proc]:
        table = process.every()
        main = table.get(task.pid)
        return ([main] if main else []) + process.descendants(task.pid, table)

    def _terminate(self, procs: list[process.Proc]) -> None:
        for proc in procs:
            process.send(proc, signal.SIGTERM)
            process.send(proc, signal.SIGCONT)  # a stopped process can't die of SIGTERM

    def _signal(self, pids: list[int], number: int) -> None:
        for pid in pids:
            proc = process.read(pid)
            if proc is not None:
                process.send(proc, number)

    def _beat(self) -> None:
        now = time.monotonic()
        if now - self.beat_s >= BEAT_S:
            self.beat_s = now
            self.queue.change("UPDATE nodes SET beat_s = ? WHERE boot_id = ?", now, self.boot_id)


def main() -> int:
    """Run the daemon of the node that argv names."""
    state, name = Path(sys.argv[1]), sys.argv[2]
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)  # an ignored signal would stay ignored in every task
    # Descriptors 1 and 2 stay the controller's, for tasks without an output file; what Python says goes to the log.
    sys.stderr = (state / "nodes" / name / "node.log").open("a", buffering=1)
    with Queue(state) as queue:
        row = queue.row("SELECT boot_id, pid FROM nodes, controller WHERE name = ?", name)
        daemon = NodeDaemon(queue, state, name, row["boot_id"], row["pid"])
        try:
            daemon.run()
        finally:
            daemon.end_everything()
    return 0


if __name__ == "__main__":
    sys.exit(main())
