"""Submitting the example job on the rig, and seeing it through its requeues."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ckptctl.actions import inspect
from ckptctl.model.checkpoint import PROOF
from ckptctl.scheduler import slurm_text
from ckptctl.storage.repository import Repository
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
    edits: dict[str, str] = field(default_factory=dict)
    """What to replace in the batch script, and by what."""
    env: dict[str, str] = field(default_factory=dict)
    id: int = 0
    released: dict[int, float] = field(default_factory=dict)
    """When each restart was released, in seconds of the epoch."""

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
        script = (EXAMPLES / "train.sbatch").read_text()
        for old, new in self.edits.items():
            assert old in script
            script = script.replace(old, new)
        self.id = self.cluster.sbatch(script, f"--nodes={self.nodes}", *self.options, env=env)
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

    def follow(self, deadline_s: float = 150, until: Callable[[], object] = lambda: None) -> dict[str, str]:
        """Let it run, shortening Slurm's wait after a requeue, until it ends or is held, or `until` says yes."""
        pending: dict[int, float] = {}

        def ended() -> dict[str, str] | None:
            state, record = self.state()
            if until() or state in ENDED or (state == "PENDING" and record["Priority"] == "0"):
                return record
            if state == "PENDING" and record["Reason"] == "BeginTime":
                restarts = int(record["Restarts"])
                seen = pending.setdefault(restarts, time.monotonic())
                if time.monotonic() - seen > _CREDENTIAL_S:
                    self.cluster.release(self.id)
                    self.released[restarts] = time.time()
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

    def stop_before(self, rank: int, event: str, part: str) -> ExampleJob:
        """Have a rank of the first incarnation stop itself just before a system call (see `hook/sitecustomize.py`)."""
        self.env |= {
            "PYTHONPATH": str(Path(__file__).parent / "hook"),
            "TEST_STOP": f"{rank}:{event}:{part}",
            "TEST_STOP_MARK": f"/shared/{self.name}.stopped",
        }
        return self

    def wait_stopped(self, deadline_s: float = 60) -> None:
        """Wait until the rank has stopped itself."""
        self.wait_until("the rank has stopped itself", (self.cluster.shared / f"{self.name}.stopped").exists, deadline_s)

    def ranks_on(self, node: str) -> list[int]:
        """The pids of the training ranks on a node (not their data loaders)."""
        found = [process for process in self.cluster.node(node).processes() if "train_fsdp2.py" in "".join(process.argv[1:2])]
        pids = {process.pid for process in found}
        return [process.pid for process in found if process.parent not in pids]

    def receipts(self, step: int, generation: int = 1) -> list[str]:
        """The nodes whose receipts for a staged step are there."""
        folder = Path(self.repository.staging(generation)) / f"step-{step:08d}" / PROOF / "receipts"
        return sorted(path.stem for path in folder.iterdir()) if folder.exists() else []

    def checkpoints(self) -> list[str]:
        """The names of the checkpoint folders in the root."""
        return sorted(name for name in os.listdir(self.seen_root) if name.startswith("step-"))
