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

    `complete` holds only checkpoints that count (not fenced, not damaged as far as known). The newest `keep_last` stay
    (at least `MINIMUM`), and every `keep_every`-th of the lineage; 0 switches the second rule off.
    """
    ordered = sorted(complete, key=lambda kept: kept.id)
    older = ordered[: -max(keep_last, MINIMUM)]
    return [kept.id for kept in older if not keep_every or kept.sequence % keep_every]
