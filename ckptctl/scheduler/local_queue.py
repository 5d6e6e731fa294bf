"""The queue of the local scheduler: one SQLite file, the only thing that connects controller, nodes and jobs.

Whoever wants something writes a row, whoever can do it looks every few milliseconds. The file must lie on a file system
with working locks and shared memory maps (WAL); it holds the jobs' environments and is readable by its owner only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ckptctl.errors import SchedulerError
from ckptctl.model.job import Job, JobState

POLL_S = 0.025
LOST = 137  # what a task counts as whose node is lost: as if killed
ENDED = 143  # a task that was ended before it began

ENV_STATE = "CKPTCTL_LOCAL_STATE"
ENV_JOB = "CKPTCTL_LOCAL_JOB"
ENV_RESTART = "CKPTCTL_LOCAL_RESTART"
ENV_NODE = "CKPTCTL_LOCAL_NODE"
ENV_BOOT_ID = "CKPTCTL_LOCAL_BOOT_ID"
ENV_TASK = "CKPTCTL_LOCAL_TASK"
ENV_ALL = (ENV_STATE, ENV_JOB, ENV_RESTART, ENV_NODE, ENV_BOOT_ID, ENV_TASK)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS controller (
    pid INTEGER NOT NULL, start INTEGER NOT NULL, kill_wait_s REAL NOT NULL, suspect_after_s REAL NOT NULL);
CREATE TABLE IF NOT EXISTS nodes (
    name TEXT PRIMARY KEY, ordinal INTEGER NOT NULL, slots INTEGER NOT NULL, boot_id TEXT NOT NULL,
    state TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '', beat_s REAL NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT, restart INTEGER NOT NULL DEFAULT 0, user TEXT NOT NULL, name TEXT NOT NULL,
    state TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '', argv TEXT NOT NULL, env TEXT NOT NULL, cwd TEXT NOT NULL,
    stdout TEXT, node_count INTEGER NOT NULL, tasks_per_node INTEGER NOT NULL, requeueable INTEGER NOT NULL,
    nodes TEXT NOT NULL DEFAULT '[]', boots TEXT NOT NULL DEFAULT '[]', excluded TEXT NOT NULL DEFAULT '[]',
    comment TEXT NOT NULL DEFAULT '', held INTEGER NOT NULL DEFAULT 0, next TEXT NOT NULL DEFAULT '', end_at_s REAL,
    exit_code INTEGER);
CREATE TABLE IF NOT EXISTS launches (
    id INTEGER PRIMARY KEY AUTOINCREMENT, job INTEGER NOT NULL, restart INTEGER NOT NULL, kind TEXT NOT NULL,
    argv TEXT NOT NULL, env TEXT NOT NULL, cwd TEXT NOT NULL, launcher INTEGER NOT NULL, exit_code INTEGER);
CREATE TABLE IF NOT EXISTS tasks (
    id INTEGER PRIMARY KEY AUTOINCREMENT, launch INTEGER NOT NULL, node TEXT NOT NULL, boot_id TEXT NOT NULL,
    env TEXT NOT NULL, state TEXT NOT NULL DEFAULT 'WAITING', pid INTEGER, start INTEGER, exit_code INTEGER,
    output TEXT NOT NULL DEFAULT '', problem TEXT NOT NULL DEFAULT '', kill_at_s REAL, grace_s REAL);
CREATE INDEX IF NOT EXISTS tasks_launch ON tasks (launch);
CREATE INDEX IF NOT EXISTS tasks_boot ON tasks (boot_id, state);
CREATE TABLE IF NOT EXISTS signals (
    id INTEGER PRIMARY KEY AUTOINCREMENT, boot_id TEXT NOT NULL, task INTEGER, number INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS ends (
    boot_id TEXT NOT NULL, job INTEGER NOT NULL, restart INTEGER NOT NULL, done INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (boot_id, job, restart));
"""


@dataclass(frozen=True)
class NewTask:
    """A task to be started on one boot of one node, with the variables that only it gets."""

    node: str
    boot_id: str
    env: Mapping[str, str] = field(default_factory=dict)


