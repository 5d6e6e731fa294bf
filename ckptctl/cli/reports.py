"""Printing of `check`, `list`, `verify` and `select`."""

from __future__ import annotations

import shlex
import time

from ckptctl.cli import output


def check(path: str, as_json: bool, probe: bool, single_machine: bool, accept_class: str | None) -> int:
    """Print a placement verdict with its evidence."""
    from ckptctl import settings
    from ckptctl.actions.check import check as judge

    accepted = settings.load({"accept_class": accept_class}).accepted
    result = judge(path, single_machine=single_machine, accept=accepted, probe=probe)
    if as_json:
        output.print_json({**output.jsonable(result), "path": path})
        return result.exit_code
    verdict = result.verdict
    word = "allowed" if verdict.allowed and not result.exit_code else "REFUSED"
    print(f"{path}: {word}: {verdict.placement.value} ({verdict.confidence.value})")
    print(f"  why:   {verdict.reason}")
    for line in verdict.evidence:
        print(f"  seen:  {line}")
    for finding in result.report.findings:
        if finding.name != "placement":
            print(f"  {finding.severity.value}: {finding.message}" + (f" -> {finding.remedy}" if finding.remedy else ""))
    if verdict.remedy and not verdict.allowed:
        print(f"  to do: {verdict.remedy}")
    return result.exit_code


def list_root(root: str, as_json: bool, incarnations: bool) -> int:
    """Print the checkpoints, or the incarnations, of a root."""
    from ckptctl.actions import inspect

    if incarnations:
        return _incarnations(root, as_json)
    rows = inspect.list_root(root)
    if as_json:
        output.print_json(rows)
        return 0
    now = time.time()
    output.table(
        f"{root}: {sum(row.verdict.value == 'COMPLETE' for row in rows)} complete",
        ("step", "generation", "verdict", "ranks", "size", "age", "route", "folder", "why not"),
        [
            (
                row.step,
                row.generation,
                row.verdict.value,
                row.world_size,
                output.size(row.size_bytes),
                _age(now, row.committed_ms),
                row.route,
                row.folder,
                row.reason,
            )
            for row in rows
        ],
    )
    return 0


def _incarnations(root: str, as_json: bool) -> int:
    from ckptctl.actions import inspect

    rows = inspect.incarnations(root)
    if as_json:
        output.print_json(rows)
        return 0
    output.table(
        f"{root}: {len(rows)} incarnations",
        ("generation", "job", "restart", "nodes", "resumed at", "last complete", "ended by", "reason"),
        [
            (row.generation, row.job, row.restart, " ".join(row.nodes), row.resumed, row.last_complete, row.cause, row.reason)
            for row in rows
        ],
    )
    return 0


def _age(now: float, committed_ms: int | None) -> str:
    if committed_ms is None:
        return ""
    seconds = max(0, int(now - committed_ms / 1000))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def verify(step_dir: str, deep: bool, jobs: int, as_json: bool) -> int:
    """Print the verdict on one checkpoint folder."""
    from ckptctl.actions import inspect

    begun = time.monotonic()
    result = inspect.verify(step_dir, deep=deep, jobs=jobs)
    spent = max(time.monotonic() - begun, 1e-6)
    if as_json:
        output.print_json({**output.jsonable(result), "exit_code": result.exit_code})
        return result.exit_code
    print(f"{result.path}: {result.verdict.value} at grade {result.grade.value}")
    for problem in result.problems:
        print(f"  {problem}")
    rate = f", {result.size_bytes / spent / 1e9:.2f} GB/s" if deep else ""
    print(f"  {result.files} files, {output.size(result.size_bytes)}{rate}")
    return result.exit_code


def select(root: str, shell: bool, as_json: bool) -> int:
    """Print what a start would take."""
    from ckptctl.actions import inspect

    result = inspect.select(root)
    if as_json:
        output.print_json(result)
    elif shell:
        print(f"CKPTCTL_SELECTED_STEP={result.step}")
        print(f"CKPTCTL_SELECTED_PATH={shlex.quote(result.path)}")
    else:
        print(result.path or "step 0: nothing was ever committed here")
        for skip in result.skipped:
            print(f"  not step {skip.step} of generation {skip.generation}: {skip.reason}")
    return 0
