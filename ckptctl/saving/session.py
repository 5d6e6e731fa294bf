"""How a training process saves: one session per rank, with no torch in it. The same code with and without `ckptctl run`.

A save is: `stage` (leader) → `write` (every rank) → `leave_receipt` (one rank per node) → `commit` (leader). Receipts and the
commit are files, so that a committer needs no rank to be alive once the receipts are there.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ckptctl import events
from ckptctl.errors import (
    CkptctlError,
    DamagedCheckpoint,
    NotShared,
    SaveFailed,
    SettingsInvalid,
    StorageFault,
    UsageError,
)
from ckptctl.interfaces import Engine
from ckptctl.model import codec
from ckptctl.model.checkpoint import PROOF, CheckpointId, staged_name
from ckptctl.model.manifest import Commit, RankReceipt, Receipt, SavePlan
from ckptctl.storage import files, journal, mounts
from ckptctl.storage.repository import Committed, Repository
from ckptctl.storage.start import Started

_VARIABLES = {
    "root": "CKPTCTL_ROOT",
    "job": "CKPTCTL_JOB",
    "lineage": "CKPTCTL_LINEAGE",
    "generation": "CKPTCTL_GENERATION",
    "nonce": "CKPTCTL_NONCE",
    "step": "CKPTCTL_RESUME_STEP",
    "path": "CKPTCTL_RESUME_PATH",
    "digest": "CKPTCTL_RESUME_DIGEST",
    "sequence": "CKPTCTL_RESUME_SEQUENCE",
    "mount": "CKPTCTL_MOUNT",
}
_MAY_BE_EMPTY = {"path", "digest", "mount"}


@dataclass(frozen=True)
class Incarnation:
    """What every rank of an incarnation is told, once, before it starts; it never looks for itself.

    `path` and `digest` (of the manifest) are empty for a start at step 0. `job` is `<job id>.<restart>`. `mount` is what the
    root is where the incarnation was started: type and place (`storage.mounts.place`), empty when it could not be told.
    """

    root: str
    job: str
    lineage: str
    generation: int
    nonce: str
    step: int
    path: str
    digest: str
    sequence: int
    mount: str = ""

    @staticmethod
    def of(started: Started, root: str) -> Incarnation:
        """Return what the ranks of a started incarnation are told."""
        record, point = started.record, started.point
        return Incarnation(
            root=root,
            job=f"{record.job}.{record.restart}",
            lineage=record.lineage,
            generation=record.generation,
            nonce=record.nonce,
            step=point.step,
            path=started.path,
            digest=point.manifest_digest,
            sequence=point.sequence,
            mount=_mount(root),
        )

    def environment(self) -> dict[str, str]:
        """Return it as `CKPTCTL_*` variables."""
        return {variable: str(getattr(self, field)) for field, variable in _VARIABLES.items()}

    @staticmethod
    def from_environment(environment: Mapping[str, str]) -> Incarnation | None:
        """Read it back; None when not one of the variables is set. Raises `SettingsInvalid` for half a set or a bad value."""
        present = [name for name in _VARIABLES.values() if name in environment]
        if not present:
            return None
        absent = [name for name in _VARIABLES.values() if name not in environment]
        empty = [name for field, name in _VARIABLES.items() if field not in _MAY_BE_EMPTY and environment.get(name) == ""]
        if absent or empty:
            raise SettingsInvalid(
                "the variables of `ckptctl run` are half set: " + ", ".join([*absent, *(f"{name} is empty" for name in empty)]),
                context=f"set: {', '.join(present)}",
                hint="pass the whole environment on to the ranks (srun --export=ALL), or unset all CKPTCTL_* variables",
            )
        values: dict[str, str] = {field: environment[name] for field, name in _VARIABLES.items()}
        numbers = {}
        for field in ("generation", "step", "sequence"):
            try:
                numbers[field] = int(values.pop(field))
            except ValueError:
                raise SettingsInvalid(
                    f"{_VARIABLES[field]} is not a number: {environment[_VARIABLES[field]]!r}",
                    hint="these variables are made by `ckptctl run`; don't set them by hand",
                ) from None
        if bool(values["path"]) != bool(values["digest"]) or numbers["generation"] < 1 or numbers["step"] < 0:
            raise SettingsInvalid(
                "the variables of `ckptctl run` contradict each other",
                context=", ".join(f"{name}={environment[name]}" for name in _VARIABLES.values()),
                hint="these variables are made by `ckptctl run`; don't set them by hand",
            )
        return Incarnation(**values, **numbers)  # type: ignore[arg-type]


def _mount(root: str) -> str:
    try:
        return " ".join(mounts.place(root))
    except StorageFault:
        return ""


@dataclass(frozen=True)
class SaveSettings:
    """How to save: how long a committer waits for receipts, what to keep."""

    deadline_s: float = 1800.0
    keep_last: int = 2
    keep_every: int = 10


class Session:
    """One rank's way to save into the root of its incarnation.

    `placement` maps every rank to its node's name; the leader is rank 0, a node's leader its lowest rank.
    """

    def __init__(
        self,
        incarnation: Incarnation,
        *,
        rank: int,
        placement: Sequence[str],
        engine: Engine,
        settings: SaveSettings | None = None,
        boot_id: str = "",
    ) -> None:
        if not placement or not 0 <= rank < len(placement):
            raise SettingsInvalid(f"rank {rank} of a world of {len(placement)} makes no sense", hint="check the launcher")
        bad = sorted({node for node in placement if not node or "/" in node or node.startswith(".")})
        if bad:
            raise SettingsInvalid(f"not usable as a node name: {bad[0]!r}", hint="node names become file names")
        self.incarnation = incarnation
        self.repository = Repository(incarnation.root)
        self.rank = rank
        self.world_size = len(placement)
        self.node = placement[rank]
        self.nodes: dict[str, tuple[int, ...]] = {}
        for member, node in enumerate(placement):
            self.nodes[node] = (*self.nodes.get(node, ()), member)
        self.engine = engine
        self.settings = settings or SaveSettings()
        self.boot_id = boot_id
        self._sequence = incarnation.sequence

    @property
    def leads(self) -> bool:
        """Whether this rank is the leader, who stages and commits."""
        return self.rank == 0

    @property
    def leads_node(self) -> bool:
        """Whether this rank writes its node's receipt."""
        return self.nodes[self.node][0] == self.rank

    def verify(self) -> None:
        """Check that this rank sees the root that `ckptctl run` saw: its lineage, its generation, the chosen manifest.

        Raises `NotShared` naming this node: a stale mount or a wrong export is found before training, not after it.
        """
        told, seen = self.incarnation, "nothing"
        try:
            lineage = self.repository.lineage().id
            record = self.repository.generation(told.generation)
            if lineage != told.lineage:
                seen = f"lineage {lineage}"
            elif record.nonce != told.nonce:
                seen = f"another generation {told.generation} (of job {record.job})"
            elif told.path and (found := self._digest_at(told.path)) != told.digest:
                seen = f"manifest {found[:16]} in {told.path}"
            else:
                seen = self._other_mount()
                if not seen:
                    return
        except (StorageFault, DamagedCheckpoint) as exc:
            seen = exc.message
        raise NotShared(
            f"node {self.node} (rank {self.rank}) does not see the checkpoint root as the batch host does: {seen}",
            context=f"{told.root}, lineage {told.lineage}, generation {told.generation}",
            hint=f"check the mount on {self.node}: `ckptctl check {told.root}`",
        )

    def _other_mount(self) -> str:
        """Return what this rank's root is, when it can't be the mount that the batch host writes to; else an empty string.

        A container's layer over the shared folder shows every file of it, and keeps what is written for itself.
        """
        kind, _, told = self.incarnation.mount.partition(" ")
        here, _, seen = _mount(self.incarnation.root).partition(" ")
        if not kind or not here or (kind, told) == (here, seen):
            return ""
        if kind.rstrip("4") != here.rstrip("4"):  # nfs and nfs4 are one server's
            return f"the same files through another mount, {here} from {seen}, not {kind} from {told}"
        if self.leads_node:
            message = f"node {self.node} reaches the checkpoint root as {seen}, the batch host as {told}: the same files"
            events.emit(events.RUN_WARNING, message, level=logging.WARNING)
        return ""

    def _digest_at(self, path: str) -> str:
        marker = os.path.join(path, PROOF, "COMMIT")
        return codec.decode(Commit, files.read(marker), marker).manifest_digest

    def staging(self, step: int) -> str:
        """Return the folder that `step` is staged in; the same on every rank, told by the generation, never searched for."""
        return os.path.join(self.repository.staging(self.incarnation.generation), staged_name(step))

    def stage(self, step: int, metadata: bytes | None) -> SavePlan:
        """Open the save of a step (leader). `metadata` is DCP's `.metadata`; None when it is added later (`add_metadata`).

        Raises `UsageError` for a step before the one that this run resumed at: a later start would never take it.
        """
        if step < self.incarnation.step:
            raise UsageError(
                f"step {step} is before step {self.incarnation.step}, where this run resumed",
                context=self.incarnation.root,
                hint="count on from the step that load() returned; for a run from scratch use a new checkpoint root",
            )
        plan = SavePlan(
            lineage=self.incarnation.lineage,
            generation=self.incarnation.generation,
            step=step,
            sequence=self._sequence + 1,
            world_size=self.world_size,
            nodes=dict(self.nodes),
            job=self.incarnation.job,
            started_ms=time.time_ns() // 1_000_000,
        )
        self.repository.stage(plan, metadata)
        return plan

    def add_metadata(self, step: int, metadata: bytes) -> None:
        """Add DCP's `.metadata` to a staged step that was opened without (leader), before the commit."""
        self.repository.add_metadata(self.staging(step), metadata)

    def write(self, step: int, name: str, image: memoryview, *, stall_ms: int = 0) -> RankReceipt:
        """Write this rank's file image, durably, into the staged step."""
        path = self.staging(step)
        begun = time.monotonic()
        with files.translated(path, "open the staging folder"):
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            written = self.engine.write(folder, name, image)
        finally:
            os.close(folder)
        spent_ms = int((time.monotonic() - begun) * 1000)
        return RankReceipt(self.rank, self.engine.name, (written,), write_ms=spent_ms, stall_ms=stall_ms)

    def leave_receipt(self, step: int, ranks: Sequence[RankReceipt], error: str = "") -> None:
        """Leave this node's receipt: all its ranks' files are durable, or the save failed here (`error`)."""
        receipt = Receipt(
            node=self.node,
            generation=self.incarnation.generation,
            step=step,
            ranks=tuple(sorted(ranks, key=lambda entry: entry.rank)),
            error=error,
            boot_id=self.boot_id,
        )
        self.repository.write_receipt(self.staging(step), receipt)

    def commit(self, plan: SavePlan, *, tool: str = "", lost: Callable[[], str] | None = None) -> Committed:
        """Wait for the receipts of all nodes, commit, then prune (leader). Raises `SaveFailed` naming who failed or is missing.

        `lost` is asked while waiting and ends the wait by naming a problem that no receipt will tell.
        Pruning problems are logged, never raised: the checkpoint is durable by then.
        """
        receipts = self._collect(plan, lost)
        found = self.repository.commit(self.staging(plan.step), plan, receipts, tool=tool)
        self._sequence = plan.sequence
        took_ms = time.time_ns() // 1_000_000 - plan.started_ms
        events.emit(
            events.SAVE,
            f"step {plan.step} is complete: {os.path.basename(found.path)}, {took_ms} ms from staging to commit",
            step=plan.step,
            generation=plan.generation,
            took_ms=took_ms,
        )
        try:
            gone = self.repository.prune(
                keep_last=self.settings.keep_last,
                keep_every=self.settings.keep_every,
                generation=self.incarnation.generation,
            )
        except (CkptctlError, OSError) as exc:
            events.emit(events.PRUNE, f"could not prune: {exc}", level=30)
        else:
            if gone:
                events.emit(events.PRUNE, "pruned " + ", ".join(old.folder for old in gone))
        return found

    def _collect(self, plan: SavePlan, lost: Callable[[], str] | None) -> list[Receipt]:
        deadline = time.monotonic() + self.settings.deadline_s
        staging = self.staging(plan.step)
        waiting = dict.fromkeys(plan.nodes)
        receipts: dict[str, Receipt] = {}
        pause = 0.005
        while True:
            for node in list(waiting):
                receipt = self.repository.receipt(staging, node)
                if receipt is None:
                    continue
                if receipt.error or (receipt.step, receipt.generation) != (plan.step, plan.generation):
                    raise SaveFailed(
                        f"step {plan.step}: node {node} failed: {receipt.error or 'its receipt is for another save'}",
                        context=staging,
                        hint="the last complete checkpoint is untouched; the cause is in that node's log",
                    )
                receipts[node] = receipt
                del waiting[node]
            if not waiting:
                return [receipts[node] for node in plan.nodes]
            self.repository.check_newest(plan.generation)
            if lost is not None and (problem := lost()):
                raise SaveFailed(
                    f"step {plan.step}: {problem}",
                    context=staging,
                    hint="the last complete checkpoint is untouched; the cause is in that rank's log",
                )
            if time.monotonic() > deadline:
                missing = ", ".join(f"{node} (ranks {', '.join(map(str, plan.nodes[node]))})" for node in waiting)
                raise SaveFailed(
                    f"step {plan.step}: no receipt within {self.settings.deadline_s:.0f} s from {missing}",
                    context=staging,
                    hint="the last complete checkpoint is untouched; look at those nodes",
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 0.25)

    def record_stop(self, step: int) -> None:
        """Record that the ranks agreed to stop at this step before the run was finished (leader)."""
        self.repository.journal.write(journal.STOPPED, self.incarnation.generation, step)

    def record_never_restart(self, step: int) -> None:
        """Record that the application forbids a restart. Any rank; once is enough.

        `run` can't rely on the exit code alone: `srun --kill-on-bad-exit` reports its kill of the other ranks instead.
        """
        book, generation = self.repository.journal, self.incarnation.generation
        if not any(event.generation == generation for event in book.events(journal.NEVER)):
            book.write(journal.NEVER, generation, step, rank=self.rank, node=self.node)

    def check_fence(self) -> None:
        """Raise `Fenced` when a newer generation has taken over. One listing."""
        self.repository.check_newest(self.incarnation.generation)

    def checkpoint(self, step: int) -> str:
        """Return the folder that a committed step of this generation has."""
        return os.path.join(self.incarnation.root, CheckpointId(step, self.incarnation.generation).folder)
