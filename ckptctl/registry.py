"""Finds implementations by name through entry points, lazily. Built-ins are registered the same way as third parties'."""

from __future__ import annotations

import os
from importlib import metadata
from typing import Any

from ckptctl.errors import PluginBroken
from ckptctl.interfaces import Engine, Scheduler

SCHEDULERS = "ckptctl.schedulers"
ENGINES = "ckptctl.engines"


def scheduler(name: str = "auto") -> Scheduler:
    """Return a scheduler by name; `auto` is `local` inside a local job, else `slurm`. Raises `PluginBroken`."""
    if name == "auto":
        name = "local" if "CKPTCTL_LOCAL_JOB" in os.environ else "slurm"
    made: Scheduler = _load(SCHEDULERS, name)()
    return made


def engine(name: str = "posix", **options: Any) -> Engine:
    """Return an engine by name, made with `options`. Raises `PluginBroken`."""
    made: Engine = _load(ENGINES, name)(**options)
    return made


def names(group: str) -> list[str]:
    """Return the names registered in a group, whether or not they load."""
    return sorted({point.name for point in metadata.entry_points(group=group)})


def _load(group: str, name: str) -> Any:
    for point in metadata.entry_points(group=group, name=name):
        try:
            return point.load()
        except Exception as exc:
            raise PluginBroken(
                f"{name} of {group} does not load: {exc}",
                context=point.value,
                hint="install the package that it needs, or choose another one",
            ) from exc
    known = ", ".join(names(group)) or "none: is ckptctl installed, or only on the path?"
    raise PluginBroken(f"there is no {name} in {group}", context=f"known: {known}", hint="check the name's spelling")