class Queue:
    """One connection to the queue. Use it in the thread that opened it; every error is a `SchedulerError`."""

    def __init__(self, state: Path, *, create: bool = False) -> None:
        self.path = state / "queue.sqlite"
        if create:
            state.mkdir(parents=True, exist_ok=True, mode=0o700)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        elif not self.path.exists():
            raise SchedulerError("no local cluster here", context=str(self.path), hint="start one: `ckptctl demo`")
        try:
            self._db = sqlite3.connect(self.path, timeout=20, isolation_level=None)
            self._db.row_factory = sqlite3.Row
            if create:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.executescript(_SCHEMA)
            self._db.execute("PRAGMA synchronous=OFF")  # the cluster does not outlive the machine anyway
        except sqlite3.Error as exc:
            raise self._error(exc) from exc

    def _error(self, exc: sqlite3.Error) -> SchedulerError:
        return SchedulerError(f"the local queue does not work: {exc}", context=str(self.path))

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def rows(self, sql: str, *values: Any) -> list[Any]:
        """Return all rows of a query."""
        try:
            return self._db.execute(sql, values).fetchall()
        except sqlite3.Error as exc:
            raise self._error(exc) from exc

    def row(self, sql: str, *values: Any) -> Any:
        """Return the first row of a query, or None."""
        found = self.rows(sql, *values)
        return found[0] if found else None

    def change(self, sql: str, *values: Any) -> int:
        """Change rows; return how many."""
        try:
            return self._db.execute(sql, values).rowcount
        except sqlite3.Error as exc:
            raise self._error(exc) from exc

    def insert(self, sql: str, *values: Any) -> int:
        """Insert a row; return its id."""
        try:
            return self._db.execute(sql, values).lastrowid or 0
        except sqlite3.Error as exc:
            raise self._error(exc) from exc

    def version(self) -> int:
        """Return a number that changes when another connection has changed the queue."""
        return int(self.row("PRAGMA data_version")[0])

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Hold the only write lock: what is read inside stays true until it is left."""
        self.change("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.change("ROLLBACK")
            raise
        self.change("COMMIT")

    # What more than one of controller, node and job does; inside a transaction where it says so.

    def job_row(self, job_id: str) -> Any:
        """Return the row of a job, or None."""
        if not re.fullmatch(r"[0-9]{1,18}", job_id):
            return None
        return self.row("SELECT * FROM jobs WHERE id = ?", int(job_id))

    def node_rows(self) -> dict[str, Any]:
        """Return the nodes by name, in order."""
        return {row["name"]: row for row in self.rows("SELECT * FROM nodes ORDER BY ordinal")}

    def is_up(self, boot_id: str) -> bool:
        """Whether this boot of a node is the one that the controller works with."""
        return self.row("SELECT 1 FROM nodes WHERE boot_id = ? AND state = 'UP'", boot_id) is not None

    def kill_wait_s(self) -> float:
        """Return the seconds between SIGTERM and SIGKILL."""
        row = self.row("SELECT kill_wait_s FROM controller")
        return float(row[0]) if row else 0.0

    def add_launch(
        self,
        job: Any,
        kind: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        tasks: Sequence[NewTask],
        *,
        launcher: int = 0,
        kill_at_s: float | None = None,
    ) -> int:
        """Order tasks of one command (in a transaction); a task whose node is not up counts as lost at once.

        `launcher` is the process whose stdout and stderr the tasks share; 0 means the job's own output.
        """
        launch = self.insert(
            "INSERT INTO launches (job, restart, kind, argv, env, cwd, launcher) VALUES (?, ?, ?, ?, ?, ?, ?)",
            job["id"], job["restart"], kind, json.dumps(list(argv)), json.dumps(dict(env)), cwd, launcher,
        )  # fmt: skip
        lost = False
        for task in tasks:
            up = self.is_up(task.boot_id)
            lost = lost or not up
            self.insert(
                "INSERT INTO tasks (launch, node, boot_id, env, state, exit_code, problem, kill_at_s)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                launch, task.node, task.boot_id, json.dumps(dict(task.env)), "WAITING" if up else "DONE",
                None if up else LOST, "" if up else f"node {task.node} is down", kill_at_s,
            )  # fmt: skip
        if lost and kind == "task":
            self.fail_launch(launch, LOST)
        return launch

    def fail_launch(self, launch: int, code: int) -> None:
        """Record the first failure of a launch and have its other tasks ended (in a transaction)."""
        if self.change("UPDATE launches SET exit_code = ? WHERE id = ? AND exit_code IS NULL", code, launch):
            self.end_launch(launch, self.kill_wait_s())

    def end_launch(self, launch: int, grace_s: float) -> None:
        """Have all tasks of a launch ended: SIGTERM, then SIGKILL after `grace_s` (in a transaction)."""
        self.change("UPDATE tasks SET state = 'DONE', exit_code = ? WHERE launch = ? AND state = 'WAITING'", ENDED, launch)
        self.change(
            "UPDATE tasks SET grace_s = ? WHERE launch = ? AND state = 'RUNNING' AND (grace_s IS NULL OR grace_s > ?)",
            grace_s, launch, grace_s,
        )  # fmt: skip

    def lose_boot(self, name: str, boot_id: str, reason: str) -> None:
        """Take a boot of a node for dead: its tasks have failed (in a transaction)."""
        self.change("UPDATE nodes SET state = 'DOWN', reason = ? WHERE boot_id = ?", reason, boot_id)
        launches = self.rows(
            "SELECT DISTINCT launch FROM tasks JOIN launches ON launches.id = launch"
            " WHERE boot_id = ? AND state != 'DONE' AND kind = 'task'",
            boot_id,
        )
        self.change(
            "UPDATE tasks SET state = 'DONE', exit_code = ?, problem = ? WHERE boot_id = ? AND state != 'DONE'",
            LOST, f"node {name} is lost: {reason}", boot_id,
        )  # fmt: skip
        for row in launches:
            self.fail_launch(row["launch"], LOST)

    def complete(self, job_id: int, following: JobState, reason: str, *, held: bool = False) -> None:
        """Make a job COMPLETING: its processes are ended, then it becomes `following` (in a transaction)."""
        self.change(
            "UPDATE jobs SET state = ?, next = ?, reason = ?, held = ?, end_at_s = NULL WHERE id = ?",
            JobState.COMPLETING.value, following.value, reason, int(held), job_id,
        )  # fmt: skip
        self.change(
            "UPDATE tasks SET state = 'DONE', exit_code = ? WHERE state = 'WAITING'"
            " AND launch IN (SELECT id FROM launches WHERE job = ?)",
            ENDED, job_id,
        )  # fmt: skip


def job_of(row: Any) -> Job:
    """Return a row of the queue as a job."""
    nodes = tuple(json.loads(row["nodes"]))
    return Job(
        id=str(row["id"]),
        restart=row["restart"],
        user=row["user"],
        state=JobState(row["state"]),
        nodes=nodes,
        batch_host=nodes[0] if nodes else "",
        requeueable=bool(row["requeueable"]),
        excluded=tuple(json.loads(row["excluded"])),
        comment=row["comment"],
        reason=row["reason"],
        name=row["name"],
    )
