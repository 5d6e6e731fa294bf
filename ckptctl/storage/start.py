"""The start of an incarnation: take a generation, sweep, recover, choose once, make the choice durable. In that order.

Everything a later reader needs to distrust a zombie is on disk before the first rank of the new incarnation starts. A start
that dies anywhere in between leaves only a generation that never resumed; the next start does it all again.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from ckptctl.errors import (
    CkptctlError,
    DamagedCheckpoint,
    DeadlineExceeded,
    Fenced,
    NoCheckpoint,
    RootInUse,
    SaveFailed,
    StepTaken,
    StorageFault,
)
from ckptctl.model.checkpoint import PROOF, CheckpointId, generation_name, parse_generation, parse_staged, staged_name
from ckptctl.model.manifest import FilesystemIdentity, Generation, Receipt, ResumePoint, SavePlan, Skipped
from ckptctl.policy.selection import Fence
from ckptctl.storage import files, journal
from ckptctl.storage.repository import Committed, Repository, Unbelieved, with_generation

Alive = Callable[[Generation], "bool | None"]
"""Says whether a generation's job is another job that is alive; None when nobody can say."""


_SWEEP = re.compile(r"staging-g\d+\.by-g(\d+)\.[0-9a-f]+")


@dataclass(frozen=True)
class StartOptions:
    """What a start may do beyond the rules: `take_over` a root that another live job holds; take an older checkpoint though a
    newer recorded one is not to be found (`allow_older`). `settle_s` is how long a recorded step may take to appear in a
    listing (attribute caches of shared mounts); `silent_s` after how much silence a job that nobody knows counts as gone.
    """

    take_over: bool = False
    allow_older: bool = False
    settle_s: float = 5.0
    silent_s: float = 900.0
    keep_sweeps: int = 4
    tool: str = ""


@dataclass(frozen=True)
class Started:
    """An incarnation that may launch its ranks: its token, and the resume point it made durable."""

    record: Generation
    point: ResumePoint
    path: str
    filesystem: FilesystemIdentity | None


@dataclass(frozen=True)
class Choice:
    """What a start takes: a checkpoint, or None for step 0; what was newer and is not taken; what is recorded but not there."""

    chosen: Committed | None
    skipped: tuple[Skipped, ...]
    missing: int
    ever_committed: bool
    filesystem: FilesystemIdentity | None = None


def begin(repository: Repository, record: Generation, alive: Alive, options: StartOptions) -> Started:
    """Begin an incarnation. Raises `RootInUse`, `NoCheckpoint`, `StorageFault`, and what the repository raises.

    `record.generation` is ignored: the ordinal is taken here.
    """
    record = _take(repository, record, alive, options)
    ordinal = record.generation
    repository.journal.write(journal.GENERATION, ordinal, job=record.job, restart=record.restart, nodes=record.nodes)
    fence = repository.fence()
    unfinished = _swept_by_starts_that_died(repository)
    swept = _sweep(repository, ordinal)
    files.make_folder(repository.staging(ordinal), exist_ok=True)
    recovered = _recover(repository, ordinal, [*unfinished, *swept], fence, options.tool)
    choice = _choose_settled(repository, options)
    step = choice.chosen.id.step if choice.chosen else 0
    point = ResumePoint(
        generation=ordinal,
        step=step,
        folder=os.path.basename(choice.chosen.path) if choice.chosen else "",
        manifest_digest=choice.chosen.commit.manifest_digest if choice.chosen else "",
        sequence=choice.chosen.commit.sequence if choice.chosen else 0,
        limits={str(old): top for old, top in fence.resumed_at(ordinal, step, range(1, ordinal)).limits.items()},
        skipped=choice.skipped,
        recovered=tuple(recovered),
        set_aside=tuple(os.path.basename(path) for path in swept),
    )
    repository.check_newest(ordinal)
    repository.write_resume_point(point)
    if choice.chosen and not _recorded(repository, choice.chosen.id):
        found = choice.chosen.id
        repository.journal.write(journal.COMMIT, found.generation, found.step, folder=found.folder, found_by=ordinal)
    repository.journal.write(journal.RESUME, ordinal, step, folder=point.folder, recovered=recovered)
    _set_disowned_aside(repository, ordinal)
    repository.tidy_quarantine(keep=options.keep_sweeps)
    return Started(record, point, choice.chosen.path if choice.chosen else "", choice.filesystem)


