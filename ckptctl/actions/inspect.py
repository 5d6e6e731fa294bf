"""`list`, `verify` and `select`: what is in a checkpoint root, is it whole, and which one would a start take. Read-only."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ckptctl.errors import DamagedCheckpoint, ManifestTooNew, NoCheckpoint, StorageFault, UsageError
from ckptctl.model.checkpoint import CheckpointId
from ckptctl.model.manifest import Manifest, Skipped
from ckptctl.model.verdict import Completeness, Grade
from ckptctl.saving.posix import digest_file
from ckptctl.storage import journal
from ckptctl.storage.contents import verify_bytes
from ckptctl.storage.repository import Committed, Repository, Unbelieved
from ckptctl.storage.start import choose


@dataclass(frozen=True)
class Listed:
    """One row of `list`: a folder with a checkpoint's name and what it is worth."""

    folder: str
    step: int
    generation: int
    verdict: Completeness
    grade: Grade
    world_size: int | None = None
    size_bytes: int | None = None
    committed_ms: int | None = None
    route: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Verified:
    """The verdict on one checkpoint folder, with every problem found."""

    path: str
    verdict: Completeness
    grade: Grade
    step: int | None
    generation: int | None
    problems: tuple[str, ...]
    files: int = 0
    size_bytes: int = 0

    @property
    def exit_code(self) -> int:
        """0 for COMPLETE and DEGRADED, 20 for INCOMPLETE and UNKNOWN, 21 for CORRUPT and SUSPECT."""
        if self.verdict in (Completeness.COMPLETE, Completeness.DEGRADED):
            return 0
        return 20 if self.verdict in (Completeness.INCOMPLETE, Completeness.UNKNOWN) else 21


@dataclass(frozen=True)
class Selected:
    """The checkpoint that a start would take, and why not the newer ones. `folder` is empty for a start at step 0."""

    root: str
    step: int
    folder: str
    path: str
    manifest_digest: str
    skipped: tuple[Skipped, ...]


def open_root(root: str) -> Repository:
    """Return the repository at `root`. Raises `NoCheckpoint` with advice when it is not a checkpoint root."""
    repository = Repository(root)
    if not repository.exists:
        if not os.path.isdir(repository.root):
            raise StorageFault(
                "there is no such folder", context=repository.root, hint="check the spelling, and the mount on this node"
            )
        raise NoCheckpoint(
            "not a checkpoint root: it has no .ckptctl/lineage.json",
            context=repository.root,
            hint="give the folder that `ckptctl run --root` was given",
        )
    repository.lineage()
    return repository


def list_root(root: str) -> list[Listed]:
    """Return every folder with a checkpoint's name, newest first, judged at grade L1 (COMMIT, fence, names and sizes)."""
    repository = open_root(root)
    fence = repository.fence()
    rows = []
    for hint in repository.folders():
        found = repository.look(hint)
        rows.append(_row(repository, hint, found, fence.refusal(found.id) if isinstance(found, Committed) else ""))
    return rows


def _row(repository: Repository, hint: CheckpointId, found: Committed | Unbelieved, refusal: str) -> Listed:
    if isinstance(found, Unbelieved):
        return Listed(hint.folder, hint.step, hint.generation, _verdict_of(found), Grade.L1, reason=found.reason)
    verdict, reason = (Completeness.SUSPECT, refusal) if refusal else (Completeness.COMPLETE, "")
    manifest: Manifest | None = None
    try:
        manifest = repository.check_sizes(found)
    except ManifestTooNew as exc:
        verdict, reason = Completeness.UNKNOWN, exc.message
    except DamagedCheckpoint as exc:
        verdict, reason = Completeness.CORRUPT, exc.message
    size = sum(file.size_bytes for file in manifest.files) if manifest else None
    return Listed(
        folder=os.path.basename(found.path),
        step=found.id.step,
        generation=found.id.generation,
        verdict=verdict,
        grade=Grade.L1,
        world_size=found.commit.world_size,
        size_bytes=size,
        committed_ms=manifest.committed_ms if manifest else None,
        route="+".join(sorted({rank.route for rank in manifest.ranks})) if manifest else "",
        reason=reason,
    )


def _verdict_of(found: Unbelieved) -> Completeness:
    if found.damaged:
        return Completeness.CORRUPT
    return Completeness.INCOMPLETE if found.reason.startswith("no COMMIT") else Completeness.UNKNOWN


