"""The repository of one lineage: the native layout on disk, version 1 (`docs/reference/format.md`).

```
ROOT/step-00001200.g0003/            a committed checkpoint
ROOT/.ckptctl/lineage.json           who this is; written once
ROOT/.ckptctl/generations/0003.json  fencing tokens, and 0003.resume.json beside them
ROOT/.ckptctl/staging/g0003/         saves that are not yet checkpoints
ROOT/.ckptctl/journal/ quarantine/
```

Readers believe COMMIT and the fence, never a name, an mtime or a symlink.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ckptctl.errors import DamagedCheckpoint, Fenced, ManifestTooNew, SaveFailed, StepTaken, StorageFault
from ckptctl.model import codec
from ckptctl.model.checkpoint import PROOF, CheckpointId, generation_name, staged_name
from ckptctl.model.manifest import (
    Commit,
    Generation,
    Lineage,
    Manifest,
    Receipt,
    ResumePoint,
    SavePlan,
)
from ckptctl.policy import retention
from ckptctl.policy.selection import Fence, newest_first
from ckptctl.storage import contents, files
from ckptctl.storage.journal import COMMIT, PRUNE, Journal

_TOKEN = re.compile(r"(\d{4,})\.json")
_RESUME = re.compile(r"(\d{4,})\.resume\.json")
_SHARD = re.compile(r"__\d+_\d+\.distcp|\.metadata")
"""What a save writes into a checkpoint's folder beside its proof."""
_MANIFEST = re.compile(r"MANIFEST\.[0-9a-f]{16}\.json")


@dataclass(frozen=True)
class Committed:
    """A checkpoint folder that has its COMMIT. `id` is what COMMIT says, not what the folder's name hints at."""

    id: CheckpointId
    path: str
    commit: Commit


@dataclass(frozen=True)
class Unbelieved:
    """A folder with a checkpoint's name that is no checkpoint, and why."""

    hint: CheckpointId
    path: str
    reason: str
    damaged: bool = False


