"""`check`: is this path safe for a checkpoint, seen from this node?"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ckptctl.checks import cache, capabilities, gds
from ckptctl.checks.child import run_in_child
from ckptctl.checks.path import SPACE_FINDINGS, findings, look, look_for_lineage
from ckptctl.errors import CkptctlError, DeadlineExceeded, StorageFault
from ckptctl.model.checkpoint import PROOF
from ckptctl.model.mount import PathFacts
from ckptctl.model.report import Finding, Report, Severity
from ckptctl.model.verdict import Placement
from ckptctl.policy import capacity
from ckptctl.policy import gds as gds_policy
from ckptctl.policy.placement import NO_POLICY, SHARED, PlacementVerdict, chain, fabric_attached, judge, shared, without_facts
from ckptctl.policy.site import Artifact, SitePolicy

STAGES = frozenset(
    {Placement.NODE_LOCAL, Placement.NODE_ATTACHED_NETWORK_BLOCK, Placement.VOLATILE, Placement.SHARED_EPHEMERAL}
)
"""Classes that may hold a copy on the way to durable shared storage."""
_HELD_S = 5.0
# Errors that say something of the user or the name; every other one says that the storage does not answer.
_NOT_THE_STORAGE = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT, None)


@dataclass(frozen=True)
class Expected:
    """What a run will want to keep: the size of one checkpoint and whence it is known, how many, what is there already."""

    one_bytes: int
    source: str
    keep_last: int
    held_bytes: int = 0


Expect = Callable[[PathFacts], "Expected | None"]
"""Says what a run will want to keep at a path that has been looked at."""


@dataclass(frozen=True)
class CheckResult:
    """The class of a path, everything that was found, and the exit code. `facts` is None when it did not answer."""

    verdict: PlacementVerdict
    report: Report
    facts: PathFacts | None
    exit_code: int


def check(
    path: str,
    *,
    single_machine: bool = False,
    accept: frozenset[Placement] = frozenset(),
    deadline_s: float = 10.0,
    job_id: str | None = None,
    temporary_dirs: tuple[str, ...] = (),
    probe: bool = False,
    site: SitePolicy = NO_POLICY,
    artifact: Artifact = Artifact.CHECKPOINT,
    expect: Expect | None = None,
) -> CheckResult:
    """Check one path from this node, as this user. Returns by the deadline, also when a mount hangs.

    With `probe` an allowed, existing folder is also written to: a folder `.ckptctl-probe-*`, which is removed again.
    Without it nothing is created. Says nothing about other nodes. Raises `UsageError` for what is no path.
    """
    end = time.monotonic() + deadline_s
    try:
        facts = look(path, deadline_s=deadline_s)
    except (DeadlineExceeded, StorageFault) as exc:
        return _not_seen(path, exc)
    verdict = judge(
        facts,
        job_id=job_id,
        single_machine=single_machine,
        accept=accept,
        temporary_dirs=temporary_dirs,
        site=site,
        artifact=artifact,
    )
    found = [_placement_finding(path, verdict), *findings(facts), *_purged(facts, site, artifact)]
    found.append(gds_policy.lane(facts, gds.host(os.environ)))
    if not artifact.durable and verdict.placement not in SHARED and not facts.missing:
        found += cache.state_in_cache(facts.real, deadline_s=max(0.5, end - time.monotonic()))
    wanted = expect(facts) if expect is not None else None
    if wanted is not None:
        found.append(capacity.fits(facts, wanted.one_bytes, wanted.keep_last, wanted.held_bytes, wanted.source))
    if probe:
        try:
            found += _probe(facts, verdict, end - time.monotonic())
        except (DeadlineExceeded, StorageFault) as exc:
            return _not_seen(path, exc, facts)
    return CheckResult(verdict, Report(path, tuple(found)), facts, _exit_code(verdict, found))


def chain_lines(result: CheckResult) -> list[str]:
    """Return the backing chain as a tree, and the two facts that are not one: fabric-attached, and shared."""
    if result.facts is None:
        return []
    facts = f"fabric-attached: {fabric_attached(result.facts)}; shared: {shared(result.verdict)}"
    return [*chain(result.facts), facts]


def expected(facts: PathFacts, size: str | None, params: str | None, framework: str, keep_last: int) -> Expected | None:
    """Return what a run will want: from a size, from a number of parameters, or from the last complete checkpoint there."""
    if size is not None:
        return Expected(capacity.parse_count(size), "as said", keep_last)
    if params is not None:
        each = capacity.BYTES_PER_PARAM[framework]
        return Expected(capacity.parse_count(params) * each, f"{each} bytes per parameter with {framework}", keep_last)
    if facts.missing:
        return None
    try:
        sizes = run_in_child(lambda: _sizes(facts.real), deadline_s=_HELD_S)
    except CkptctlError:
        return None
    return Expected(sizes[0], "as the last one", keep_last, sum(sizes)) if sizes else None


def _sizes(root: str) -> list[int]:
    """Return the sizes of the complete checkpoints of a root, newest first; none for what is no root. Can hang."""
    if not os.path.lexists(os.path.join(root, PROOF, "lineage.json")):
        return []
    from ckptctl.storage.repository import Repository  # here: most paths are no root yet

    repository = Repository(root)
    return [sum(file.size_bytes for file in repository.manifest(one).files) for one in repository.complete()]


def check_tiers(paths: Sequence[str], flush_to: str | None, judge_one: Callable[[str], CheckResult]) -> list[Finding]:
    """Judge a set of paths: local ones are stages, and need a durable shared path that they are flushed to.

    `paths` are stages on local storage; `flush_to` is where they are flushed to, None for nowhere. Returns an error for what
    could be lost with a node, and a line for what is as it should be.
    """
    found: list[Finding] = []
    target = judge_one(flush_to) if flush_to is not None else None
    for path in paths:
        stage = judge_one(path)
        if stage.verdict.allowed:
            message = f"{stage.verdict.placement.value}: it is shared already, no stage is needed"
            found.append(Finding("tier-not-local", Severity.INFO, message, where=path))
        elif stage.verdict.placement not in STAGES:
            found.append(Finding("tier-unusable", Severity.ERROR, stage.verdict.reason, where=path, remedy="use a local disk"))
        elif target is None:
            remedy = "name it: --flush-to PATH on shared storage"
            found.append(Finding("tier-without-target", Severity.ERROR, "a stage that is flushed nowhere", path, remedy))
        elif not target.verdict.allowed:
            message = f"it is flushed to {flush_to}, which is {target.verdict.placement.value}: {target.verdict.reason}"
            found.append(Finding("tier-target-refused", Severity.ERROR, message, where=path, remedy=target.verdict.remedy))
        else:
            message = f"{stage.verdict.placement.value}: a stage, flushed to {flush_to} ({target.verdict.placement.value})"
            found.append(Finding("tier", Severity.INFO, message, where=path))
    return found


def with_tiers(result: CheckResult, tiers: Sequence[Finding], *, is_stage: bool) -> CheckResult:
    """Return the result for a path with its stages. `is_stage` says that the path itself is one of them."""
    if not tiers:
        return result
    report = Report(result.report.subject, (*result.report.findings, *tiers))
    failed = any(finding.severity is Severity.ERROR for finding in tiers)
    code = 10 if failed else (0 if is_stage else result.exit_code)
    return replace(result, report=report, exit_code=code)


def probe_node(
    path: str,
    *,
    single_machine: bool = False,
    accept: frozenset[Placement] = frozenset(),
    deadline_s: float = 10.0,
    job_id: str | None = None,
    temporary_dirs: tuple[str, ...] = (),
    site: SitePolicy = NO_POLICY,
) -> dict[str, Any]:
    """Return one node's answer about a checkpoint root, as JSON, for a comparison with the other nodes' answers.

    Creates nothing and returns by the deadline. Keys: `path`, `real` (None when the path did not answer), `placement`,
    `confidence`, `allowed`, `provable`, `reason`, `remedy`, `exit_code` (of the placement alone), `identity` (type, source,
    root, or None), `missing`, `writable`, `writable_errno`, `lineage_visible`, `lineage_id`, `lineage_problem`.
    """
    facts: PathFacts | None = None
    lineage: dict[str, Any] = {"visible": False, "id": None, "problem": ""}
    try:
        facts, lineage = look_for_lineage(path, deadline_s=deadline_s)
        verdict = judge(
            facts, job_id=job_id, single_machine=single_machine, accept=accept, temporary_dirs=temporary_dirs, site=site
        )
        exit_code = verdict.exit_code
    except (DeadlineExceeded, StorageFault) as exc:
        result = _not_seen(path, exc)
        verdict, exit_code = result.verdict, result.exit_code
    return {
        "path": path,
        "real": facts.real if facts else None,
        "placement": verdict.placement.value,
        "confidence": verdict.confidence.value,
        "allowed": verdict.allowed,
        "provable": verdict.provable,
        "reason": verdict.reason,
        "remedy": verdict.remedy,
        "exit_code": exit_code,
        "identity": facts.mount.identity_fields() if facts else None,
        "missing": facts.missing if facts else None,
        "writable": facts.writable if facts else False,
        "writable_errno": facts.writable_errno if facts else None,
        "lineage_visible": lineage["visible"],
        "lineage_id": lineage["id"],
        "lineage_problem": lineage["problem"],
    }


def _purged(facts: PathFacts, site: SitePolicy, artifact: Artifact) -> tuple[Finding, ...]:
    promised = site.expected(facts.real)
    if promised is None or not promised.purge_days or not artifact.durable:
        return ()
    message = f"the site removes files here that are {promised.purge_days} days old"
    return (
        Finding("purged", Severity.WARNING, message, where=promised.path, remedy="copy what is to be kept elsewhere in time"),
    )


def _placement_finding(path: str, verdict: PlacementVerdict) -> Finding:
    return Finding(
        name="placement",
        severity=Severity.INFO if verdict.allowed else Severity.ERROR,
        message=f"{verdict.placement.value}: {verdict.reason}",
        where=path,
        remedy=verdict.remedy,
        facts={"confidence": verdict.confidence.value, "evidence": list(verdict.evidence)},
    )


def _not_seen(path: str, problem: DeadlineExceeded | StorageFault, facts: PathFacts | None = None) -> CheckResult:
    """Return the result for a path that could not be looked at, or not written to: refused, exit code 14."""
    number = problem.__cause__.errno if isinstance(problem.__cause__, OSError) else None
    hangs = isinstance(problem, DeadlineExceeded)
    placement = Placement.UNREACHABLE if hangs or number not in _NOT_THE_STORAGE else Placement.UNKNOWN
    verdict = without_facts(placement, problem.message, remedy=problem.hint)
    name = "not-reachable" if placement is Placement.UNREACHABLE else "not-accessible"
    error = {"errno": number} if number is not None else {}
    found = Finding(name, Severity.ERROR, problem.message, where=path, remedy=problem.hint, facts=error)
    return CheckResult(verdict, Report(path, (_placement_finding(path, verdict), found)), facts, 14)


def _probe(facts: PathFacts, verdict: PlacementVerdict, left_s: float) -> tuple[Finding, ...]:
    if not verdict.allowed or facts.missing or not facts.writable:
        message = "nothing was written as a probe: the folder is missing, not writable or refused"
        return (Finding("not-probed", Severity.INFO, message, where=facts.real),)
    return capabilities.probe(facts.existing, deadline_s=left_s)


def _exit_code(verdict: PlacementVerdict, found: list[Finding]) -> int:
    if not verdict.allowed:
        return verdict.exit_code
    errors = {finding.name for finding in found if finding.severity is Severity.ERROR}
    if errors - SPACE_FINDINGS:
        return 14
    return 13 if errors else 0
