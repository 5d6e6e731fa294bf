"""Who can still read a path when its node is gone: the class of a path, from what was seen of it.

The first rule that decides wins; what no rule knows is UNKNOWN, and UNKNOWN is refused. A static verdict never says
that other nodes see the same folder: only a proof across nodes does.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from ckptctl.model.mount import MountRow, PathFacts
from ckptctl.model.report import Finding, Severity
from ckptctl.model.verdict import Confidence, Placement
from ckptctl.policy import devices
from ckptctl.policy.filesystems import FILE_SYSTEMS, KERNEL_TYPES, OBJECT_SOURCES, OPTION_LINTS, OPTION_NOTES, WRITEBACK_OPTIONS
from ckptctl.policy.site import Artifact, Durability, SitePolicy

NO_POLICY = SitePolicy()
"""No word of the site: the defaults."""
SHARED = frozenset({Placement.SHARED_PARALLEL, Placement.SHARED_SERVER})
"""What a checkpoint may be written to without anybody's word."""
MEANINGS = {
    Placement.SHARED_PARALLEL: "a parallel file system that all nodes mount",
    Placement.SHARED_SERVER: "a file server, or a set of servers behind one protocol, that all nodes mount",
    Placement.SHARED_WRITEBACK: "visible on all nodes before it is safe: bytes stay on this node for a while",
    Placement.SHARED_OBJECT: "an object store behind a folder: no atomic rename, and not every fsync makes an object",
    Placement.SHARED_EPHEMERAL: "shared, and removed with the job or by the site",
    Placement.NODE_ATTACHED_NETWORK_BLOCK: "a network volume: it outlives the node, and one node at a time can mount it",
    Placement.NODE_LOCAL: "a disk of this node, lost with it",
    Placement.CONTAINER_EPHEMERAL: "a layer that is removed with its container, or a mounted folder that was deleted",
    Placement.VOLATILE: "memory of this node, lost with it",
    Placement.READ_ONLY: "nothing can be written",
    Placement.AUTOFS_PENDING: "an automount that was triggered and did not come",
    Placement.MISSING_MOUNT: "the site promises a mount here, and something else is here",
    Placement.UNREACHABLE: "it did not answer by the deadline, or the mount is dead",
    Placement.UNKNOWN: "nobody knows what it is, or what is known contradicts itself",
}
"""What each class means, in one line."""
FAULTS = frozenset(
    {Placement.READ_ONLY, Placement.MISSING_MOUNT, Placement.UNREACHABLE, Placement.AUTOFS_PENDING},
)
"""Classes that say something of this node, not of the user's choice: exit code 14, not 10."""
SINGLE_MACHINE = frozenset({Placement.NODE_LOCAL, Placement.NODE_ATTACHED_NETWORK_BLOCK})
"""What is allowed when all nodes are one machine by declaration."""
ACCEPTABLE = frozenset({Placement.SHARED_EPHEMERAL, Placement.SHARED_WRITEBACK, Placement.CONTAINER_EPHEMERAL})
"""What can be allowed by naming the class; CONTAINER_EPHEMERAL only on a single machine."""

_CONTAINER_ROOT = re.compile(r"(^|[/:])(enroot|pyxis[_.-][^/]*)(/|$)")

_SHARED_REMEDY = "use a folder on storage that all nodes mount (Lustre, GPFS, BeeGFS, WEKA, CephFS, NFS, …)"
_REMEDIES = {
    Placement.SHARED_PARALLEL: "",
    Placement.SHARED_SERVER: "",
    Placement.SHARED_EPHEMERAL: "use a folder that is kept after the end of the job",
    Placement.READ_ONLY: "mount it writable, or use another folder",
    Placement.AUTOFS_PENDING: "look at the automounter of this node, and whether the server answers",
    Placement.MISSING_MOUNT: "mount it on this node",
    Placement.UNREACHABLE: "look at the mount and its server; the node should not start jobs until it answers",
    Placement.UNKNOWN: f"have it proved or declared by the site, or {_SHARED_REMEDY}",
}


