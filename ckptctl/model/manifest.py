"""What ckptctl writes beside the bytes of a checkpoint: save plan, receipts, manifest, COMMIT; generations, resume points.

The layout is `docs/reference/format.md`. Everything here is a frozen dataclass whose JSON is made by `model.codec`.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field

from ckptctl.model.codec import FORMAT_VERSION

BLOCK_BYTES = 8 * 1024 * 1024
"""Bytes per block checksum (crc32c). The last block of a file may be shorter."""


def blocks_digest(blocks: tuple[int, ...]) -> str:
    """Return a file's one digest: SHA-256 over its block checksums, each as 4 bytes little-endian.

    It binds a manifest to every block of the file without a second pass over the bytes.
    """
    packed = struct.pack(f"<{len(blocks)}I", *blocks)
    return "crc32c-8MiB:" + hashlib.sha256(packed).hexdigest()


@dataclass(frozen=True)
class WrittenFile:
    """Proof of one written file: its size, the crc32c of each 8 MiB block, and the route its bytes took.

    `route` is `direct` (O_DIRECT), `buffered`, `gds` or `compat`; `fallback_errno` is the error that made an engine leave
    its preferred route, 0 for none.
    """

    name: str
    size_bytes: int
    blocks: tuple[int, ...]
    route: str
    fallback_errno: int = 0

    @property
    def digest(self) -> str:
        """The one digest of the file."""
        return blocks_digest(self.blocks)


@dataclass(frozen=True)
class RankReceipt:
    """One rank's part of a receipt."""

    rank: int
    engine: str
    files: tuple[WrittenFile, ...]
    write_ms: int = 0
    stall_ms: int = 0


@dataclass(frozen=True)
class Receipt:
    """A node's word that all its ranks' files are durable, or that the save failed there (`error` not empty)."""

    node: str
    generation: int
    step: int
    ranks: tuple[RankReceipt, ...] = ()
    error: str = ""
    boot_id: str = ""
    format: int = FORMAT_VERSION


@dataclass(frozen=True)
class SavePlan:
    """What a save consists of, written by the leader into staging before any rank writes: whose receipts to wait for."""

    lineage: str
    generation: int
    step: int
    sequence: int
    world_size: int
    nodes: dict[str, tuple[int, ...]]
    job: str = ""
    started_ms: int = 0
    format: int = FORMAT_VERSION


@dataclass(frozen=True)
class FilesystemIdentity:
    """Which volume a folder is on, as far as two nodes can compare it: type, source, root within the file system."""

    type: str
    source: str
    root: str


@dataclass(frozen=True)
class FileEntry:
    """One file of a checkpoint: path below its folder, size, one digest."""

    path: str
    size_bytes: int
    digest: str


@dataclass(frozen=True)
class RankEntry:
    """Who wrote a rank's bytes, with which engine, by which route."""

    rank: int
    node: str
    engine: str
    route: str
    write_ms: int = 0
    stall_ms: int = 0


@dataclass(frozen=True)
class Manifest:
    """The list of all: every file with size and digest, and where it came from."""

    lineage: str
    generation: int
    step: int
    sequence: int
    world_size: int
    files: tuple[FileEntry, ...]
    ranks: tuple[RankEntry, ...]
    filesystem: FilesystemIdentity
    job: str = ""
    started_ms: int = 0
    committed_ms: int = 0
    recovered_from: int = 0
    tool: str = ""
    format: int = FORMAT_VERSION


@dataclass(frozen=True)
class Commit:
    """The marker that makes the files a checkpoint. `sequence` counts the checkpoints of the lineage (retention)."""

    lineage: str
    generation: int
    step: int
    sequence: int
    world_size: int
    manifest: str
    manifest_digest: str
    format: int = FORMAT_VERSION


@dataclass(frozen=True)
class Lineage:
    """One training run's identity, written once. `staging` is `inside` or `beside` (where rename out of it gives EXDEV)."""

    id: str
    created_ms: int
    owner_uid: int
    owner_gid: int
    access: str = "write"
    staging: str = "inside"
    format: int = FORMAT_VERSION


@dataclass(frozen=True)
class Generation:
    """One incarnation's fencing token, created exclusively."""

    generation: int
    lineage: str
    scheduler: str
    job: str
    restart: int
    user: str
    nodes: tuple[str, ...] = ()
    boot_ids: dict[str, str] = field(default_factory=dict)
    host: str = ""
    pid: int = 0
    created_ms: int = 0
    nonce: str = ""
    format: int = FORMAT_VERSION


@dataclass(frozen=True)
class Skipped:
    """A newer checkpoint that a start did not choose, and why."""

    step: int
    generation: int
    reason: str


@dataclass(frozen=True)
class ResumePoint:
    """What a generation resumed from, durable before its first rank starts.

    `limits` holds for every older generation the highest step of it that still counts (the fence); a reader needs only the
    newest resume point. `folder` is empty for a start at step 0.
    """

    generation: int
    step: int
    folder: str = ""
    manifest_digest: str = ""
    sequence: int = 0
    limits: dict[str, int] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    recovered: tuple[str, ...] = ()
    set_aside: tuple[str, ...] = ()
    format: int = FORMAT_VERSION
