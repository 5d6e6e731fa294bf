"""Whether a folder that is called a cache is one: training state in it, or files written after it was filled.

Reads names and times only, a bounded number of them.
"""

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
_FILLED = ("_SUCCESS", ".complete", ".done", "dataset_info.json", "index.json")
"""Files that whoever fills a cache writes last: Hadoop and Spark, shell scripts, Hugging Face datasets, MosaicML streaming."""
_LATER_S = 60.0
_NAMES_AT_MOST = 5_000
_DEPTH = 3
_SHOWN = 3


def no_cache(folder: str, *, deadline_s: float) -> tuple[Finding, ...]:
    """Return warnings naming what a folder that may be lost with its node holds beside a cache; none when none was seen.

    Training state by its names (`state-in-cache`); files changed a minute or more after the file that marks the cache as filled
    (`written-after-fill`), where there is one. Looks three folders deep and at 5,000 names at most. A folder that can't be
    read, or does not answer by the deadline, is told by the other checks.
    """
    try:
        seen: dict[str, list[str]] = run_in_child(lambda: _look(folder), deadline_s=deadline_s)
    except CkptctlError:
        return ()
    found = []
    if seen["state"]:
        message = f"training state lies in a folder that may be lost: {_some(seen['state'])}"
        remedy = "save it to durable shared storage: check it with --kind checkpoint"
        found.append(Finding("state-in-cache", Severity.WARNING, message, where=folder, remedy=remedy))
    if seen["later"]:
        message = f"files were written after the cache was filled ({seen['marker'][0]}): {_some(seen['later'])}"
        remedy = "what a job writes is no cache: keep results elsewhere, or fill the cache anew"
        found.append(Finding("written-after-fill", Severity.WARNING, message, where=folder, remedy=remedy))
    return tuple(found)


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _look(folder: str) -> dict[str, list[str]]:
    left = [_NAMES_AT_MOST]
    times = {os.path.relpath(path, folder): changed for path, changed in _walk(folder, _DEPTH, left)}
    state = [name for name in times if _STATE.fullmatch(os.path.basename(name))]
    marker = max((name for name in times if name in _FILLED), key=lambda name: times[name], default="")
    later = [name for name in times if marker and times[name] > times[marker] + _LATER_S and name not in state]
    return {"state": sorted(state), "later": sorted(later), "marker": [marker] if marker else []}


def _walk(folder: str, depth: int, left: list[int]) -> Iterator[tuple[str, float]]:
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                left[0] -= 1
                if left[0] < 0:
                    return
                if not entry.is_dir(follow_symlinks=False):
                    yield entry.path, entry.stat(follow_symlinks=False).st_mtime
                elif depth > 1:
                    yield from _walk(entry.path, depth - 1, left)
    except OSError:
        return