@dataclass(frozen=True)
class PlacementVerdict:
    """The class of a path, whether a checkpoint may live there, and why: one line of reason, then the evidence."""

    placement: Placement
    confidence: Confidence
    allowed: bool
    reason: str
    evidence: tuple[str, ...] = ()
    remedy: str = ""
    provable: bool = False
    """Whether it is refused only because nobody knows the file system: a proof across nodes says what is missing."""

    @property
    def exit_code(self) -> int:
        """The exit code of `check` for this verdict, whatever the policy mode."""
        if self.allowed:
            return 0
        return 14 if self.placement in FAULTS else 10


@dataclass(frozen=True)
class _Class:
    placement: Placement
    reason: str
    evidence: tuple[str, ...] = ()
    final: bool = False  # nobody's word changes it
    provable: bool = False  # only a proof is missing


def judge(
    facts: PathFacts,
    *,
    job_ids: Collection[str],
    single_machine: bool,
    accept: frozenset[Placement],
    temporary_dirs: tuple[str, ...] = (),
    site: SitePolicy = NO_POLICY,
    artifact: Artifact = Artifact.CHECKPOINT,
) -> PlacementVerdict:
    """Judge one path. It promises that no class is allowed which this node can take with it, unless somebody said so.

    `job_ids` and `temporary_dirs` (such as `$TMPDIR`) name what is removed at the end of the job; `single_machine` says
    that all nodes are this machine; `accept` are classes that the user allows by name (see `ACCEPTABLE`); `site` is the site's
    word, and `artifact` what is to be kept there: a cache may be lost with its node.
    """
    found = _by_site(facts, site) or _classify(facts, job_ids, temporary_dirs)
    promised = site.expected(facts.real)
    placement, reason = found.placement, found.reason
    confidence, allowed = Confidence.STATIC, placement in site.allowed(artifact)
    if promised and promised.declare and placement is Placement.UNKNOWN and not found.final:
        placement, confidence = promised.declare, Confidence.DECLARED
        reason = f"declared by the site: {placement.value}; {reason}"
        allowed = placement in site.allowed(artifact)
    if promised and (bad := [option for option in promised.forbid_options if _has_option(facts.mount, option)]):
        allowed, found = False, replace(found, final=True)
        reason = f"the site forbids the mount option `{bad[0]}` here; {reason}"
    if not allowed and not found.final and artifact.durable:
        if single_machine and placement in SINGLE_MACHINE:
            confidence, allowed = Confidence.DECLARED, True
            reason = f"declared: single machine; {reason}"
        elif placement in accept & ACCEPTABLE and (single_machine or placement is not Placement.CONTAINER_EPHEMERAL):
            confidence, allowed = Confidence.DECLARED, True
            reason = f"declared: {placement.value} is accepted; {reason}"
    evidence = (*found.evidence, *_seen(facts))
    if placement in accept and not allowed:
        evidence = (f"{placement.value} was accepted by name, which does not help here", *evidence)
    remedy = "" if allowed else _REMEDIES.get(placement, _SHARED_REMEDY)
    if allowed and site.untightened is not None:  # a user's words may have moved the path into a class that is allowed
        alone = judge(
            facts,
            job_ids=job_ids,
            single_machine=single_machine,
            accept=accept,
            temporary_dirs=temporary_dirs,
            site=site.untightened,
            artifact=artifact,
        )
        if not alone.allowed:
            return alone
    provable = found.provable and placement is Placement.UNKNOWN and not allowed and artifact.durable
    return PlacementVerdict(placement, confidence, allowed, reason, evidence, remedy, provable)


def without_facts(placement: Placement, reason: str, *, remedy: str = "") -> PlacementVerdict:
    """Return the verdict on a path that could not be looked at: always refused."""
    remedy = remedy or _REMEDIES.get(placement, _SHARED_REMEDY)
    return PlacementVerdict(placement, Confidence.STATIC, False, _line(reason), remedy=remedy)


def refused_after_all(verdict: PlacementVerdict, placement: Placement, reason: str) -> PlacementVerdict:
    """Return a verdict for what a look at the path could not tell and a test there has shown."""
    remedy = _REMEDIES.get(placement, _SHARED_REMEDY)
    return PlacementVerdict(placement, Confidence.PROVED, False, f"{reason}; {verdict.reason}", verdict.evidence, remedy)


