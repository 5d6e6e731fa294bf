"""Whether a folder that is called a cache holds what must not be lost. Reads names only, a bounded number of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from ckptctl.checks.child import run_in_child
from ckptctl.errors import CkptctlError
from ckptctl.model.report import Finding, Severity

_STATE = re.compile(
    r".*\.distcp|\.metadata|.*_optim_states\.pt|mp_rank_\d+_model_states\.pt|.*\.ckpt|optimizer\.(pt|bin)|scheduler\.pt"
    r"|rng_state.*\.pth|trainer_state\.json|latest_checkpointed_iteration\.txt|COMMIT"
)
"""Names of training state: DCP, DeepSpeed, Megatron-LM, Hugging Face, Lightning, and ckptctl's own marker."""
_NAMES_AT_MOST = 5_000
_DEPTH = 3
_SHOWN = 3


def state_in_cache(folder: str, *, deadline_s: float) -> tuple[Finding, ...]:
    """Return a warning naming files of training state in a folder that may be lost with its node; none when none was seen.

    Looks three folders deep and at 5,000 names at most. A folder that can't be read, or does not answer by the deadline, is
    told by the other checks.
    """
    try:
        found: list[str] = run_in_child(lambda: _look(folder), deadline_s=deadline_s)
    except CkptctlError:
        return ()
    if not found:
        return ()
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    message = f"training state lies in a folder that may be lost: {', '.join(found[:_SHOWN])}{more}"
    remedy = "save it to durable shared storage: check it with --kind checkpoint"
    return (Finding("state-in-cache", Severity.WARNING, message, where=folder, remedy=remedy),)


def _look(folder: str) -> list[str]:
    left = [_NAMES_AT_MOST]
    return sorted(
        os.path.relpath(path, folder) for path in _walk(folder, _DEPTH, left) if _STATE.fullmatch(os.path.basename(path))
    )


def _walk(folder: str, depth: int, left: list[int]) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                left[0] -= 1
                if left[0] < 0:
                    return
                if not entry.is_dir(follow_symlinks=False):
                    yield entry.path
                elif depth > 1:
                    yield from _walk(entry.path, depth - 1, left)
    except OSError:
        return
