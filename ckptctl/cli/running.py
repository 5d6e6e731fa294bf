"""`ckptctl run` between the command line and the action: the scheduler, the log, and the embedded cluster of `local`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ckptctl import events, registry, settings
from ckptctl.errors import EXIT_REQUEUE_ME


@dataclass(frozen=True)
class Shape:
    """Which scheduler, and for `local` how many nodes with how many ranks each."""

    scheduler: str
    nodes: int
    tasks_per_node: int


def run(
    root: str,
    command: tuple[str, ...],
    shape: Shape,
    flags: Mapping[str, Any],
    take_over: bool,
    allow_older: bool,
    as_json: bool,
) -> int:
    """Run one incarnation, or, for `--scheduler local` outside a job, the whole job on an embedded cluster."""
    from ckptctl.actions import run as action

    events.configure(json_lines=as_json)
    scheduler = registry.scheduler(shape.scheduler)
    if scheduler.name == "local" and scheduler.current_job() is None:
        from ckptctl.actions import local

        return local.run_here(sys.argv[1:], nodes=shape.nodes, tasks_per_node=shape.tasks_per_node, name=os.path.basename(root))
    request = action.RunRequest(root, command, settings.load(flags), take_over, allow_older)
    result = action.run(request, scheduler)
    whose = "ckptctl's" if result.ours else "the command's"
    if result.exit_code and result.exit_code != EXIT_REQUEUE_ME:
        events.emit(events.EXIT, f"exit code {result.exit_code} is {whose} own: {result.decision.reason}", ours=result.ours)
    return result.exit_code
