"""Whether the checkpoints of a run fit: what it needs, from what the user knows, against what the file system says. Pure."""

from __future__ import annotations

import re

from ckptctl.errors import UsageError
from ckptctl.model.mount import PathFacts
from ckptctl.model.report import Finding, Severity

MARGIN = 1.1
"""Parallel file systems refuse before they are full: the fullest target decides."""
BYTES_PER_PARAM = {"fsdp": 12, "deepspeed": 14, "megatron": 14}
"""Bytes of a full training checkpoint per parameter with Adam.

FSDP2 with fp32 parameters: parameter and two moments, 4 bytes each. DeepSpeed ZeRO and Megatron's distributed optimizer: fp32
master copy and two moments, 4 bytes each, and the 2-byte weights.
"""
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}


def parse_count(text: str) -> int:
    """Return `2.3TB`, `1.5TiB`, `70B` (a number of parameters: billions), `800M` as a number. Raises `UsageError`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kKMGTP]?)(i?)([Bb]?)\s*", text)
    if match is None or (match[3] and not match[2]):
        raise UsageError(f"not a size: {text!r}", hint="write it as 900GB, 2.3TB or 1.5TiB; parameters as 7B or 70B")
    number = float(match[1])
    if match[2]:
        return round(number * (_BINARY if match[3] else _UNITS)[match[2].upper()])
    return round(number * (10**9 if match[4] else 1))


def needed_bytes(one_bytes: int, keep_last: int) -> int:
    """Return what a run needs: the complete checkpoints that are kept, the one being written, and a margin."""
    return round(one_bytes * (keep_last + 1) * MARGIN)


def fits(facts: PathFacts, one_bytes: int, keep_last: int, held_bytes: int, source: str) -> Finding:
    """Return whether the checkpoints fit into the free space; `held_bytes` of them are there already. Quotas are not in it."""
    need = max(0, needed_bytes(one_bytes, keep_last) - held_bytes)
    numbers = {"checkpoint_bytes": one_bytes, "needed_bytes": need, "free_bytes": facts.free_bytes, "copies": keep_last + 1}
    message = f"{keep_last + 1} checkpoints of {_size(one_bytes)} ({source}) need {_size(need)} more with a margin"
    if not facts.total_bytes:
        return Finding("capacity", Severity.INFO, f"{message}; the file system does not say what is free", facts.existing)
    if need > facts.free_bytes:
        text = f"{message}, and {_size(facts.free_bytes)} are free"
        remedy = "free space, keep fewer checkpoints, or use another file system"
        return Finding("no-space", Severity.ERROR, text, where=facts.existing, remedy=remedy, facts=numbers)
    text = f"{message}; {_size(facts.free_bytes)} are free (quotas are not counted)"
    return Finding("capacity", Severity.INFO, text, where=facts.existing, facts=numbers)


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            return f"{value:.1f} {unit}" if unit != "B" else f"{count} B"
        value /= 1000
    return str(count)
