"""`prove`: do all nodes of a job truly share a folder? Tokens are written on every node and read on every other."""

from __future__ import annotations

import errno
import os
import secrets
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ckptctl.actions.nodes import collect
from ckptctl.errors import ProofInconclusive, StorageFault
from ckptctl.interfaces import Scheduler
from ckptctl.model.job import Job
from ckptctl.policy import proof as policy
from ckptctl.policy.proof import ProofVerdict
from ckptctl.settings import Settings
from ckptctl.storage import files

_START_S = 30.0
"""For a jobstep to start on all nodes, beyond what its tasks may take."""


@dataclass(frozen=True)
class ProofResult:
    """The proof of one path: the verdict, and how long a token took to be seen by another node, in seconds."""

    path: str
    nodes: tuple[str, ...]
    verdict: ProofVerdict
    views: Mapping[str, str]
    visible_median_s: float | None = None
    visible_max_s: float | None = None


def prove(scheduler: Scheduler, job: Job, path: str, settings: Settings) -> ProofResult:
    """Prove that all nodes of the running `job` share `path`, or name those that don't.

    The tokens lie in a folder of a random name in `path`, or in its nearest existing parent; it is removed again. Two
    jobsteps: all write, then all read what those that answered have written. Raises `ProofInconclusive` when the leader may
    not write there as root (root squash: ask as the job's user), `StorageFault` for other errors of its own.
    """
    parent = os.path.abspath(path)
    while not os.path.isdir(parent):
        parent = os.path.dirname(parent)
    folder, secret = os.path.join(parent, f".ckptctl-proof-{secrets.token_hex(8)}"), secrets.token_hex(16)
    _make(folder)
    try:
        written, silent = _ask(scheduler, job, ["--write-token", folder, "--secret", secret], settings.probe_deadline_s)
        writers = [node for node in job.nodes if written.get(node, {}).get("written")]
        words = ["--read-tokens", folder, "--secret", secret, "--writers", ",".join(writers)]
        words += ["--nodes", ",".join(job.nodes), "--visible", str(settings.visible_s)]
        read, silent_now = _ask(scheduler, job, words, settings.visible_s + settings.probe_deadline_s)
    finally:
        files.remove_tree(folder)
    silent |= {node: problem for node, problem in silent_now.items() if node not in silent}
    answered = [node for node in job.nodes if node not in silent and node in read]
    seen = {node: [w for w in read[node]["seconds"] if w not in silent] for node in answered}
    one_machine = scheduler.capabilities.single_machine  # then the nodes' boot ids are names that it made up
    boots = {node: "" if one_machine else str(written[node]["boot_id"]) for node in answered}
    views = {node: _view(written[node]) for node in answered}
    verdict = policy.judge(answered, seen, silent, boots, views)
    times = [seconds for node in answered for seconds in read[node]["seconds"].values()]
    return ProofResult(
        path=path,
        nodes=job.nodes,
        verdict=verdict,
        views=views,
        visible_median_s=statistics.median(times) if times else None,
        visible_max_s=max(times, default=None),
    )


def _make(folder: str) -> None:
    try:
        files.make_folder(folder)
    except StorageFault as exc:
        number = exc.__cause__.errno if isinstance(exc.__cause__, OSError) else None
        if os.geteuid() == 0 and number in (errno.EACCES, errno.EPERM):
            raise ProofInconclusive(
                "root may not write there (root squash): nothing can be proved as root",
                context=folder,
                hint="run it as the user who will write the checkpoints",
            ) from exc
        raise


def _ask(
    scheduler: Scheduler, job: Job, words: Sequence[str], deadline_s: float
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    argv = [sys.executable, "-m", "ckptctl.cli.probe", *words, "--scheduler", scheduler.name, "--deadline", str(deadline_s)]
    return collect(scheduler, job, argv, deadline_s + _START_S)


def _view(written: Mapping[str, Any]) -> str:
    return str(written["view"]) + ("" if written["written"] else f" ({written['problem']})")


def run_elsewhere(scheduler: Scheduler, partition: str, words: Sequence[str], *, nodes: int = 1) -> int:
    """Run this very command on nodes of a partition, for a login node that does not have the mounts. Returns its exit code."""
    return scheduler.run_on(partition, [sys.executable, "-m", "ckptctl.cli.main", *words], nodes=nodes)
