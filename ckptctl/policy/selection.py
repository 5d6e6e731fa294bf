"""Which checkpoint a start takes: the fence and the order of candidates. Pure; the repository does the looking."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ckptctl.model.checkpoint import CheckpointId


@dataclass(frozen=True)
class Fence:
    """The highest step of each older generation that still counts, as the newest resume point says.

    A checkpoint of a generation that the resume point does not limit (its own, or one taken later) counts at any step.
    The rule, and why it is one for readers: `docs/explanation/fencing.md`.
    """

    limits: Mapping[int, int]

    def counts(self, checkpoint: CheckpointId) -> bool:
        """Whether readers believe this checkpoint."""
        limit = self.limits.get(checkpoint.generation)
        return limit is None or checkpoint.step <= limit

    def refusal(self, checkpoint: CheckpointId) -> str:
        """Return why it doesn't count, or an empty string."""
        if self.counts(checkpoint):
            return ""
        return (
            f"fenced: generation {checkpoint.generation} counts only up to step {self.limits[checkpoint.generation]}, "
            "where a newer generation resumed"
        )

    def resumed_at(self, generation: int, step: int, older: Iterable[int]) -> Fence:
        """Return the fence after `generation` resumed at `step`: every older generation ends there at the latest."""
        merged = {old: min(step, self.limits.get(old, step)) for old in (*older, *self.limits) if old < generation}
        return Fence(merged)


def newest_first(candidates: Iterable[CheckpointId]) -> list[CheckpointId]:
    """Return candidates in the order a start looks at them: highest step first, of equals the newest generation."""
    return sorted(candidates, reverse=True)