def option_findings(row: MountRow) -> tuple[Finding, ...]:
    """Return a warning for what weakens a shared file system, its type or a mount option, and a note for other options."""
    where = _line(row.mount_point)
    found = [
        Finding("mount-option", severity, f"{row.type} is mounted with `{option}`: {effect}", where=where)
        for severity, table in ((Severity.WARNING, OPTION_LINTS), (Severity.INFO, OPTION_NOTES))
        for option, effect in table.get(row.type, ())
        if _has_option(row, option)
    ]
    known = FILE_SYSTEMS.get(row.type)
    if known and known.placement in SHARED:
        notes = [known.note] if known.note else []
        if row.mount_point == "/":
            notes.append("it is the whole root file system: a container's one may be removed with the container")
        found += [Finding("mount-type", Severity.WARNING, f"{row.type}: {note}", where=where) for note in notes]
    return tuple(found)


def speed_findings(row: MountRow) -> tuple[Finding, ...]:
    """Return what about a mount makes saves slower than its storage is."""
    if row.type not in ("nfs", "nfs4") or row.option("proto") == "rdma" or (row.option("nconnect") or "1") != "1":
        return ()
    message = f"{row.type} uses one TCP connection: saves of this node go no faster than that"
    remedy = "mount it with nconnect=8 or more, or over RDMA"
    return (Finding("nfs-one-connection", Severity.INFO, message, where=_line(row.mount_point), remedy=remedy),)


def _has_option(row: MountRow, option: str) -> bool:
    return option in row.options or option in row.super_options


def _by_site(facts: PathFacts, site: SitePolicy) -> _Class | None:
    """What the site's word alone decides: a promised mount that is not there, and what it says is removed at some time."""
    promised = site.expected(facts.real)
    if promised and (problem := promised.problem(facts.mount)):
        return _Class(Placement.MISSING_MOUNT, _line(problem), final=True)
    what = _line(f"{facts.mount.type} from {facts.mount.source or '(no source)'}, mounted at {facts.mount.mount_point}")
    if promised and promised.durability is Durability.EPHEMERAL:
        return _Class(Placement.SHARED_EPHEMERAL, f"the site calls it ephemeral: {what}", final=True)
    if glob := site.ephemeral(facts.real):
        return _Class(Placement.SHARED_EPHEMERAL, f"the site removes files there (`{glob}`): {what}", final=True)
    return None


# --- rules, the first that decides wins ------------------------------------------------------------------------------


def _classify(facts: PathFacts, job_ids: Collection[str], temporary_dirs: tuple[str, ...]) -> _Class:
    row = facts.mount
    what = _line(f"{row.type} from {row.source or '(no source)'}, mounted at {row.mount_point}")
    known = FILE_SYSTEMS.get(row.type)
    if row.type == "autofs" or facts.magic == 0x0187:
        return _Class(Placement.AUTOFS_PENDING, f"the automount of {_line(facts.existing)} was triggered and is not there")
    if row.read_only or facts.writable_errno == errno.EROFS:
        return _Class(Placement.READ_ONLY, f"read-only: {what}")
    if row.deleted:
        return _Class(
            Placement.CONTAINER_EPHEMERAL,
            f"the folder that is mounted here has been deleted, new files give ENOENT: {what}",
            final=True,
        )
    if known is None:
        kind = "an interface of the kernel" if row.type in KERNEL_TYPES else "a file system that ckptctl does not know"
        return _Class(Placement.UNKNOWN, f"{kind}: {what}", provable=row.type not in KERNEL_TYPES)
    if facts.magic not in known.magics:
        return _Class(Placement.UNKNOWN, f"the mount table says {row.type}, statfs says {facts.magic:#010x}: {what}")
    note = (known.note,) if known.note else ()
    if row.type in ("fuse", "fuseblk") and row.source.lower().startswith(OBJECT_SOURCES):
        return _Class(Placement.SHARED_OBJECT, f"an object store behind a folder: {what}")
    if known.placement is Placement.CONTAINER_EPHEMERAL:
        return _layered(row, what)
    if known.placement in SHARED:
        weak = _ephemeral(facts, job_ids, temporary_dirs, what) or _weak(facts, what)
        return weak or _Class(known.placement, what, note)
    if known.placement is Placement.NODE_LOCAL:
        return _on_devices(facts, what)
    if known.placement is Placement.VOLATILE:
        return _Class(Placement.VOLATILE, f"in this node's memory: {what}")
    provable = known.placement is Placement.UNKNOWN
    return _Class(known.placement, f"{known.note}: {what}" if known.note else what, provable=provable)


