"""Names and identity of checkpoints. The only owner of the folder naming `step-NNNNNNNN.gGGGG`."""

from __future__ import annotations

import re
from dataclasses import dataclass

PROOF = ".ckptctl"
"""Folder of proof: in the checkpoint root, and in every checkpoint."""

_STEP = re.compile(r"step-(\d{8,})\.g(\d{4,})")
_STAGED = re.compile(r"step-(\d{8,})")
_GENERATION = re.compile(r"g(\d{4,})")


@dataclass(frozen=True, order=True)
class CheckpointId:
    """One checkpoint of a lineage: the training step, and the generation that committed it."""

    step: int
    generation: int

    @property
    def folder(self) -> str:
        """The name of its folder in the checkpoint root. A hint for readers: COMMIT holds the truth."""
        return f"{staged_name(self.step)}.{generation_name(self.generation)}"

    @staticmethod
    def parse(folder: str) -> CheckpointId | None:
        """Return the identity that a folder's name hints at, or None for any other name."""
        match = _STEP.fullmatch(folder)
        if match is None:
            return None
        found = CheckpointId(int(match[1]), int(match[2]))
        return found if found.folder == folder else None


def staged_name(step: int) -> str:
    """Return the name of a step's folder inside its generation's staging folder."""
    return f"step-{step:08d}"


def parse_staged(name: str) -> int | None:
    """Return the step of a folder in staging, or None for any other name."""
    match = _STAGED.fullmatch(name)
    return int(match[1]) if match and staged_name(int(match[1])) == name else None


def generation_name(generation: int) -> str:
    """Return the name of a generation as folders carry it."""
    return f"g{generation:04d}"


def parse_generation(name: str) -> int | None:
    """Return the ordinal of a generation's folder name, or None for any other name."""
    match = _GENERATION.fullmatch(name)
    return int(match[1]) if match and generation_name(int(match[1])) == name else None
