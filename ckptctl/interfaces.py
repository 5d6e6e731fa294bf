"""Protocols between rooms. The comments are contracts; the conformance suites in `ckptctl.testing` check them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ckptctl.model.job import Ability, Job, Node, NodeState, TaskAnswer
from ckptctl.model.manifest import WrittenFile


@dataclass(frozen=True)
class SchedulerCapabilities:
    """What a scheduler is, for rules that depend on it.

    `single_machine`: all its nodes are this machine by declaration, so node-local storage is shared between them.
    `launches_tasks`: `launch` starts the command once per task slot (with RANK, WORLD_SIZE and so on set); otherwise the
    command is started once on the batch host and brings its own launcher (`srun`).
    """

    single_machine: bool
    launches_tasks: bool


class Launch(Protocol):
    """A started training command."""

    def poll(self) -> int | None:
        """Return the exit code (128 + n for a death by signal n), or None while it runs. Never blocks."""

    def signal(self, number: int) -> None:
        """Pass a signal on to the command. No error when it has already ended."""

    def end(self, grace_s: float) -> None:
        """End the command: SIGTERM, then SIGKILL after `grace_s` seconds. Returns at the latest a little after that."""


class Scheduler(Protocol):
    """Everything ckptctl asks of a workload manager. Only implementations read its variables or run its commands.

    Every call that talks to the controller has a deadline of its own and raises `SchedulerError` when the controller
    says no or can't be reached.
    """

    name: str
    capabilities: SchedulerCapabilities

    def this_node(self) -> Node:
        """Return the node this process runs on. Never raises: falls back to the host name and the kernel's boot id."""

    def current_job(self) -> Job | None:
        """Return the job this process runs in, or None when it runs in none."""

    def job(self, job_id: str) -> Job | None:
        """Return a job by id, or None when the scheduler does not know it (any more)."""

    def nodes(self, names: Sequence[str]) -> dict[str, NodeState]:
        """Return the state of each named node; a node the scheduler does not know is UNKNOWN."""

    def ask_nodes(
        self, job: Job, argv: Sequence[str], *, deadline_s: float, env: Mapping[str, str] | None = None
    ) -> list[TaskAnswer]:
        """Run `argv` once on every node of the running `job`, beside whatever else runs there, and collect the answers.

        The tasks get this process's environment and `env`, which never appears in an argument list.

        One answer per node of the job, in the order of `job.nodes`. A node that can't run it, or is not done by the
        deadline, has `exit_code=None` and a `problem`; the others' answers are kept. Leaves no process of ours behind.
        """

    def launch(self, job: Job, argv: Sequence[str], env: Mapping[str, str]) -> Launch:
        """Start the training command of `job` with `env` added to the environment."""

    def run_on(self, partition: str, argv: Sequence[str], *, nodes: int) -> int:
        """Run `argv` once, on the first of `nodes` nodes of a partition, in a job of its own; its output is ours.

        Returns the exit code. Raises `UsageError` where there are no partitions, `SchedulerError` when no job can be made.
        """

    def host_list(self, nodes: Sequence[str]) -> str:
        """Return nodes as the scheduler's commands take them, for advice to people."""

    def can_requeue(self, job: Job) -> Ability:
        """Say whether `requeue` is going to work for this job, from here."""

    def requeue(self, job: Job, *, hold: bool = False) -> None:
        """Send a RUNNING job back to the queue (held, if asked). Safe to call twice: the second is a no-op.

        The scheduler ends the job's processes with SIGTERM soon after; the caller is one of them.
        """

    def exclude(self, job: Job, nodes: Sequence[str]) -> tuple[str, ...]:
        """Keep `nodes` out of the next allocation, together with those already excluded; return the whole list as read back.

        Allowed once the job is requeued. Raises `SchedulerError` when the list read back lacks one of `nodes`.
        """

    def set_comment(self, job: Job, key: str, value: str) -> None:
        """Set `key=value` in the job's comment and leave the other words of the comment as they are.

        The value may hold anything, also blanks; it comes back by `model.job.comment_value`. What is too long is cut.
        """


class Engine(Protocol):
    """Moves the bytes of one file image to storage."""

    name: str

    def write(self, dir_fd: int, name: str, image: memoryview) -> WrittenFile:
        """Create `name` in the folder `dir_fd`, write the image, make it durable, and return its proof.

        `name` must not exist. On return the file's bytes have been fsynced; the folder has not. `image` is not changed and
        must not be changed by the caller meanwhile. The checksums are those of `image`, taken in the same pass. The file
        is as long as the image, to the byte. Raises `OutOfSpace` or `StorageFault`; a partial file may then remain.
        The route in the proof is the one the bytes really took. The group can read the file, whatever the umask.
        """
