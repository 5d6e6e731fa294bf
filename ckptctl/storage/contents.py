"""What is in a checkpoint folder, compared with what its receipts and its manifest say."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from ckptctl.errors import SaveFailed, StorageFault
from ckptctl.model import codec
from ckptctl.model.checkpoint import PROOF
from ckptctl.model.manifest import FileEntry, Manifest, RankEntry, Receipt, SavePlan
from ckptctl.storage import files, mounts


def manifest_of(staging: str, plan: SavePlan, receipts: list[Receipt], owner: int, sequence: int, tool: str) -> Manifest:
    """Return the manifest of a staged save whose receipts are all there, committed by generation `owner`.

    Raises `SaveFailed` when the receipts are not one per rank, a file's size on disk is not its receipt's, or DCP's metadata
    is missing.
    """
    entries: list[FileEntry] = []
    ranks: list[RankEntry] = []
    for receipt in receipts:
        for rank in receipt.ranks:
            entries += [FileEntry(file.name, file.size_bytes, file.digest) for file in rank.files]
            route = "+".join(sorted({file.route for file in rank.files}))
            ranks.append(RankEntry(rank.rank, receipt.node, rank.engine, route, rank.write_ms, rank.stall_ms))
    expected = sorted(rank for on_node in plan.nodes.values() for rank in on_node)
    if sorted(entry.rank for entry in ranks) != expected or expected != list(range(plan.world_size)) or not expected:
        raise SaveFailed(
            f"the receipts of step {plan.step} are not one per rank of a world of {plan.world_size}", context=staging
        )
    problem = next(iter(size_problems(staging, entries)), "")
    if problem:
        raise SaveFailed(f"step {plan.step}: {problem}", context=staging, hint="the storage lost bytes it had fsynced")
    metadata = os.path.join(staging, ".metadata")
    if not os.path.lexists(metadata):
        metadata = os.path.join(staging, PROOF, "dcp-metadata")
    try:
        body = files.read(metadata)
    except StorageFault as exc:
        if not isinstance(exc.__cause__, FileNotFoundError):
            raise
        raise SaveFailed(f"step {plan.step}: its .metadata was never written", context=staging) from exc
    entries.append(FileEntry(".metadata", len(body), "sha256:" + codec.digest(body)))
    return Manifest(
        lineage=plan.lineage,
        generation=owner,
        step=plan.step,
        sequence=sequence,
        world_size=plan.world_size,
        files=tuple(sorted(entries, key=lambda entry: entry.path)),
        ranks=tuple(sorted(ranks, key=lambda entry: entry.rank)),
        filesystem=mounts.identity(staging),
        job=plan.job,
        started_ms=plan.started_ms,
        committed_ms=time.time_ns() // 1_000_000,
        recovered_from=plan.generation if owner != plan.generation else 0,
        tool=tool,
    )


def verify_bytes(path: str, manifest: Manifest, digest_file: Callable[[str], tuple[int, str]], *, jobs: int = 4) -> list[str]:
    """Read every file and compare its digest with the manifest's; returns one line per file that differs.

    `digest_file` returns size and digest of a file in the form the manifest has them (crc32c blocks).
    """

    def check(entry: FileEntry) -> str:
        full = os.path.join(path, entry.path)
        if entry.digest.startswith("sha256:"):
            data = files.read(full)
            size, found = len(data), "sha256:" + codec.digest(data)
        else:
            size, found = digest_file(full)
        if size != entry.size_bytes:
            return f"{entry.path}: {size} bytes where {entry.size_bytes} were committed"
        return "" if found == entry.digest else f"{entry.path}: its bytes are not those that were committed"

    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        return [line for line in pool.map(check, manifest.files) if line]


def size_problems(path: str, entries: list[FileEntry] | tuple[FileEntry, ...]) -> Iterator[str]:
    """Yield one line per file below `path` that is missing or has another size than its entry."""

    def check(entry: FileEntry) -> str:
        try:
            size = os.stat(os.path.join(path, entry.path)).st_size
        except FileNotFoundError:
            return f"{entry.path} is missing"
        except OSError as exc:
            raise files.as_ours(exc, os.path.join(path, entry.path), "look at") from exc
        return "" if size == entry.size_bytes else f"{entry.path} has {size} bytes where {entry.size_bytes} were written"

    if len(entries) < 32:
        yield from filter(None, map(check, entries))
        return
    with ThreadPoolExecutor(max_workers=16) as pool:
        yield from filter(None, pool.map(check, entries))