def _layered(row: MountRow, what: str) -> _Class:
    upper = row.option("upperdir") or "a folder that the mount table does not name"
    evidence = (f"new files go to {_line(upper)} (a name of the host, which may mean something else here)",)
    return _Class(Placement.CONTAINER_EPHEMERAL, f"a layer that is removed with its container: {what}", evidence)


def _ephemeral(facts: PathFacts, job_ids: Collection[str], temporary_dirs: tuple[str, ...], what: str) -> _Class | None:
    """Shared storage whose content goes with the job. Only a signal in the path alone can be overruled."""
    row = facts.mount
    texts = " ".join((row.source, row.mount_point, *row.super_options)).lower()
    if row.type in ("beegfs", "fhgfs") and ("beeond" in texts or "ondemand" in texts):
        return _Class(Placement.SHARED_EPHEMERAL, f"BeeOND, made of this job's own nodes: {what}", final=True)
    if "/dws/mounts/batch/" in row.mount_point + "/":
        return _Class(Placement.SHARED_EPHEMERAL, f"a DataWarp file system, made for a job: {what}", final=True)
    if row.mount_point.startswith("/mnt/nnf/"):
        return _Class(Placement.SHARED_EPHEMERAL, f"a Rabbit file system, made for a job: {what}", final=True)
    for path in (row.mount_point, row.root):
        if part := _job_part(path, job_ids):
            return _Class(Placement.SHARED_EPHEMERAL, f"mounted for the job only (`{_line(part)}`): {what}", final=True)
    if part := _job_part(facts.real, job_ids):
        return _Class(Placement.SHARED_EPHEMERAL, f"a folder of the job (`{_line(part)}`), often removed with it: {what}")
    for folder in temporary_dirs:
        if folder.strip("/") and (facts.real + "/").startswith(folder.rstrip("/") + "/"):
            return _Class(Placement.SHARED_EPHEMERAL, f"in the temporary folder {_line(folder)}: {what}")
    return None


def _job_part(path: str, job_ids: Collection[str]) -> str:
    """Return the component of a path that names the job: its id alone, or `job-ID`, `slurm.ID` and the like."""
    ids = {part for name in job_ids for part in (name, re.split(r"[_+.]", name)[0]) if part}  # an array's tasks share its id
    if not ids:
        return ""
    names = "|".join(re.escape(name) for name in sorted(ids))
    pattern = re.compile(rf"\.?((slurm|job|slurm[._-]?job|jobid|tmp|tmpdir|scratch)[._-]?)?({names})", re.IGNORECASE)
    return next((part for part in path.split("/") if pattern.fullmatch(part)), "")


def _weak(facts: PathFacts, what: str) -> _Class | None:
    """A shared type that does not keep what its name promises."""
    row = facts.mount
    address = row.option("addr") or ""
    if row.mount_point == "/" and (_CONTAINER_ROOT.search(row.source) or _CONTAINER_ROOT.search(row.root)):
        return _Class(Placement.CONTAINER_EPHEMERAL, f"the root file system of a container: {what}")
    if (option := WRITEBACK_OPTIONS.get(row.type)) and row.option(option) is not None:
        return _Class(Placement.SHARED_WRITEBACK, f"with `{option}` fsync returns before the server has the bytes: {what}")
    if address == "::1" or address.startswith("127."):
        why = f"its server is reached through {_line(address)}: a proxy, or this node's own export"
        return _Class(Placement.UNKNOWN, f"{why}: {what}")
    if facts.server_is_local:
        return _Class(Placement.UNKNOWN, f"its server {_line(address)} is this node itself, which can be lost: {what}")
    return None


