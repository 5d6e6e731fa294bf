"""Whether the checkpoints of a run fit: what it needs, from what the user knows, against what the file system says. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ckptctl.errors import UsageError
from ckptctl.model.mount import PathFacts
from ckptctl.model.quota import Quota
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


@dataclass(frozen=True)
class Wanted:
    """What a run will want to keep: the size of one checkpoint and whence it is known, how many, and what is there already.

    `shard_bytes` is the size of the largest file of a checkpoint, None when nobody knows.
    """

    one_bytes: int
    source: str
    keep_last: int
    held_bytes: int = 0
    shard_bytes: int | None = None


def needed_bytes(one_bytes: int, keep_last: int) -> int:
    """Return what a run needs: the complete checkpoints that are kept, the one being written, and a margin."""
    return round(one_bytes * (keep_last + 1) * MARGIN)


def fits(facts: PathFacts, wanted: Wanted, quotas: Sequence[Quota] = (), unknown_quotas: str = "") -> Finding:
    """Return whether the checkpoints fit into the free space and under every quota.

    `unknown_quotas` says why there may be quotas that nobody told.
    """
    need = max(0, needed_bytes(wanted.one_bytes, wanted.keep_last) - wanted.held_bytes)
    copies = wanted.keep_last + 1
    numbers: dict[str, Any] = {"checkpoint_bytes": wanted.one_bytes, "needed_bytes": need, "copies": copies}
    numbers["free_bytes"] = facts.free_bytes
    message = f"{copies} checkpoints of {_size(wanted.one_bytes)} ({wanted.source}) need {_size(need)} more with a margin"
    left = {quota.name: max(0, quota.limit_bytes - quota.used_bytes) for quota in quotas if quota.limit_bytes}
    if left:
        numbers["quota_left_bytes"] = left
    least = min(left, key=lambda name: left[name], default="")
    if least and need > left[least]:
        text = f"{message}, and the quota of {least} leaves {_size(left[least])}"
        return Finding(
            "no-space", Severity.ERROR, text, facts.existing, "ask for more quota, or keep fewer checkpoints", numbers
        )
    if facts.total_bytes and need > facts.free_bytes:
        text = f"{message}, and {_size(facts.free_bytes)} are free"
        remedy = "free space, keep fewer checkpoints, or use another file system"
        return Finding("no-space", Severity.ERROR, text, where=facts.existing, remedy=remedy, facts=numbers)
    free = f"{_size(facts.free_bytes)} are free" if facts.total_bytes else "the file system does not say what is free"
    free += f", and {_size(left[least])} under the quota of {least}" if least else ""
    free += f" (quotas are not counted: {unknown_quotas})" if unknown_quotas else ""
    return Finding("capacity", Severity.INFO, f"{message}; {free}", where=facts.existing, facts=numbers)


def quota_findings(quotas: Sequence[Quota], where: str) -> tuple[Finding, ...]:
    """Return what is to be said of quotas whatever a run will need: used up, nearly used up, over a soft limit."""
    found = []
    for quota in quotas:
        for what, used, soft, limit in (
            ("bytes", quota.used_bytes, quota.soft_bytes, quota.limit_bytes),
            ("files", quota.used_inodes, quota.soft_inodes, quota.limit_inodes),
        ):
            if not limit:
                continue
            shown = f"{_size(used)} of {_size(limit)}" if what == "bytes" else f"{used} of {limit} files"
            facts = {"quota": quota.name, "what": what, "used": used, "limit": limit}
            remedy = "remove what is not needed, or ask for more quota"
            if used >= limit:
                message = f"the quota of {quota.name} is used up: {shown}"
                found.append(Finding("no-quota", Severity.ERROR, message, where, remedy, facts))
            elif soft and used > soft:
                grace = f", in {quota.grace}" if quota.grace else ""
                message = (
                    f"{quota.name} is over the soft quota: {shown}; writing will be refused when its grace has passed{grace}"
                )
                found.append(Finding("low-quota", Severity.WARNING, message, where, remedy, facts))
            elif used * 10 > limit * 9:
                message = f"the quota of {quota.name} is nearly used up: {shown}"
                found.append(Finding("low-quota", Severity.WARNING, message, where, remedy, facts))
    return tuple(found)


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            return f"{value:.1f} {unit}" if unit != "B" else f"{count} B"
        value /= 1000
    return str(count)
