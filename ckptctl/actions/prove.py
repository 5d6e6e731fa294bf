"""`prove`: do all nodes of a job truly share a folder? Tokens are written on every node and read on every other."""

from __future__ import annotations

import errno
import os
import secrets
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ckptctl.actions.nodes import collect
from ckptctl.checks import proof, proof_cache
from ckptctl.errors import ProofInconclusive, StorageFault
from ckptctl.interfaces import Scheduler
from ckptctl.model.job import Job
from ckptctl.policy import proof as policy
from ckptctl.policy.proof import Proof, ProofVerdict
from ckptctl.settings import Settings

_START_S = 30.0
"""For a jobstep to start on all nodes, beyond what its tasks may take."""


@dataclass(frozen=True)
class ProofResult:
    """The proof of one path: the verdict, and how long a token took to be seen by another node, in seconds.

    `visible_s` has it by reader and writer, for the pairs that were asked; empty for a kept proof.
    `age_s` is None for a proof made now; else it was made that long ago, and its nodes, boots and mounts are still the same.
    """

    path: str
    nodes: tuple[str, ...]
    verdict: ProofVerdict
    views: Mapping[str, str]
    visible_median_s: float | None = None
    visible_max_s: float | None = None
    age_s: float | None = None
    visible_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def prove(scheduler: Scheduler, job: Job, path: str, settings: Settings, *, fresh: bool = False) -> ProofResult:
    """Prove that all nodes of the running `job` share `path`, or name those that don't.

    The tokens lie in a folder of a random name in `path`, or in its nearest existing parent; it is removed again. Two
    jobsteps: all write, then all read what those that answered have written. The second is left out when this incarnation of
    the job has been proved to share it within `proof_ttl_s`, with the same boots and mounts; `fresh` never leaves it out.
    Raises `ProofInconclusive` when the leader may not write there as root (root squash: ask as the job's user),
    `StorageFault` for other errors of this node, also when the path does not answer here.
    """
    folder, secret = _open(path, settings), secrets.token_hex(16)
    known: tuple[dict[str, Any], float] | None = None
    read: dict[str, dict[str, Any]] = {}
    try:
        words = ["--write-token", folder]
        written, silent = _ask(scheduler, job, words, secret, settings.probe_deadline_s)
        absent = [node for node in job.nodes if not written.get(node, {}).get("written")]
        name = _cache_name(job, os.path.dirname(folder), written) if not (absent or silent) else ""
        if name and not fresh:
            known = proof_cache.load(name, settings.proof_ttl_s, os.environ)
        if known is None:
            words = ["--read-tokens", folder, "--absent", ",".join(absent), "--nodes", ",".join(job.nodes)]
            words += ["--visible", str(settings.visible_s)]
            deadline_s = settings.visible_s + settings.probe_deadline_s
            read, silent_now = _ask(scheduler, job, words, secret, deadline_s)
            silent |= {node: problem for node, problem in silent_now.items() if node not in silent}
    finally:
        proof.close_folder(folder)
    if known is not None:
        return _still_proved(path, job, written, *known)
    answered = [node for node in job.nodes if node not in silent and node in read]
    seen = {node: [w for w in read[node]["seconds"] if w not in silent] for node in answered}
    one_machine = scheduler.capabilities.single_machine  # then the nodes' boot ids are names that it made up
    boots = {node: "" if one_machine else str(written[node]["boot_id"]) for node in answered}
    views = {node: _view(written[node]) for node in answered}
    verdict = policy.judge(answered, seen, silent, boots, views)
    times = [seconds for node in answered for seconds in read[node]["seconds"].values()]
    result = ProofResult(
        path=path,
        nodes=job.nodes,
        verdict=verdict,
        views=views,
        visible_median_s=statistics.median(times) if times else None,
        visible_max_s=max(times, default=None),
        visible_s={node: dict(read[node]["seconds"]) for node in answered},
    )
    if name and verdict.proof is Proof.PROVED and settings.proof_ttl_s:
        seconds = {"visible_median_s": result.visible_median_s, "visible_max_s": result.visible_max_s}
        proof_cache.store(name, seconds, settings.proof_ttl_s, os.environ)
    return result


def _open(path: str, settings: Settings) -> str:
    try:
        return proof.open_folder(path, deadline_s=settings.probe_deadline_s)
    except StorageFault as exc:
        number = exc.__cause__.errno if isinstance(exc.__cause__, OSError) else None
        if os.geteuid() == 0 and number in (errno.EACCES, errno.EPERM):
            raise ProofInconclusive(
                "root may not write there (root squash): nothing can be proved as root",
                context=path,
                hint="run it as the user who will write the checkpoints",
            ) from exc
        raise


def _cache_name(job: Job, folder: str, written: Mapping[str, Mapping[str, Any]]) -> str:
    nodes = {node: (str(written[node]["boot_id"]), str(written[node]["mount"])) for node in job.nodes}
    return proof_cache.key(os.geteuid(), job.id, job.restart, folder, nodes)


def _still_proved(
    path: str, job: Job, written: Mapping[str, Mapping[str, Any]], facts: Mapping[str, Any], age_s: float
) -> ProofResult:
    total = len(job.nodes)
    verdict = ProofVerdict(Proof.PROVED, (job.nodes,), {}, f"{total}/{total} nodes share it")
    views = {node: _view(written[node]) for node in job.nodes}
    return ProofResult(
        path, job.nodes, verdict, views, facts.get("visible_median_s"), facts.get("visible_max_s"), round(age_s, 1)
    )


def _ask(
    scheduler: Scheduler, job: Job, words: Sequence[str], secret: str, deadline_s: float
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    argv = [sys.executable, "-m", "ckptctl.cli.probe", *words, "--scheduler", scheduler.name, "--deadline", str(deadline_s)]
    return collect(scheduler, job, argv, deadline_s + _START_S, {proof.SECRET_VARIABLE: secret})


def _view(written: Mapping[str, Any]) -> str:
    return str(written["view"]) + ("" if written["written"] else f" ({written['problem']})")


def run_elsewhere(scheduler: Scheduler, partition: str, words: Sequence[str], *, nodes: int = 1) -> int:
    """Run this very command on nodes of a partition, for a login node that does not have the mounts. Returns its exit code."""
    return scheduler.run_on(partition, [sys.executable, "-m", "ckptctl.cli.main", *words], nodes=nodes)
