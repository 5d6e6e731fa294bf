"""Which complete checkpoints may go. Pure: the repository deletes, and only what its lineage committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ckptctl.model.checkpoint import CheckpointId

MINIMUM = 2
"""Never fewer complete checkpoints than this are kept, whatever was asked for."""


@dataclass(frozen=True)
class Kept:
    """A complete checkpoint and its ordinal among the lineage's checkpoints."""

    id: CheckpointId
    sequence: int


def disposable(complete: Sequence[Kept], *, keep_last: int, keep_every: int) -> list[CheckpointId]:
    """Return the checkpoints that may be deleted, oldest first.

    `complete` holds only checkpoints that count (not fenced, not damaged as far as known). The newest `keep_last` steps stay
    (at least `MINIMUM`), and every `keep_every`-th checkpoint of the lineage; 0 switches the second rule off. Of one step,
    saved by several generations, the newest generation's stands for it and the others may go.
    """
    newest = {kept.id.step: kept for kept in sorted(complete, key=lambda kept: kept.id)}
    older = sorted(newest)[: -max(keep_last, MINIMUM)]
    by_rule = {newest[step].id for step in older if not keep_every or newest[step].sequence % keep_every}
    superseded = {kept.id for kept in complete if kept != newest[kept.id.step]}
    return sorted(by_rule | superseded)