class Repository:
    """One checkpoint root. Creating the object touches nothing."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.abspath(os.fspath(root))
        self.proof = os.path.join(self.root, PROOF)
        self.journal = Journal(os.path.join(self.proof, "journal"))
        self._lineage: Lineage | None = None

    # --- lineage -------------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether this folder is the root of a lineage already."""
        return os.path.lexists(os.path.join(self.proof, "lineage.json"))

    def lineage(self) -> Lineage:
        """Return the lineage. Raises `StorageFault` when this is no checkpoint root, `ManifestTooNew`, `DamagedCheckpoint`."""
        if self._lineage is None:
            path = os.path.join(self.proof, "lineage.json")
            self._lineage = codec.decode(Lineage, files.read(path), path)
        return self._lineage

    def create(self) -> Lineage:
        """Make the folder a checkpoint root, or find that it is one. Of several creators one wins; all get the same lineage."""
        if self.exists:
            return self.lineage()
        with files.translated(self.root, "create the checkpoint root"):
            try:
                os.makedirs(self.root, exist_ok=True)
            except FileExistsError as exc:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.root) from exc
        for folder in ("", "journal", "generations", "staging", "quarantine", "incidents"):
            files.make_folder(os.path.join(self.proof, folder).rstrip("/"), exist_ok=True)
        lineage = Lineage(
            id=secrets.token_hex(16),
            created_ms=_now_ms(),
            owner_uid=os.geteuid(),
            owner_gid=os.stat(self.root).st_gid,
            staging=self._staging_place(),
        )
        try:
            files.create_once(os.path.join(self.proof, "lineage.json"), codec.encode(lineage))
        except FileExistsError:
            return self.lineage()
        return lineage

    def _staging_place(self) -> str:
        """Try where a folder can be renamed from into the root: project quotas, filesets and DNE refuse some (EXDEV)."""
        name = f"try-{secrets.token_hex(4)}"
        source, target = os.path.join(self.proof, "staging", name), os.path.join(self.root, f".{name}")
        with files.translated(self.root, "create a folder in the checkpoint root"):
            os.mkdir(source)
            files.announce("rename", target)
            try:
                os.rename(source, target)
            except OSError:
                os.rmdir(source)
                return "beside"
            os.rmdir(target)
            return "inside"

    # --- generations and the fence -------------------------------------------------------------------------------

    def newest_generation(self) -> int:
        """Return the ordinal of the newest generation, 0 for none. One listing."""
        found = (_TOKEN.fullmatch(name) for name in files.names(os.path.join(self.proof, "generations")))
        return max((int(match[1]) for match in found if match), default=0)

    def generation(self, ordinal: int) -> Generation:
        """Return a generation's record."""
        path = os.path.join(self.proof, "generations", f"{ordinal:04d}.json")
        return codec.decode(Generation, files.read(path), path)

    def take_generation(self, record: Generation) -> bool:
        """Create the fencing token `record.generation`, exclusively. Returns False when another start was faster."""
        path = os.path.join(self.proof, "generations", f"{record.generation:04d}.json")
        try:
            files.create_once(path, codec.encode(record))
        except FileExistsError:
            return False
        return True

    def resume_point(self) -> ResumePoint | None:
        """Return the newest generation's resume point that exists, None before the first."""
        folder = os.path.join(self.proof, "generations")
        found = (_RESUME.fullmatch(name) for name in files.names(folder))
        newest = max((int(match[1]) for match in found if match), default=0)
        if not newest:
            return None
        path = os.path.join(folder, f"{newest:04d}.resume.json")
        return codec.decode(ResumePoint, files.read(path), path)

    def write_resume_point(self, point: ResumePoint) -> None:
        """Make a generation's choice durable: from here on the fence holds for its elders."""
        path = os.path.join(self.proof, "generations", f"{point.generation:04d}.resume.json")
        files.create_once(path, codec.encode(point))

    def fence(self) -> Fence:
        """Return the fence that holds now. Reads one listing and one file, however many generations there are."""
        point = self.resume_point()
        return Fence({int(old): step for old, step in point.limits.items()} if point else {})

    def check_newest(self, generation: int) -> None:
        """Raise `Fenced` when a newer generation exists. Saves work; the guarantee is the fence, which binds readers."""
        newest = self.newest_generation()
        if newest > generation:
            raise Fenced(
                f"generation {generation} is fenced: generation {newest} has taken over the checkpoint root",
                context=self.root,
                hint="this process must stop; the newer incarnation goes on from the last complete checkpoint",
            )

    # --- reading -------------------------------------------------------------------------------------------------

    def folders(self) -> list[CheckpointId]:
        """Return what the folder names hint at, newest first. One listing; nothing is opened."""
        return newest_first(found for name in files.names(self.root) if (found := CheckpointId.parse(name)))

    def look(self, hint: CheckpointId) -> Committed | Unbelieved:
        """Read one folder's COMMIT. One open; no per-rank file is touched."""
        path = os.path.join(self.root, hint.folder)
        marker = os.path.join(path, PROOF, "COMMIT")
        try:
            data = files.read(marker)
        except StorageFault as exc:
            if not isinstance(exc.__cause__, FileNotFoundError):
                raise
            return Unbelieved(hint, path, "no COMMIT: the save never became a checkpoint")
        try:
            commit = codec.decode(Commit, data, marker)
        except ManifestTooNew as exc:
            return Unbelieved(hint, path, exc.message)
        except DamagedCheckpoint as exc:
            return Unbelieved(hint, path, exc.message, damaged=True)
        if commit.lineage != self.lineage().id:
            return Unbelieved(hint, path, f"committed by another lineage ({commit.lineage[:8]})")
        if commit.world_size < 1 or commit.step < 0 or commit.generation < 1 or not _MANIFEST.fullmatch(commit.manifest):
            return Unbelieved(hint, path, "COMMIT names an impossible checkpoint", damaged=True)
        return Committed(CheckpointId(commit.step, commit.generation), path, commit)

    def manifest(self, checkpoint: Committed) -> Manifest:
        """Read a checkpoint's manifest and compare it with COMMIT. Raises `DamagedCheckpoint`."""
        path = os.path.join(checkpoint.path, PROOF, checkpoint.commit.manifest)
        try:
            data = files.read(path)
        except StorageFault as exc:
            if not isinstance(exc.__cause__, FileNotFoundError):
                raise
            raise DamagedCheckpoint("the manifest is missing", context=path, hint="see `ckptctl list`") from exc
        if codec.digest(data) != checkpoint.commit.manifest_digest:
            raise DamagedCheckpoint("the manifest is not the one that was committed", context=path, hint="see `ckptctl list`")
        return codec.decode(Manifest, data, path)

    def check_sizes(self, checkpoint: Committed) -> Manifest:
        """Check that every file of the manifest has its size. Raises `DamagedCheckpoint` naming the first that hasn't."""
        manifest = self.manifest(checkpoint)
        problem = next(iter(contents.size_problems(checkpoint.path, manifest.files)), "")
        if problem:
            raise DamagedCheckpoint(problem, context=checkpoint.path, hint="an older checkpoint is chosen instead")
        return manifest

    def complete(self) -> Iterator[Committed]:
        """Yield the checkpoints that count, newest first, judged by COMMIT and fence alone; lazily, one open each."""
        fence = self.fence()
        for hint in self.folders():
            found = self.look(hint)
            if isinstance(found, Committed) and fence.counts(found.id):
                yield found

    # --- saving --------------------------------------------------------------------------------------------------

    def staging(self, generation: int) -> str:
        """Return the staging folder of a generation."""
        if self.lineage().staging == "beside":
            return os.path.join(self.root, f".staging-{generation_name(generation)}")
        return os.path.join(self.proof, "staging", generation_name(generation))

    def stagings(self) -> list[tuple[str, str]]:
        """Return name and path of every staging folder that exists."""
        if self.lineage().staging == "beside":
            found = [name for name in files.names(self.root) if name.startswith(".staging-")]
            return [(name.removeprefix(".staging-"), os.path.join(self.root, name)) for name in found]
        folder = os.path.join(self.proof, "staging")
        return [(name, os.path.join(folder, name)) for name in files.names(folder)]

    def stage(self, plan: SavePlan, metadata: bytes | None) -> str:
        """Open a save: its folder in staging with the plan and the DCP metadata under a name no reader takes. Leader only.

        Raises `StepTaken` when this generation has staged or committed the step already, `Fenced` when it is swept.
        """
        self.check_newest(plan.generation)
        path = os.path.join(self.staging(plan.generation), staged_name(plan.step))
        final = os.path.join(self.root, CheckpointId(plan.step, plan.generation).folder)
        try:
            if os.path.lexists(final):
                raise FileExistsError(final)
            files.make_folder(path)
        except FileExistsError as exc:
            raise StepTaken(
                f"step {plan.step} was already saved, or tried, by generation {plan.generation}",
                context=path,
                hint="save each step once, also one whose save failed; a process of another run needs a root of its own",
            ) from exc
        files.make_folder(os.path.join(path, PROOF))
        files.make_folder(os.path.join(path, PROOF, "receipts"))
        files.create_in_staging(os.path.join(path, PROOF, "plan.json"), codec.encode(plan))
        if metadata is not None:
            self.add_metadata(path, metadata)
        else:
            files.fsync_folder(os.path.join(path, PROOF))
        return path

    def add_metadata(self, staging: str, metadata: bytes) -> None:
        """Write the DCP metadata of a staged save, under a name that no reader takes until the commit.

        It appears as a whole or not at all: it may come after the receipts, and a recovery must not take a part of it.
        """
        files.create_once(os.path.join(staging, PROOF, "dcp-metadata"), metadata)

    def write_receipt(self, staging: str, receipt: Receipt) -> None:
        """Leave a node's receipt, after its shards are durable. The staging folder's names are made durable first, once."""
        files.fsync_folder(staging)
        folder = os.path.join(staging, PROOF, "receipts")
        files.create_in_staging(os.path.join(folder, f"{receipt.node}.json"), codec.encode(receipt))
        files.fsync_folder(folder)

    def receipt(self, staging: str, node: str) -> Receipt | None:
        """Return a node's receipt, None while it isn't there as a whole."""
        path = os.path.join(staging, PROOF, "receipts", f"{node}.json")
        try:
            return codec.decode(Receipt, files.read(path), path)
        except ManifestTooNew:
            raise
        except DamagedCheckpoint:
            return None  # still being written
        except StorageFault as exc:
            if isinstance(exc.__cause__, FileNotFoundError):
                return None
            raise

    def commit(
        self,
        staging: str,
        plan: SavePlan,
        receipts: list[Receipt],
        *,
        generation: int = 0,
        sequence: int = 0,
        tool: str = "",
    ) -> Committed:
        """Turn a staged save whose receipts are all there into a checkpoint; the only way a checkpoint comes to be.

        Order: sizes checked, `.metadata`, manifest, generation checked, COMMIT, folder fsynced, generation checked, rename,
        parent fsynced, commit event. After the rename the checkpoint is durable; a crash before it leaves a folder that the
        next start recovers or sets aside. `generation` differs from the plan's in a recovery. Raises `SaveFailed`, `Fenced`.
        """
        owner = generation or plan.generation
        manifest = contents.manifest_of(staging, plan, receipts, owner, sequence or plan.sequence, tool)
        proof = os.path.join(staging, PROOF)
        if not os.path.lexists(os.path.join(staging, ".metadata")):
            files.move(os.path.join(proof, "dcp-metadata"), os.path.join(staging, ".metadata"))
        data = codec.encode(manifest)
        name = f"MANIFEST.{codec.digest(data)[:16]}.json"
        files.create_in_staging(os.path.join(proof, name), data)
        commit = Commit(
            lineage=manifest.lineage,
            generation=owner,
            step=manifest.step,
            sequence=manifest.sequence,
            world_size=manifest.world_size,
            manifest=name,
            manifest_digest=codec.digest(data),
        )
        self.check_newest(owner)
        try:
            files.create_once(os.path.join(proof, "COMMIT"), codec.encode(commit))
        except FileExistsError as exc:
            raise SaveFailed(
                f"step {plan.step} was committed by somebody else", context=staging, hint="nothing to do: theirs counts"
            ) from exc
        files.fsync_folder(staging)
        self.check_newest(owner)
        checkpoint = CheckpointId(commit.step, commit.generation)
        final = os.path.join(self.root, checkpoint.folder)
        try:
            files.move(staging, final)
        except FileExistsError as exc:
            raise StepTaken(f"{checkpoint.folder} exists already", context=self.root) from exc
        except StorageFault:
            self.check_newest(owner)  # swept by a newer generation: say that rather than "no such file"
            raise
        self.journal.write(COMMIT, owner, commit.step, folder=checkpoint.folder, recovered_from=manifest.recovered_from)
        return Committed(checkpoint, final, commit)

    # --- setting aside and pruning -------------------------------------------------------------------------------

    def set_aside(self, path: str, label: str) -> str:
        """Move something into quarantine under a name of its own; nothing is deleted. Returns the new path."""
        target = os.path.join(self.proof, "quarantine", f"{label}.{secrets.token_hex(3)}")
        files.move(path, target)
        return target

    def prune(self, *, keep_last: int, keep_every: int, generation: int) -> list[CheckpointId]:
        """Delete complete checkpoints beyond what is to be kept; only what this lineage committed, only what counts.

        A checkpoint first leaves every reader's sight by a rename, then its bytes go. Nothing is deleted when this
        generation is not the newest. Returns what was deleted, oldest first.
        """
        self.check_newest(generation)
        complete = list(self.complete())
        kept = [retention.Kept(found.id, found.commit.sequence) for found in complete]
        gone = retention.disposable(kept, keep_last=keep_last, keep_every=keep_every)
        by_id = {found.id: found for found in complete}
        for checkpoint in gone:
            self._delete(self.set_aside(by_id[checkpoint].path, f"pruned-{checkpoint.folder}"))
        if gone:
            self.journal.write(PRUNE, generation, gone[-1].step, folders=[checkpoint.folder for checkpoint in gone])
        return gone

    def _delete(self, hidden: str) -> None:
        """Delete what ckptctl wrote into a checkpoint that is out of sight; a file of somebody else's stays, as `kept-…`.

        The proof goes last. What can't be deleted is left for the next time.
        """
        own = [name for name in files.names(hidden) if _SHARD.fullmatch(name)]
        for name in (*own, PROOF):
            path = os.path.join(hidden, name)
            if os.path.isdir(path) and not os.path.islink(path):
                files.remove_tree(path)
            else:
                files.remove_quietly(path)
        try:
            os.rmdir(hidden)
        except OSError:
            if os.path.isdir(hidden) and not set(files.names(hidden)) & {*own, PROOF}:
                name = os.path.basename(hidden).replace("pruned-", "kept-", 1)
                files.move(hidden, os.path.join(os.path.dirname(hidden), name))

    def tidy_quarantine(self, *, keep: int) -> None:
        """Bound the quarantine: finish interrupted deletions, and keep only the newest `keep` sweeps of this lineage's own.

        Only staging that carries this lineage's save plans is ever deleted; damaged or foreign folders stay for a person.
        """
        folder = os.path.join(self.proof, "quarantine")
        found = files.names(folder)
        for name in found:
            if name.startswith("pruned-"):
                self._delete(os.path.join(folder, name))
        sweeps = sorted((name for name in found if name.startswith("staging-g")), key=_sweep_order)
        for name in sweeps[: -keep or None]:
            path = os.path.join(folder, name)
            if all(self._is_own_save(os.path.join(path, step)) for step in files.names(path)):
                files.remove_tree(path)

    def _is_own_save(self, staging: str) -> bool:
        plan = self.plan(staging)
        return plan is not None and plan.lineage == self.lineage().id

    def plan(self, staging: str) -> SavePlan | None:
        """Return the save plan of a staged folder, None when there is none that can be read."""
        path = os.path.join(staging, PROOF, "plan.json")
        try:
            return codec.decode(SavePlan, files.read(path), path)
        except (StorageFault, DamagedCheckpoint):
            return None


def _sweep_order(name: str) -> tuple[int, str]:
    match = re.match(r"staging-g(\d+)", name)
    return (int(match[1]) if match else 0, name)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def with_generation(record: Generation, ordinal: int) -> Generation:
    """Return the record for another ordinal, with a fresh nonce."""
    return replace(record, generation=ordinal, nonce=secrets.token_hex(8), created_ms=_now_ms())
