"""Whether the layout that Lustre gives new files suits the shards of a checkpoint. Findings of speed, never of safety. Pure.

One rank writes one file, so that the ranks spread over the OSTs by themselves: a shard needs several OSTs only when one OST's
share of the time is too long, and many OSTs for a small shard cost locks and RPCs on each (Lustre manual, file striping).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ckptctl.model.quota import Component
from ckptctl.model.report import Finding, Severity

LARGE_SHARD_BYTES = 16 * 10**9
"""From here one OST alone takes long (10 s and more at 1.5 GB/s) and fills unevenly."""
SMALL_SHARD_BYTES = 10**9
"""Up to here one OST is enough."""
_WIDE = 8


def layout_findings(layout: Sequence[Component], shard_bytes: int | None, where: str) -> tuple[Finding, ...]:
    """Return what is wrong with a layout for shards of a size, or the layout alone where the size is not known."""
    if not layout:
        return ()
    shown = ", ".join(_component(part) for part in layout)
    facts: dict[str, Any] = {"layout": [{"start": part.start, "end": part.end, "stripes": part.stripes} for part in layout]}
    if shard_bytes is None:
        return (Finding("lustre-layout", Severity.INFO, f"new files lie on {shown}", where, facts=facts),)
    facts["shard_bytes"] = shard_bytes
    last = next((part for part in layout if part.end is None or part.end >= shard_bytes), layout[-1])
    size = f"{shard_bytes / 1e9:.1f} GB"
    if shard_bytes >= LARGE_SHARD_BYTES and last.stripes in (0, 1):
        message = f"shards of {size} go to one OST each ({shown}): a save is as slow as the busiest OST"
        remedy = f"before the first save: lfs setstripe -c 4 {where}"
        return (Finding("lustre-narrow", Severity.WARNING, message, where, remedy, facts),)
    if shard_bytes <= SMALL_SHARD_BYTES and (last.stripes == -1 or last.stripes > _WIDE):
        message = f"shards of {size} are cut over many OSTs ({shown}): each costs locks and RPCs on all of them"
        remedy = f"before the first save: lfs setstripe -c 1 {where}"
        return (Finding("lustre-wide", Severity.WARNING, message, where, remedy, facts),)
    return (Finding("lustre-layout", Severity.INFO, f"shards of {size} lie on {shown}", where, facts=facts),)


def _component(part: Component) -> str:
    stripes = "all OSTs" if part.stripes == -1 else "the metadata server" if part.stripes == 0 else f"{part.stripes} OST(s)"
    if part.start == 0 and part.end is None:
        return stripes
    return f"{stripes} from {part.start / 1e9:g} GB" if part.end is None else f"{stripes} to {part.end / 1e9:g} GB"