def choose(repository: Repository) -> Choice:
    """Pick the newest complete checkpoint: COMMIT and fence for each candidate, sizes only for the one picked. Read-only."""
    fence = repository.fence()
    skipped: list[Skipped] = []
    events = [
        CheckpointId(event.step, event.generation)
        for event in repository.journal.events(journal.COMMIT)
        if fence.counts(CheckpointId(event.step, event.generation))
    ]
    recorded = max((event.step for event in events), default=0)
    for hint in repository.folders():
        found = repository.look(hint)
        if isinstance(found, Unbelieved):
            skipped.append(Skipped(hint.step, hint.generation, found.reason))
            continue
        refusal = fence.refusal(found.id)
        if refusal:
            skipped.append(Skipped(found.id.step, found.id.generation, refusal))
            continue
        try:
            manifest = repository.check_sizes(found)
        except DamagedCheckpoint as exc:
            skipped.append(Skipped(found.id.step, found.id.generation, f"damaged: {exc.message}"))
            continue
        seen = [skip.step for skip in skipped]
        missing = recorded if recorded > found.id.step and recorded not in seen else 0
        return Choice(found, tuple(skipped), missing, ever_committed=True, filesystem=manifest.filesystem)
    return Choice(None, tuple(skipped), recorded, ever_committed=bool(events))


def _take(repository: Repository, record: Generation, alive: Alive, options: StartOptions) -> Generation:
    for _ in range(100):
        newest = repository.newest_generation()
        if newest:
            _refuse_live(repository, newest, alive, options)
        ours = with_generation(record, newest + 1)
        if repository.take_generation(ours):
            return ours
    raise DeadlineExceeded(
        "another start took every generation that was tried", context=repository.root, hint="is one job submitted twice?"
    )


def _refuse_live(repository: Repository, newest: int, alive: Alive, options: StartOptions) -> None:
    holder = repository.generation(newest)
    state = alive(holder)
    why = "it is running"
    if state is None and any(event.generation == newest for event in repository.journal.events(journal.DECISION)):
        state = False  # its own `run` has recorded how it ended
    if state is None:
        silent = time.time() - _last_sign(repository, holder)
        state = silent < options.silent_s
        why = f"nobody knows the job any more, but it gave a sign of life {max(0, int(silent))} s ago"
    if state and not options.take_over:
        raise RootInUse(
            f"the checkpoint root is in use by job {holder.job} of user {holder.user} (generation {newest}): {why}",
            context=repository.root,
            hint="end that job, use another root, or pass --take-over to fence it",
        )


def _last_sign(repository: Repository, holder: Generation) -> float:
    """Return when a generation was last seen doing something, in seconds of the epoch (the server's clock for files)."""
    signs = [holder.created_ms / 1000]
    signs += [event.time_ms / 1000 for event in repository.journal.events() if event.generation == holder.generation]
    staging = repository.staging(holder.generation)
    for name in files.names(staging):
        for part in (name, os.path.join(name, PROOF, "receipts")):
            try:
                signs.append(os.stat(os.path.join(staging, part)).st_mtime)
            except OSError:
                continue
    return max(signs)


def _sweep(repository: Repository, ordinal: int) -> list[str]:
    """Move every older generation's staging into quarantine. Tidies only: what a zombie holds open it can still reach."""
    moved = []
    for name, path in repository.stagings():
        generation = parse_generation(name)
        if generation is None or generation >= ordinal:
            continue
        if not files.names(path):
            try:
                os.rmdir(path)
                continue
            except OSError:
                pass
        try:
            moved.append(repository.set_aside(path, f"staging-{name}.by-{generation_name(ordinal)}"))
        except StorageFault as exc:
            if not isinstance(exc.__cause__, FileNotFoundError):
                raise
    if moved:
        repository.journal.write(journal.QUARANTINE, ordinal, what=[os.path.basename(path) for path in moved])
    return moved


def _swept_by_starts_that_died(repository: Repository) -> list[str]:
    """Return the sweeps of starts that died before their resume point: what they could have recovered is still in there."""
    point = repository.resume_point()
    resumed = point.generation if point else 0
    folder = os.path.join(repository.proof, "quarantine")
    found = (_SWEEP.fullmatch(name) for name in files.names(folder))
    return [os.path.join(folder, match[0]) for match in found if match and int(match[1]) > resumed]


