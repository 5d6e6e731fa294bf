"""Printing of `check`, `list`, `verify` and `select`."""

from __future__ import annotations

import os
import shlex
import time
from dataclasses import dataclass

from ckptctl.cli import output
from ckptctl.model.mount import PathFacts
from ckptctl.policy.site import Artifact


@dataclass(frozen=True)
class Asked:
    """What `check` was asked."""

    path: str
    artifact: Artifact
    local_tiers: tuple[str, ...]
    flush_to: str | None
    probe: bool
    single_machine: bool
    accept_class: str | None
    size: str | None = None
    params: str | None = None
    framework: str = "fsdp"
    ranks: int | None = None


def check(asked: Asked, as_json: bool) -> int:
    """Print a placement verdict with its evidence, and the verdict on its local stages."""
    from ckptctl import settings
    from ckptctl.actions import check as action
    from ckptctl.policy import capacity
    from ckptctl.scheduler import here

    found = settings.load({"accept_class": asked.accept_class})

    def expect(facts: PathFacts, left_s: float) -> capacity.Wanted | None:
        size, params, framework, ranks = asked.size, asked.params, asked.framework, asked.ranks
        return action.expected(facts, size, params, framework, ranks, found.keep_last, deadline_s=left_s)

    def judge(path: str, *, probe: bool = False, expect: action.Expect | None = None) -> action.CheckResult:
        return action.check(
            path,
            single_machine=asked.single_machine,
            accept=found.accepted,
            probe=probe,
            site=found.site,
            artifact=asked.artifact,
            expect=expect,
            job_ids=here.job_ids(os.environ),
            temporary_dirs=here.temporary_dirs(os.environ),
        )

    result = judge(asked.path, probe=asked.probe, expect=expect)
    stages = (asked.path, *asked.local_tiers) if asked.flush_to else asked.local_tiers
    tiers = action.check_tiers(stages, asked.flush_to or (asked.path if stages else None), judge)
    result = action.with_tiers(result, tiers, is_stage=asked.flush_to is not None)
    if as_json:
        output.print_json({**output.jsonable(result), "path": asked.path, "chain": action.graph(result)})
        return result.exit_code
    verdict = result.verdict
    word = "REFUSED" if result.exit_code else "allowed"
    print(f"{asked.path}: {word}: {verdict.placement.value} ({verdict.confidence.value})")
    print(f"  why:   {verdict.reason}")
    for line in verdict.evidence:
        print(f"  seen:  {line}")
    for line in action.chain_lines(result):
        print(f"  chain: {line}")
    for finding in result.report.findings:
        if finding.name != "placement":
            where = f"{finding.where}: " if finding.name.startswith("tier") else ""
            print(f"  {finding.severity.value}: {where}{finding.message}" + (f" -> {finding.remedy}" if finding.remedy else ""))
    if verdict.remedy and not verdict.allowed and result.exit_code:
        print(f"  to do: {verdict.remedy}")
    return result.exit_code


def node_check(deadline_s: float, as_json: bool) -> int:
    """Print the promised mounts of this node; the last line is a reason for a drain, or says that all is well."""
    from ckptctl import settings
    from ckptctl.actions.node_check import node_check as look

    state = look(settings.load().site, deadline_s=deadline_s)
    if as_json:
        output.print_json({**output.jsonable(state), "well": state.well, "reason": state.reason})
        return state.exit_code
    for mount in state.mounts:
        print(f"{mount.path}: {'well' if mount.well else mount.placement.value}: {mount.reason}")
    print(state.reason or f"ckptctl: {len(state.mounts)} promised mount(s), all well")
    return state.exit_code


def elsewhere(partition: str) -> int:
    """Run this very command on a compute node."""
    from ckptctl.cli import proving

    return proving.elsewhere(partition, 1)


def config_show(origin: bool, as_json: bool) -> int:
    """Print settings and site policy."""
    from ckptctl import settings

    found = settings.load()
    plain = output.jsonable(found)
    origins, site = plain.pop("origins"), plain.pop("site")
    site.pop("untightened")
    if as_json:
        output.print_json({"settings": plain, "site": site, **({"origins": origins} if origin else {})})
        return 0
    rows = [(name, value, origins.get(name, "built-in")) for name, value in plain.items()]
    rows += [("policy.mode", site["mode"], origins.get("policy.mode", "built-in"))]
    rows += [("policy.ephemeral_globs", " ".join(site["ephemeral_globs"]), origins.get("policy.ephemeral_globs", "built-in"))]
    for kind in Artifact:
        classes = " ".join(sorted(one.value for one in found.site.allowed(kind)))
        rows.append((f"policy.allow.{kind.value}", classes, origins.get("policy.allow", "built-in")))
    for mount in site["mounts"]:
        words = ", ".join(f"{name}={value}" for name, value in mount.items() if value and name != "path")
        rows.append((f"mount {mount['path']}", words, origins.get(f"mount {mount['path']}", "built-in")))
    width = max(len(name) for name, _, _ in rows)
    for name, value, where in rows:
        print(f"{name:{width}}  {value}" + (f"   [{where}]" if origin else ""))
    return 0


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
