"""Printing of `prove`, and commands that are run on compute nodes instead of here."""

from __future__ import annotations

import signal
import sys

from ckptctl import registry, settings
from ckptctl.cli import output
from ckptctl.errors import UsageError


def prove(path: str, scheduler_name: str, as_json: bool, fresh: bool) -> int:
    """Print who shares the path."""
    from ckptctl.actions import prove as action

    signal.signal(signal.SIGTERM, _terminated)

    scheduler = registry.scheduler(scheduler_name)
    job = scheduler.current_job()
    if job is None:
        raise UsageError(
            "not inside a job: there are no nodes to ask",
            hint="run it in an sbatch script or salloc, or add --on PARTITION --nodes N",
        )
    result = action.prove(scheduler, job, path, settings.load(), fresh=fresh)
    verdict = result.verdict
    excluded = scheduler.host_list(list(verdict.blamed))
    if as_json:
        output.print_json({**output.jsonable(result), "exclude": excluded, "exit_code": verdict.exit_code})
        return verdict.exit_code
    print(f"{path}: {verdict.proof.value}: {verdict.reason}")
    if result.age_s is not None:
        print(f"  proved {result.age_s:.0f} s ago for this job, and every node was asked now: same boots, same mounts (--fresh")
        print("  reads all tokens again)")
    if result.visible_max_s is not None and result.visible_median_s is not None:
        print(f"  a token was seen after {result.visible_median_s:.3f} s (median), {result.visible_max_s:.3f} s at most")
    for node, reason in verdict.blamed.items():
        print(f"  {node}: {reason}")
    for group in verdict.groups[1:] if len(verdict.groups) > 1 else ():
        if len(group) > 1:
            print(f"  these share another folder among themselves: {scheduler.host_list(group)}")
    if verdict.widespread:
        print("  to do: more than half of the nodes: look at the file system, not at the nodes")
    elif verdict.blamed:
        print(f"  to do: submit with --exclude={excluded}, and have their mounts looked at")
    return verdict.exit_code


def _terminated(*_: object) -> None:
    sys.exit(128 + signal.SIGTERM)  # on the way out the folder with the tokens is removed


def elsewhere(partition: str, nodes: int) -> int:
    """Run this very command on compute nodes: a login node need not have the mounts."""
    from ckptctl.actions.prove import run_elsewhere

    words, skip = [], False
    for word in sys.argv[1:]:
        if not skip and word not in ("--on", "--nodes") and not word.startswith(("--on=", "--nodes=")):
            words.append(word)
        skip = word in ("--on", "--nodes")
    return run_elsewhere(registry.scheduler("slurm"), partition, words, nodes=nodes)
