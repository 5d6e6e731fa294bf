"""Asks every node of a job about the checkpoint root."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ckptctl import errors, events
from ckptctl.actions.check import probe_node
from ckptctl.errors import CkptctlError, PlacementRefused
from ckptctl.interfaces import Scheduler
from ckptctl.model.job import Job
from ckptctl.policy import nodes as node_policy
from ckptctl.policy.nodes import NodesVerdict
from ckptctl.scheduler import here
from ckptctl.settings import Settings
from ckptctl.storage import mounts
from ckptctl.storage.start import Started


def ask(scheduler: Scheduler, job: Job, root: str, settings: Settings) -> NodesVerdict:
    """Ask every node for its view of the root, and judge them together. Creates nothing."""
    argv = [sys.executable, "-m", "ckptctl.cli.probe", root]
    argv += [word for name in dict.fromkeys((job.id, *here.job_ids(os.environ))) for word in ("--job", name)]
    argv += ["--deadline", str(min(10.0, settings.probe_deadline_s / 2))]
    argv += [word for kind in sorted(settings.accepted) for word in ("--accept", kind.value)]
    if scheduler.capabilities.single_machine:
        argv.append("--single-machine")
    argv += [word for folder in here.temporary_dirs(os.environ) for word in ("--temporary", folder)]
    answers, silent = collect(scheduler, job, argv, settings.probe_deadline_s)
    return node_policy.judge(answers, silent)


def ask_here(scheduler: Scheduler, root: str, settings: Settings) -> NodesVerdict:
    """Judge by this node alone: what is left where no jobstep can be started on the others (a container without Slurm)."""
    answer = probe_node(
        root,
        single_machine=scheduler.capabilities.single_machine,
        accept=settings.accepted,
        deadline_s=min(10.0, settings.probe_deadline_s),
        temporary_dirs=here.temporary_dirs(os.environ),
        site=settings.site,
    )
    return node_policy.judge({scheduler.this_node().name: answer}, {})


def refusal(verdict: NodesVerdict, root: str) -> CkptctlError:
    """Return the error for a root that is refused on every node, with the exit code of its family."""
    if verdict.refused is None:
        raise ValueError("not refused")
    code, reason, remedy = verdict.refused
    families = {family.exit_code: family for family in CkptctlError.__subclasses__()}
    family = families.get(code, PlacementRefused)
    return family(f"the checkpoint root is refused {reason}", context=root, hint=remedy)


def compare_volume(started: Started, root: str) -> None:
    """Say aloud when the checkpoint that was chosen was written to another volume than the root is on now."""
    if started.filesystem is None:
        return
    try:
        now = mounts.identity(root)
    except errors.StorageFault:
        return
    if now != started.filesystem:
        then = started.filesystem
        events.emit(
            events.RUN_WARNING,
            f"the checkpoint was written to {then.type} {then.source} {then.root}, and the root is on {now.type} {now.source} "
            f"{now.root} now: was it copied, or is another volume mounted?",
            level=logging.WARNING,
        )


def collect(
    scheduler: Scheduler, job: Job, argv: Sequence[str], deadline_s: float, env: Mapping[str, str] | None = None
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Run a probe on every node of the job; returns the JSON of those that answered, and the problems of the others."""
    answers: dict[str, dict[str, Any]] = {}
    silent: dict[str, str] = {}
    for answer in scheduler.ask_nodes(job, argv, deadline_s=deadline_s, env=env):
        try:
            answers[answer.node] = json.loads(answer.output.strip().splitlines()[-1])
        except (ValueError, IndexError):
            tail = answer.output.strip().splitlines()[-1:]
            silent[answer.node] = answer.problem or f"exit code {answer.exit_code}" + (f": {tail[0]}" if tail else "")
    return answers, silent
