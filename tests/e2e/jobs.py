"""Submitting the example job on the rig, and seeing it through its requeues."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ckptctl.actions import inspect
from ckptctl.scheduler import slurm_text
from ckptctl.storage.repository import PROOF, Repository
from tests.support.cluster import Cluster
from tests.support.processes import wait_for

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "slurm" / "examples"
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
STEPS = 24
SAVE_EVERY = 4
_CREDENTIAL_S = 2.5
"""A job may not start in the second in which its last credential was revoked: slurmd takes the new one for the old."""


@dataclass
class ExampleJob:
    """The very sbatch script and training script that users get, with a root under the shared mount."""

    cluster: Cluster
    name: str
    nodes: int = 4
    steps: int = STEPS
    step_s: float = 0.05
    extra: str = ""
    root: str = ""
    options: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    id: int = 0

    def submit(self) -> ExampleJob:
        """Submit it."""
        self.root = self.root or f"/shared/{self.name}"
        arguments = f"--steps {self.steps} --save-every {SAVE_EVERY} --step-s {self.step_s} --width 256"
        arguments += f" --result /shared/{self.name}.json --log /shared/{self.name}.jsonl {self.extra}"
        env = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "CKPT_ROOT": self.root,
            "TRAIN_PY": str(EXAMPLES / "train_fsdp2.py"),
            "TRAIN_ARGS": arguments,
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **self.env,
        }
        self.id = self.cluster.sbatch(EXAMPLES / "train.sbatch", f"--nodes={self.nodes}", *self.options, env=env)
        return self

    @property
    def seen_root(self) -> Path:
        """The checkpoint root as the test process sees it."""
        return self.cluster.shared / self.root.removeprefix("/shared/")

    @property
    def repository(self) -> Repository:
        """The repository as the test process sees it."""
        return Repository(self.seen_root)

    def state(self) -> tuple[str, dict[str, str]]:
        """Return state and record of the job."""
        record = self.cluster.job(self.id)
        return record["JobState"], record

    def follow(self, deadline_s: float = 150) -> dict[str, str]:
        """Let it run, shortening Slurm's wait after a requeue, until it ends or is held."""

        pending: dict[int, float] = {}

        def ended() -> dict[str, str] | None:
            state, record = self.state()
            if state in ENDED or (state == "PENDING" and record["Priority"] == "0"):
                return record
            if state == "PENDING" and record["Reason"] == "BeginTime":
                restarts = int(record["Restarts"])
                seen = pending.setdefault(restarts, time.monotonic())
                if time.monotonic() - seen > _CREDENTIAL_S:
                    self.cluster.release(self.id)
            return None

        return wait_for(f"the end of job {self.id}", ended, deadline_s, log=lambda: self.output[-3000:])

    @property
    def output(self) -> str:
        """What the job printed, all incarnations."""
        return self.cluster.job_output(self.id)

    @property
    def fingerprint(self) -> str:
        """The digest of the final parameters."""
        return str(json.loads((self.cluster.shared / f"{self.name}.json").read_text())["fingerprint"])

    def logged(self) -> list[dict[str, float]]:
        """The leader's log: one entry per trained step, all incarnations."""
        path = self.cluster.shared / f"{self.name}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def excluded(self) -> tuple[str, ...]:
        """Return the nodes that Slurm keeps out of the job's next allocation."""
        return slurm_text.expand(self.cluster.job(self.id)["ExcNodeList"])

    def incarnations(self) -> list[inspect.IncarnationRow]:
        """The incarnations, as the journal tells them."""
        return inspect.incarnations(str(self.seen_root))

    def quarantine(self) -> list[str]:
        """The names in quarantine."""
        return sorted(os.listdir(self.seen_root / PROOF / "quarantine"))

    def wait_until(self, what: str, probe: Callable[[], object], deadline_s: float = 60) -> None:
        """Wait for something, with the job's output at hand."""
        wait_for(what, lambda: probe() or None, deadline_s, log=lambda: self.output[-3000:], poll_s=0.005)

    def ranks_on(self, node: str) -> list[int]:
        """The pids of the training ranks on a node (not their data loaders)."""
        found = [process for process in self.cluster.node(node).processes() if "train_fsdp2.py" in " ".join(process.argv)]
        pids = {process.pid for process in found}
        return [process.pid for process in found if process.parent not in pids and "srun" not in process.argv[0]]

    def stop_in_mid_save(self, victim: str, deadline_s: float = 90) -> int:
        """Stop the victim's ranks in the middle of a save: the others' receipts are there, its own is not. Returns the step.

        A save that is over before the stop took hold goes on; the next one is tried.
        """
        caught: list[int] = []

        def attempt() -> bool:
            repository = self.repository
            if not repository.exists or len(repository.folders()) < 2:
                return False
            staging = Path(repository.staging(repository.newest_generation()))
            steps = sorted(staging.iterdir()) if staging.exists() else []
            if not steps:
                return False
            pids = self.ranks_on(victim)
            for pid in pids:
                self.cluster.node(victim).signal(pid, signal.SIGSTOP)
            plan = repository.plan(str(steps[-1]))
            if plan is not None and victim in plan.nodes and self._others_done(repository, steps[-1], list(plan.nodes), victim):
                caught.append(plan.step)
                return True
            for pid in pids:
                self.cluster.node(victim).signal(pid, signal.SIGCONT)
            return False

        self.wait_until(f"a save in which {victim} is late", attempt, deadline_s)
        return caught[0]

    @staticmethod
    def _others_done(repository: Repository, staging: Path, nodes: list[str], victim: str) -> bool:
        def over() -> str | None:
            if not staging.exists() or repository.receipt(str(staging), victim) is not None:
                return "late"
            others = sum(repository.receipt(str(staging), node) is not None for node in nodes if node != victim)
            return "caught" if others == len(nodes) - 1 else None

        try:
            return wait_for("the others' receipts", over, 5, poll_s=0.002) == "caught"
        except TimeoutError:
            return False