def verify(path: str, *, deep: bool = False, jobs: int = 4) -> Verified:
    """Judge one checkpoint folder: COMMIT, fence, manifest, sizes; with `deep` every byte against its checksum (grade L3)."""
    path = os.path.abspath(path)
    if not os.path.isdir(path):
        raise StorageFault("there is no such folder", context=path, hint="check the spelling, and the mount on this node")
    hint = CheckpointId.parse(os.path.basename(path))
    if hint is None:
        raise UsageError(
            "not a checkpoint folder: its name is not step-NNNNNNNN.gGGGG",
            context=path,
            hint="`ckptctl list ROOT` shows the folders; this version judges ckptctl's own layout",
        )
    repository = open_root(os.path.dirname(path))
    found = repository.look(hint)
    if isinstance(found, Unbelieved):
        return Verified(path, _verdict_of(found), Grade.L1, None, None, (found.reason,))
    problems: list[str] = []
    verdict, grade, files, size = Completeness.COMPLETE, Grade.L1, 0, 0
    refusal = repository.fence().refusal(found.id)
    if refusal:
        verdict = Completeness.SUSPECT
        problems.append(refusal)
    try:
        manifest = repository.check_sizes(found)
        files, size = len(manifest.files), sum(file.size_bytes for file in manifest.files)
        if deep:
            grade = Grade.L3
            problems += (damage := verify_bytes(path, manifest, digest_file, jobs=jobs))
            verdict = Completeness.CORRUPT if damage else verdict
    except ManifestTooNew as exc:
        verdict = Completeness.UNKNOWN
        problems.append(exc.message)
    except DamagedCheckpoint as exc:
        verdict = Completeness.CORRUPT
        problems.append(exc.message)
    return Verified(path, verdict, grade, found.id.step, found.id.generation, tuple(problems), files, size)


def select(root: str) -> Selected:
    """Return what a start would take now, and why not the newer ones; changes nothing.

    Raises `NoCheckpoint` when the lineage had complete checkpoints and has none left.
    """
    repository = open_root(root)
    choice = choose(repository)
    if choice.chosen is None and choice.ever_committed:
        raise NoCheckpoint(
            "this lineage has committed checkpoints, and none of them is complete any more",
            context="; ".join(f"step {skip.step}: {skip.reason}" for skip in choice.skipped[:5]) or repository.root,
            hint="restore a checkpoint, or use a new checkpoint root",
        )
    skipped = choice.skipped
    if choice.missing:
        skipped = (Skipped(choice.missing, 0, "committed, as the journal says, but not to be found"), *skipped)
    chosen = choice.chosen
    return Selected(
        root=repository.root,
        step=chosen.id.step if chosen else 0,
        folder=os.path.basename(chosen.path) if chosen else "",
        path=chosen.path if chosen else "",
        manifest_digest=chosen.commit.manifest_digest if chosen else "",
        skipped=skipped,
    )


@dataclass(frozen=True)
class IncarnationRow:
    """One incarnation of a lineage, as its journal tells it."""

    generation: int
    job: str
    restart: int
    nodes: tuple[str, ...]
    resumed: int
    last_complete: int
    cause: str
    reason: str
    started_ms: int
    ended_ms: int | None
    saves: tuple[int, ...]


def incarnations(root: str) -> list[IncarnationRow]:
    """Return the incarnations of a lineage, oldest first, from its generations and its journal."""
    repository = open_root(root)
    book = repository.journal
    events = book.events()
    rows = []
    for generation in range(1, repository.newest_generation() + 1):
        mine = [event for event in events if event.generation == generation]
        record = repository.generation(generation)
        decision = next((book.facts(event) for event in reversed(mine) if event.name == journal.DECISION), {})
        saves = tuple(event.step for event in mine if event.name == journal.COMMIT)
        resumed = next((event.step for event in mine if event.name == journal.RESUME), 0)
        rows.append(
            IncarnationRow(
                generation=generation,
                job=record.job,
                restart=record.restart,
                nodes=record.nodes,
                resumed=resumed,
                last_complete=max(saves, default=resumed),
                cause=str(decision.get("cause", "taken by the scheduler, or running")),
                reason=str(decision.get("reason", "")),
                started_ms=record.created_ms,
                ended_ms=int(decision["time_ms"]) if "time_ms" in decision else None,
                saves=saves,
            )
        )
    return rows
