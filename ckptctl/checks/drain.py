"""Whether a client that writes back has bytes that are on this node alone."""

from __future__ import annotations

import os
import re

from ckptctl.checks.child import run_in_child
from ckptctl.errors import CkptctlError
from ckptctl.model.mount import MountRow
from ckptctl.model.report import Finding, Severity

_STAGING = re.compile(r"^juicefs_staging_blocks(?:\{[^}]*\})?\s+(\d+)", re.MULTILINE)
_LARGEST_BYTES = 1024 * 1024


def staged(row: MountRow, *, deadline_s: float) -> tuple[Finding, ...]:
    """Return a warning when blocks are only on this node's disk: JuiceFS tells it in `.stats` of its mount point.

    Other clients that write back don't tell; they are refused by their class.
    """
    if row.type != "fuse.juicefs":
        return ()
    try:
        text = run_in_child(lambda: _read(os.path.join(row.mount_point, ".stats")), deadline_s=deadline_s)
    except CkptctlError:
        return ()
    blocks = sum(int(count) for count in _STAGING.findall(text))
    if not blocks:
        return ()
    message = f"{blocks} blocks are on this node's disk only, and not uploaded yet"
    remedy = "wait for them before the node is given back, or mount it without --writeback"
    return (Finding("not-drained", Severity.WARNING, message, where=row.mount_point, remedy=remedy, facts={"blocks": blocks}),)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_LARGEST_BYTES)
    except OSError:
        return ""
