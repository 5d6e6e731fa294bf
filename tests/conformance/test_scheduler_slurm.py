"""The scheduler conformance suite on a real Slurm."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from ckptctl.model.job import JobState
from ckptctl.scheduler import slurm_text
from ckptctl.testing.scheduler import CHECKS, SchedulerHarness
from tests.support.cluster import Cluster
from tests.support.processes import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.NODE_FAIL, JobState.TIMEOUT)
CREDENTIAL_S = 2.5
"""A job may not start in the second in which its last credential was revoked: slurmd takes the new one for the old."""


class SlurmHarness:
    """The rig as the suite wants it. Nodes and the test process see the folder of the rig under the same path."""

    scheduler = "slurm"
    python = sys.executable
    patience_s = 45.0
    hang_s = 5.0

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.shared: Path = cluster.base / "conformance"
        self.node_names: Sequence[str] = sorted(cluster.nodes)
        self._pending: dict[tuple[str, int], float] = {}

    def submit(self, argv: Sequence[str], *, nodes: int, tasks_per_node: int, outlives_nodes: bool) -> str:
        options = [f"--nodes={nodes}", f"--ntasks-per-node={tasks_per_node}", "--requeue", "--exclusive"]
        options += ["--no-kill"] if outlives_nodes else []
        return str(self.cluster.sbatch(f"exec {shlex.join(argv)}\n", *options))

    def call(self, argv: Sequence[str]) -> int:
        return self.cluster.run(argv, self.patience_s).returncode

    def state(self, job_id: str) -> JobState:
        return slurm_text.job_state(self.cluster.job(int(job_id))["JobState"])

    def wait(self, condition: Callable[[], bool], *, deadline_s: float, what: str) -> None:
        def probe() -> bool | None:
            self._shorten_waits()
            return condition() or None

        wait_for(what, probe, deadline_s, log=self.cluster.slurmctld_log, poll_s=0.2)

    def _shorten_waits(self) -> None:
        """Let requeued jobs start soon instead of after Slurm's 121 s."""
        for line in self.cluster.run(
            ["squeue", "--noheader", "--states=PENDING", "--format=%A %r"], check=True
        ).stdout.splitlines():
            number, _, reason = line.partition(" ")
            if reason == "BeginTime":
                job = int(number), int(self.cluster.job(int(number))["Restarts"])
                if time.monotonic() - self._pending.setdefault((str(job[0]), job[1]), time.monotonic()) > CREDENTIAL_S:
                    self.cluster.release(job[0])

    def release(self, job_id: str) -> None:
        self.cluster.run(["scontrol", "release", job_id], check=True)

    def cancel(self, job_id: str) -> None:
        self.cluster.run(["scancel", job_id])
        self.wait(lambda: self.state(job_id) in ENDED, deadline_s=self.patience_s, what="the end of a cancelled job")

    def lose_node(self, name: str) -> None:
        self.cluster.node(name).kill()

    def bring_back(self, name: str) -> None:
        self.cluster.restore()

    def output(self, job_id: str) -> str:
        return self.cluster.job_output(int(job_id))[-4000:]


@pytest.fixture(scope="module")
def harness(cluster: Cluster) -> Iterator[SlurmHarness]:
    """The rig, with time enough between SIGTERM and SIGKILL for the driver to write down what it sees after SIGTERM."""
    configuration = cluster.base / "etc" / "slurm" / "slurm.conf"
    before = configuration.read_text()
    configuration.write_text(before.replace("KillWait=5", "KillWait=15"))
    assert configuration.read_text() != before
    cluster.run(["scontrol", "reconfigure"], check=True)
    yield SlurmHarness(cluster)
    configuration.write_text(before)
    cluster.run(["scontrol", "reconfigure"], check=True)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_check(check: Callable[[SchedulerHarness], None], harness: SlurmHarness) -> None:
    check(harness)
