"""JSON of our files: sorted keys, integers for sizes, `format` checked first, unknown keys ignored by readers."""

from __future__ import annotations

import hashlib
from typing import TypeVar

import msgspec

from ckptctl.errors import DamagedCheckpoint, ManifestTooNew

T = TypeVar("T")

FORMAT_VERSION = 1
"""The format of every file that ckptctl writes into a checkpoint root."""


class _Format(msgspec.Struct):
    format: int


def encode(value: object) -> bytes:
    """Encode a dataclass as one line of JSON with sorted keys and a closing newline."""
    return msgspec.json.encode(value, order="sorted") + b"\n"


def decode(kind: type[T], data: bytes, where: str) -> T:
    """Decode `data` as the dataclass `kind`.

    Raises `ManifestTooNew` when its `format` is newer than ours, `DamagedCheckpoint` when it is not what it should be;
    both name `where`.
    """
    try:
        version = msgspec.json.decode(data, type=_Format).format
    except msgspec.MsgspecError as exc:
        raise DamagedCheckpoint(
            f"not a ckptctl {kind.__name__.lower()} file: {exc}",
            context=where,
            hint="the file was changed or cut after it was written; `ckptctl list` shows the other checkpoints",
        ) from exc
    if version > FORMAT_VERSION:
        raise ManifestTooNew(
            f"format {version} is newer than this ckptctl knows ({FORMAT_VERSION})",
            context=where,
            hint="use the ckptctl that wrote it, or a newer one; nothing was changed",
        )
    if version < 1:
        raise DamagedCheckpoint(f"format {version} never existed", context=where, hint="the file was changed by hand")
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as exc:
        raise DamagedCheckpoint(
            f"a ckptctl {kind.__name__.lower()} file with a damaged field: {exc}",
            context=where,
            hint="the file was changed after it was written; `ckptctl list` shows the other checkpoints",
        ) from exc


def digest(data: bytes) -> str:
    """Return the digest by which one of our files names another: SHA-256, hexadecimal."""
    return hashlib.sha256(data).hexdigest()