def _recover(repository: Repository, ordinal: int, swept: list[str], fence: Fence, tool: str) -> list[str]:
    """Commit swept saves whose receipts are all there, under this generation, if they are newer than what is complete."""
    best = next((found.id.step for found in repository.complete()), -1)
    candidates: list[tuple[int, str, SavePlan, list[Receipt]]] = []
    for folder in swept:
        for name in files.names(folder):
            staging = os.path.join(folder, name)
            plan = repository.plan(staging)
            step = parse_staged(name)
            if plan is None or step != plan.step or plan.lineage != repository.lineage().id or step <= best:
                continue
            receipts = [repository.receipt(staging, node) for node in plan.nodes]
            whole = [found for found in receipts if found is not None and not found.error]
            if len(whole) == len(plan.nodes) and whole and fence.counts(CheckpointId(step, plan.generation)):
                candidates.append((step, staging, plan, whole))
    done: list[str] = []
    sequence = max((found.commit.sequence for found in repository.complete()), default=0)
    for step, staging, plan, proofs in sorted(candidates, key=lambda candidate: candidate[0]):
        target = os.path.join(repository.staging(ordinal), staged_name(step))
        try:
            if os.path.lexists(target):
                continue  # two generations staged it whole; the first one recovered will do
            files.move(staging, target)
            marker = os.path.join(target, PROOF, "COMMIT")
            if os.path.lexists(marker):  # its committer died between COMMIT and rename; it counts under our name now
                files.move(marker, f"{marker}.{generation_name(plan.generation)}")
            sequence += 1
            found = repository.commit(target, plan, proofs, generation=ordinal, sequence=sequence, tool=tool)
        except Fenced:
            raise
        except (SaveFailed, StepTaken, DamagedCheckpoint) as exc:
            if os.path.lexists(target):
                repository.set_aside(target, f"unrecovered-{staged_name(step)}.by-{generation_name(ordinal)}")
            repository.journal.write(journal.QUARANTINE, ordinal, step, reason=exc.message)
            continue
        repository.journal.write(
            journal.RECOVER, ordinal, step, folder=os.path.basename(found.path), generation_before=plan.generation
        )
        done.append(os.path.basename(found.path))
    return done


def _choose_settled(repository: Repository, options: StartOptions) -> Choice:
    """Choose; when a recorded step is not to be found, list again until the settle time has passed."""
    deadline = time.monotonic() + options.settle_s
    pause = 0.05
    while True:
        choice = choose(repository)
        if not choice.missing:
            break
        left = deadline - time.monotonic()
        if left <= 0:
            break
        time.sleep(min(pause, left))
        pause *= 2
    if choice.chosen is None and choice.ever_committed:
        raise NoCheckpoint(
            "this lineage has committed checkpoints, and none of them is complete any more",
            context=f"{repository.root}" + "".join(f"; step {skip.step}: {skip.reason}" for skip in choice.skipped[:5]),
            hint="it is not started from scratch in silence: restore a checkpoint, or use a new checkpoint root",
        )
    if choice.missing and choice.chosen is not None and not options.allow_older:
        raise StorageFault(
            f"step {choice.missing} was committed but is not to be found; the newest complete one seen is step "
            f"{choice.chosen.id.step}",
            context=repository.root,
            hint="is the whole file system visible here? if somebody deleted it, pass --allow-older",
        )
    return choice


def _recorded(repository: Repository, checkpoint: CheckpointId) -> bool:
    return any(
        (event.step, event.generation) == (checkpoint.step, checkpoint.generation)
        for event in repository.journal.events(journal.COMMIT)
    )


def _set_disowned_aside(repository: Repository, ordinal: int) -> None:
    """Move what the durable resume point disowns out of the root, by exact name; failing to is no obstacle."""
    fence = repository.fence()
    for hint in repository.folders():
        if hint.generation >= ordinal:
            continue
        try:
            found = repository.look(hint)
            refused = isinstance(found, Committed) and found.id == hint and not fence.counts(found.id)
            torn = isinstance(found, Unbelieved) and found.reason.startswith("no COMMIT")
            if refused or torn:
                label = "fenced" if refused else "torn"
                repository.set_aside(os.path.join(repository.root, hint.folder), f"{label}-{hint.folder}")
                repository.journal.write(journal.QUARANTINE, ordinal, hint.step, what=[hint.folder], reason=label)
        except (CkptctlError, FileExistsError):
            continue


def new_record(
    repository: Repository,
    *,
    scheduler: str,
    job: str,
    restart: int,
    user: str,
    nodes: tuple[str, ...],
    boot_ids: dict[str, str],
) -> Generation:
    """Return the record of an incarnation of this lineage, its ordinal still to be taken."""
    return Generation(
        generation=0,
        lineage=repository.lineage().id,
        scheduler=scheduler,
        job=job,
        restart=restart,
        user=user,
        nodes=nodes,
        boot_ids=boot_ids,
        host=os.uname().nodename,
        pid=os.getpid(),
        nonce=secrets.token_hex(8),
    )
