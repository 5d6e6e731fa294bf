"""A lineage on disk without any training: starts and saves by the same calls that a training run makes, one by one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ckptctl.model.checkpoint import PROOF
from ckptctl.model.manifest import Generation, RankReceipt, SavePlan
from ckptctl.saving.posix import PosixEngine, aligned_buffer
from ckptctl.saving.session import Incarnation, SaveSettings, Session
from ckptctl.storage import start
from ckptctl.storage.repository import Committed, Repository

NODES = ("n1", "n2")


def nobody_lives(_holder: Generation) -> bool | None:
    """Say that every earlier holder of the root is gone."""
    return False


def image_of(step: int, rank: int, size_bytes: int = 5000) -> memoryview:
    """Return a rank's file image, aligned, different for every step and rank."""
    image = memoryview(aligned_buffer(size_bytes))[:size_bytes]
    image[:] = bytes((step * 31 + rank * 7 + place) % 251 for place in range(size_bytes))
    return image


@dataclass
class Run:
    """One incarnation: a session per rank, driven by the test in whatever order it likes."""

    started: start.Started
    sessions: list[Session]
    plans: dict[int, SavePlan] = field(default_factory=dict)
    receipts: dict[tuple[int, int], RankReceipt] = field(default_factory=dict)

    @property
    def generation(self) -> int:
        """The generation of this incarnation."""
        return self.started.point.generation

    @property
    def leader(self) -> Session:
        """The session of rank 0."""
        return self.sessions[0]

    def stage(self, step: int, metadata: bytes = b"metadata") -> SavePlan:
        """Open a save."""
        self.plans[step] = self.leader.stage(step, metadata)
        return self.plans[step]

    def write(self, step: int, rank: int) -> None:
        """Write one rank's file."""
        self.receipts[step, rank] = self.sessions[rank].write(step, f"__{rank}_0.distcp", image_of(step, rank))

    def leave_receipt(self, step: int, node: str, error: str = "") -> None:
        """Leave one node's receipt."""
        members = self.leader.nodes[node]
        mine = [self.receipts[step, rank] for rank in members if (step, rank) in self.receipts]
        self.sessions[members[0]].leave_receipt(step, mine, error)

    def commit(self, step: int) -> Committed:
        """Commit, and prune."""
        return self.leader.commit(self.plans[step], tool="test")

    def until_receipts(self, step: int, nodes: Sequence[str] | None = None) -> None:
        """Stage, write everything, and leave the receipts of `nodes` (all, if not said)."""
        self.stage(step)
        for rank in range(len(self.sessions)):
            self.write(step, rank)
        for node in self.leader.nodes if nodes is None else nodes:
            self.leave_receipt(step, node)

    def save(self, step: int) -> Committed:
        """Save a step as a whole."""
        self.until_receipts(step)
        return self.commit(step)


def begin(
    root: str | os.PathLike[str],
    *,
    job: str = "1",
    restart: int = 0,
    alive: Callable[[Generation], bool | None] = nobody_lives,
    options: start.StartOptions | None = None,
    placement: Sequence[str] = NODES,
    settings: SaveSettings | None = None,
    user: str = "ada",
    scheduler: str = "test",
) -> Run:
    """Begin an incarnation, creating the root when it is new."""
    repository = Repository(root)
    repository.create()
    nodes = tuple(dict.fromkeys(placement))
    record = start.new_record(
        repository, scheduler=scheduler, job=job, restart=restart, user=user, nodes=nodes, boot_ids=dict.fromkeys(nodes, "boot")
    )
    started = start.begin(repository, record, alive, options or start.StartOptions(settle_s=0.0))
    incarnation = Incarnation.of(started, repository.root)
    engine = PosixEngine(threads=2)
    settings = settings or SaveSettings(deadline_s=10.0)
    sessions = [
        Session(incarnation, rank=rank, placement=placement, engine=engine, settings=settings) for rank in range(len(placement))
    ]
    return Run(started, sessions)


def folders(root: str | os.PathLike[str]) -> list[str]:
    """Return the checkpoint folders in a root, by name."""
    return sorted(name for name in os.listdir(root) if name.startswith("step-"))


def quarantine(root: str | os.PathLike[str]) -> list[str]:
    """Return what is in quarantine, by name."""
    return sorted(os.listdir(os.path.join(root, PROOF, "quarantine")))
