"""The scheduler conformance suite on the embedded scheduler."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from ckptctl.model.job import JobState
from ckptctl.scheduler.local_controller import LocalCluster
from ckptctl.testing.scheduler import CHECKS, SchedulerHarness

ROOT = Path(__file__).resolve().parents[2]
ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.NODE_FAIL)


class LocalHarness:
    """A local cluster as the suite wants it."""

    scheduler = "local"
    python = sys.executable
    patience_s = 20.0
    hang_s = 1.5

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster = cluster
        self.shared = folder / "shared"
        self.logs = folder
        self.node_names: Sequence[str] = cluster.node_names
        self.env: Mapping[str, str] = {"PYTHONPATH": str(ROOT)}

    def submit(self, argv: Sequence[str], *, nodes: int, tasks_per_node: int, outlives_nodes: bool) -> str:
        log = self.logs / "jobs.log"
        return self.cluster.submit(argv, nodes=nodes, tasks_per_node=tasks_per_node, env=self.env, stdout=log)

    def call(self, argv: Sequence[str]) -> int:
        env = {**os.environ, **self.env, "CKPTCTL_LOCAL_STATE": str(self.cluster.state)}
        return subprocess.run(argv, env=env, timeout=self.patience_s).returncode

    def state(self, job_id: str) -> JobState:
        return self.cluster.job(job_id).state

    def wait(self, condition: Callable[[], bool], *, deadline_s: float, what: str) -> None:
        self.cluster.wait(condition, deadline_s=deadline_s, what=what)

    def release(self, job_id: str) -> None:
        self.cluster.release(job_id)

    def cancel(self, job_id: str) -> None:
        self.cluster.cancel(job_id)
        self.wait(lambda: self.state(job_id) in ENDED, deadline_s=self.patience_s, what="the end of a cancelled job")

    def lose_node(self, name: str) -> None:
        self.cluster.kill_node(name)

    def bring_back(self, name: str) -> None:
        self.cluster.start_node(name)

    def output(self, job_id: str) -> str:
        log = self.logs / "jobs.log"
        return log.read_text(errors="replace")[-4000:] if log.exists() else ""


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHarness]:
    folder = tmp_path_factory.mktemp("local")
    with LocalCluster(folder / "state", nodes=3, slots=2) as cluster:
        yield LocalHarness(cluster, folder)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_check(check: Callable[[SchedulerHarness], None], harness: LocalHarness) -> None:
    check(harness)
