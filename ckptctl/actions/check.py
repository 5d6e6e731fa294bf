"""`check`: is this path safe for a checkpoint, seen from this node?"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ckptctl.checks import drain, gds, tools
from ckptctl.checks.child import run_in_child
from ckptctl.checks.path import SPACE_FINDINGS, findings, look, look_for_lineage
from ckptctl.errors import CkptctlError, DeadlineExceeded, StorageFault
from ckptctl.model.checkpoint import PROOF
from ckptctl.model.mount import PathFacts
from ckptctl.model.report import Finding, Report, Severity
from ckptctl.model.verdict import Placement
from ckptctl.policy import capacity, lustre
from ckptctl.policy import gds as gds_policy
from ckptctl.policy.capacity import Wanted
from ckptctl.policy.placement import (
    NO_POLICY,
    SHARED,
    PlacementVerdict,
    chain,
    fabric_attached,
    judge,
    refused_after_all,
    shared,
    without_facts,
)
from ckptctl.policy.site import Artifact, Durability, SitePolicy

STAGES = frozenset(
    {Placement.NODE_LOCAL, Placement.NODE_ATTACHED_NETWORK_BLOCK, Placement.VOLATILE, Placement.SHARED_EPHEMERAL}
)
"""Classes that may hold a copy on the way to durable shared storage."""
_LEAST_S = 0.1  # what every step after the first gets at least, so that the whole is late by less than half a second
# Errors that say something of the user or the name; every other one says that the storage does not answer.
_NOT_THE_STORAGE = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT, None)


Expect = Callable[[PathFacts, float], "Wanted | None"]
"""Says what a run will want to keep at a path that has been looked at, within some seconds."""


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
    job_ids: Collection[str] = (),
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

    def left_s() -> float:
        return max(_LEAST_S, end - time.monotonic())

    verdict = judge(
        facts,
        job_ids=job_ids,
        single_machine=single_machine,
        accept=accept,
        temporary_dirs=temporary_dirs,
        site=site,
        artifact=artifact,
    )
    found = [*findings(facts), *_site_findings(facts, site, artifact), gds_policy.lane(facts, gds.host(os.environ))]
    if not artifact.durable and verdict.placement not in SHARED and not facts.missing:
        from ckptctl.checks import cache  # here, like the others below: most checks don't need it, and it takes milliseconds

        found += cache.no_cache(facts.real, deadline_s=left_s())
    found += drain.staged(facts.mount, deadline_s=left_s())
    quotas, unknown_quotas = tools.quotas(facts, deadline_s=left_s())
    found += capacity.quota_findings(quotas, facts.existing)
    wanted = expect(facts, left_s()) if expect is not None else None
    if wanted is not None:
        found.append(capacity.fits(facts, wanted, quotas, unknown_quotas))
    if facts.mount.type == "lustre":
        layout = tools.layout(facts, deadline_s=left_s())
        found += lustre.layout_findings(layout, wanted.shard_bytes if wanted else None, facts.existing)
    if probe:
        try:
            found += _probe(facts, verdict, left_s())
        except (DeadlineExceeded, StorageFault) as exc:
            return _not_seen(path, exc, facts)
        if any(finding.name == "kept-on-this-node" for finding in found):
            verdict = refused_after_all(
                verdict, Placement.SHARED_WRITEBACK, "new files stay on this node's disk for a while (PCC)"
            )
    found.insert(0, _placement_finding(path, verdict))
    return CheckResult(verdict, Report(path, tuple(found)), facts, _exit_code(verdict, found))


def chain_lines(result: CheckResult) -> list[str]:
    """Return the backing chain as a tree, and the two facts that are not one: fabric-attached, and shared."""
    if result.facts is None:
        return []
    facts = f"fabric-attached: {fabric_attached(result.facts)}; shared: {shared(result.verdict)}"
    return [*chain(result.facts), facts]


def graph(result: CheckResult) -> dict[str, Any] | None:
    """Return the backing chain as a graph for JSON, and the two facts; None for a path that did not answer.

    `nodes` maps a device, or an image file behind a loop device, to what is known of it; `edges` are pairs from above to below.
    """
    if result.facts is None:
        return None
    nodes: dict[str, dict[str, Any]] = {}
    edges: list[tuple[str, str]] = []
    seen: PathFacts | None = result.facts
    while seen is not None:
        for device in seen.devices:
            known = {name: value for name, value in asdict(device).items() if value and name not in ("name", "below")}
            nodes[device.name] = known
            edges += [(device.name, below) for below in device.below]
        image, inner = next((device for device in seen.devices if device.backing_file), None), seen.backing
        if image is not None and inner is not None:
            nodes[image.backing_file] = {"mount": inner.mount.identity_fields()}
            edges.append((image.name, image.backing_file))
            edges += [(image.backing_file, device.name) for device in inner.devices[:1]]
        seen = inner
    facts = {"fabric_attached": fabric_attached(result.facts), "shared": shared(result.verdict)}
    return {"nodes": nodes, "edges": edges, **facts}


def expected(
    facts: PathFacts,
    size: str | None,
    params: str | None,
    framework: str,
    ranks: int | None,
    keep_last: int,
    *,
    deadline_s: float,
) -> Wanted | None:
    """Return what a run will want: from a size, from a number of parameters, or from the last complete checkpoint there.

    `ranks` is how many write it, one file each; None when nobody said.
    """
    if size is not None or params is not None:
        if size is not None:
            one, source = capacity.parse_count(size), "as said"
        else:
            each = capacity.BYTES_PER_PARAM[framework]
            one = capacity.parse_count(params or "") * each
            source = f"{each} bytes per parameter with {framework}"
        return Wanted(one, source, keep_last, shard_bytes=one // ranks if ranks else None)
    if facts.missing:
        return None
    try:
        sizes = run_in_child(lambda: _sizes(facts.real), deadline_s=deadline_s)
    except CkptctlError:
        return None
    if not sizes:
        return None
    one, largest = sizes[0]
    return Wanted(one, "as the last one", keep_last, sum(size for size, _ in sizes), one // ranks if ranks else largest)


def _sizes(root: str) -> list[tuple[int, int]]:
    """Return size and largest file of the complete checkpoints of a root, newest first; none for what is no root. Can hang."""
    if not os.path.lexists(os.path.join(root, PROOF, "lineage.json")):
        return []
    from ckptctl.storage.repository import Repository  # here: most paths are no root yet

    repository = Repository(root)
    files = [[file.size_bytes for file in repository.manifest(one).files] for one in repository.complete()]
    return [(sum(sizes), max(sizes, default=0)) for sizes in files]


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
    # A stage is refused as a home of checkpoints, which it is not: only what else was found counts.
    own = _exit_code(replace(result.verdict, allowed=True), list(result.report.findings)) if is_stage else result.exit_code
    code = 10 if failed else own
    return replace(result, report=report, exit_code=code)


def probe_node(
    path: str,
    *,
    single_machine: bool = False,
    accept: frozenset[Placement] = frozenset(),
    deadline_s: float = 10.0,
    job_ids: Collection[str] = (),
    temporary_dirs: tuple[str, ...] = (),
    site: SitePolicy = NO_POLICY,
) -> dict[str, Any]:
    """Return one node's answer about a checkpoint root, as JSON, for a comparison with the other nodes' answers.

    Creates nothing and returns by the deadline. Keys: `path`, `real` (None when the path did not answer), `placement`,
    `confidence`, `allowed`, `provable`, `reason`, `remedy`, `exit_code` (of the placement alone), `identity` (type, source,
    root, or None), `server_is_local`, `missing`, `writable`, `writable_errno`, `lineage_visible`, `lineage_id`,
    `lineage_problem`.
    """
    facts: PathFacts | None = None
    lineage: dict[str, Any] = {"visible": False, "id": None, "problem": ""}
    try:
        facts, lineage = look_for_lineage(path, deadline_s=deadline_s)
        verdict = judge(
            facts, job_ids=job_ids, single_machine=single_machine, accept=accept, temporary_dirs=temporary_dirs, site=site
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
        "server_is_local": facts is not None and not single_machine and _serves(facts),
        "missing": facts.missing if facts else None,
        "writable": facts.writable if facts else False,
        "writable_errno": facts.writable_errno if facts else None,
        "lineage_visible": lineage["visible"],
        "lineage_id": lineage["id"],
        "lineage_problem": lineage["problem"],
    }


def _serves(facts: PathFacts) -> bool:
    """Whether this node itself is the server, by an address that others can reach it by (a loopback one may be a proxy's)."""
    address = facts.mount.option("addr") or ""
    return facts.server_is_local and address != "::1" and not address.startswith("127.")


def _site_findings(facts: PathFacts, site: SitePolicy, artifact: Artifact) -> tuple[Finding, ...]:
    """Return what the site says of a mount and what is kept there: when files are removed, that it is scratch."""
    promised = site.expected(facts.real)
    if promised is None or not artifact.durable:
        return ()
    found = []
    if promised.purge_days:
        message = f"the site removes files here that are {promised.purge_days} days old"
        remedy = "copy what is to be kept elsewhere in time"
        found.append(Finding("purged", Severity.WARNING, message, where=promised.path, remedy=remedy))
    if promised.durability is Durability.SCRATCH:
        message = "the site calls it scratch: it has no backup"
        remedy = "copy what is to be kept elsewhere"
        found.append(Finding("scratch", Severity.INFO, message, where=promised.path, remedy=remedy))
    return tuple(found)


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
    from ckptctl.checks import capabilities

    return capabilities.probe(facts.existing, deadline_s=left_s, lustre=facts.mount.type == "lustre")


def _exit_code(verdict: PlacementVerdict, found: list[Finding]) -> int:
    if not verdict.allowed:
        return verdict.exit_code
    errors = {finding.name for finding in found if finding.severity is Severity.ERROR and finding.name != "placement"}
    if errors - SPACE_FINDINGS:
        return 14
    return 13 if errors else 0
