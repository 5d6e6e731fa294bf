"""A whole job on an embedded cluster: what `ckptctl run --scheduler local` does outside a job."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from ckptctl.errors import RequeueRefused, SchedulerError
from ckptctl.model.job import JobState, comment_value
from ckptctl.scheduler.local_controller import LocalCluster

_FOREVER_S = 10 * 365 * 86400.0


def run_here(argv: list[str], *, nodes: int, tasks_per_node: int, name: str) -> int:
    """Submit `ckptctl argv…` as a local job, see it through its requeues, and return its exit code.

    SIGINT and SIGTERM cancel the job: it does not come back, and the code is 128 and the signal's number. SIGUSR1 goes to its
    batch process: the ranks stop, save, and the job is requeued. Every process of the cluster is gone when this returns.
    """
    _append_to_output()
    with (
        tempfile.TemporaryDirectory(prefix="ckptctl-local-") as state,
        LocalCluster(Path(state), nodes=nodes, slots=tasks_per_node) as cluster,
    ):
        command = [sys.executable, "-m", "ckptctl.cli.main", *argv]
        job_id = cluster.submit(command, nodes=nodes, tasks_per_node=tasks_per_node, name=name)

        noted: list[int] = []
        ended_by: list[int] = []

        def obey() -> None:
            while noted:
                number = noted.pop(0)
                if number == signal.SIGUSR1:
                    cluster.signal(job_id, number)
                else:
                    ended_by.append(number)
                    cluster.cancel(job_id)

        def note(number: int, _frame: FrameType | None) -> None:
            noted.append(number)

        before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
        try:
            job = cluster.run_until(job_id, deadline_s=_FOREVER_S, between=obey)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if ended_by and job.state is JobState.CANCELLED:
            return 128 + ended_by[0]
        if job.state is JobState.PENDING:
            if "held" in job.reason.lower():
                raise RequeueRefused(
                    f"the job is held: {comment_value(job.comment, 'ckptctl') or job.reason}",
                    hint="see `ckptctl list ROOT --incarnations`; correct the cause and run it again",
                )
            raise SchedulerError(f"the job cannot start again: {job.reason}", hint="give it more nodes (--nodes)")
        code = cluster.exit_code(job_id)
        return 1 if code is None else code


def _append_to_output() -> None:
    """Have everybody who writes to our output write at its end: ranks open the file anew, with an offset of their own."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_APPEND)