def _on_devices(facts: PathFacts, what: str) -> _Class:
    """A disk's file system: the worst of its devices decides. Never shared, wherever the bytes are."""
    found = devices.placement(facts.devices)
    if found is Placement.VOLATILE:
        return _Class(found, f"on a block device in this node's memory: {what}")
    if any(device.name.startswith("loop") for device in devices.leaves(facts.devices)):
        return _in_image(facts, what)
    if found is Placement.NODE_ATTACHED_NETWORK_BLOCK:
        return _Class(found, f"a network volume that one node at a time can mount: {what}")
    evidence = list(devices.notes(facts.devices))
    if facts.mount.mount_point == "/" and facts.existing != "/":
        evidence.append("nothing is mounted between / and the path: if a mount was expected there, it is missing")
    return _Class(found, f"a disk of this node: {what}", tuple(evidence))


def _in_image(facts: PathFacts, what: str) -> _Class:
    """A loop device: an image file, which only one node may mount, kept wherever the file is."""
    if facts.backing is None:
        return _Class(Placement.UNKNOWN, f"an image file that can't be found from here: {what}")
    inner = _classify(facts.backing, (), ())
    evidence = (f"the image {_line(facts.backing.real)}: {inner.placement.value}, {inner.reason}",)
    if inner.placement in (Placement.VOLATILE, Placement.CONTAINER_EPHEMERAL):
        return _Class(inner.placement, f"an image file, {inner.reason}; {what}", evidence, final=inner.final)
    if inner.placement in SHARED | SINGLE_MACHINE:
        return _Class(Placement.NODE_LOCAL, f"an image file, which one node at a time can mount: {what}", evidence)
    return _Class(Placement.UNKNOWN, f"an image file on storage of class {inner.placement.value}: {what}", evidence)


# --- words -----------------------------------------------------------------------------------------------------------


def _seen(facts: PathFacts) -> tuple[str, ...]:
    row = facts.mount
    lines = [] if facts.asked == facts.real else [f"{_line(facts.asked)} is {_line(facts.real)}"]
    if facts.missing:
        lines.append(f"it does not exist; judged by {_line(facts.existing)}")
    lines += [
        f"mount {row.id}: {_line(row.type)} from {_line(row.source) or '(no source)'}, device {row.major}:{row.minor}",
        f"folder {_line(row.root)} of it is mounted at {_line(row.mount_point)}",
        f"options {_line(','.join(row.options))}; of the file system {_line(','.join(row.super_options))}",
        f"statfs says {facts.magic:#010x}",
    ]
    return tuple(lines)


def chain(facts: PathFacts) -> tuple[str, ...]:
    """Return the backing chain as an indented tree, the mounted device first, the image behind a loop device last."""
    tree = [_line(line) for line in devices.tree(facts.devices)]
    if facts.backing is not None:
        tree += [f"  the image {_line(facts.backing.real)}", *(f"    {line}" for line in chain(facts.backing))]
    return tuple(tree)


def fabric_attached(facts: PathFacts) -> str:
    """Return whether the bytes are beyond this node: `yes`, `no` or `unknown`. Not the same as shared. The worst disk decides.

    A disk of an NVMe-oF target or a network volume is attached by a fabric, and one node at a time can mount it.
    """
    known = FILE_SYSTEMS.get(facts.mount.type)
    if known is not None and known.placement in SHARED | {Placement.SHARED_WRITEBACK, Placement.SHARED_OBJECT}:
        return "yes"
    if known is not None and known.placement is Placement.VOLATILE:
        return "no"
    found = {devices.beyond(disk) for disk in devices.leaves(facts.devices) if not disk.name.startswith("loop")}
    if any(disk.name.startswith("loop") for disk in devices.leaves(facts.devices)):
        found.add("unknown" if facts.backing is None else fabric_attached(facts.backing))
    return "no" if "no" in found else "yes" if found == {"yes"} else "unknown"


def shared(verdict: PlacementVerdict) -> str:
    """Return whether other nodes see the same files, as far as one node can tell."""
    if verdict.placement in FAULTS | {Placement.UNKNOWN}:
        return "unknown"
    if not verdict.placement.value.startswith("SHARED_"):
        return "no"
    return "declared" if verdict.confidence is Confidence.DECLARED else "by its type; only `prove` shows it"


def _line(text: str) -> str:
    """Return a name from outside as part of one line, control characters and bytes that are no UTF-8 as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
