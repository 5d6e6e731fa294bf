"""Looking at one path, in a child with a deadline, and what is to be said of it beside its class."""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import secrets
from dataclasses import asdict
from typing import Any

from ckptctl.checks.child import run_in_child
from ckptctl.model.mount import PathFacts
from ckptctl.model.report import Finding, Severity
from ckptctl.policy.placement import option_findings
from ckptctl.storage.mounts import examine

PROBE_PREFIX = ".ckptctl-probe-"
SPACE_FINDINGS = frozenset({"no-space", "no-inodes"})
"""Names of findings that mean exit code 13, not 14."""
_PROBE_BYTES = 4096
_LEAST_BYTES = 1024 * 1024  # a full ext4 still reports some KiB that nobody gets
_LINEAGE_MAX_BYTES = 1024 * 1024


def look(path: str, *, deadline_s: float) -> PathFacts:
    """Return the facts of a path. Raises like `storage.mounts.examine`, and `DeadlineExceeded` where that hangs."""
    return PathFacts.from_dict(run_in_child(lambda: asdict(examine(path)), deadline_s=deadline_s))


def look_for_lineage(path: str, *, deadline_s: float) -> tuple[PathFacts, dict[str, Any]]:
    """Return the facts of a path, and what its `.ckptctl/lineage.json` says: `visible`, `id` or None, `problem`."""

    def both() -> dict[str, Any]:
        facts = examine(path)
        return {"facts": asdict(facts), "lineage": _lineage(facts.real)}

    answer = run_in_child(both, deadline_s=deadline_s)
    return PathFacts.from_dict(answer["facts"]), answer["lineage"]


def _lineage(root: str) -> dict[str, Any]:
    problem = ""
    try:
        with open(os.path.join(root, ".ckptctl", "lineage.json"), "rb") as file:
            found = json.loads(file.read(_LINEAGE_MAX_BYTES))
        if isinstance(found, dict) and isinstance(found.get("id"), str):
            return {"visible": True, "id": found["id"], "problem": ""}
        problem = "it has no id"
    except (FileNotFoundError, NotADirectoryError):
        return {"visible": False, "id": None, "problem": ""}
    except OSError as exc:
        return {"visible": False, "id": None, "problem": exc.strerror or str(exc)}
    except ValueError as exc:
        problem = f"it is not JSON: {exc}"
    return {"visible": True, "id": None, "problem": problem}


def findings(facts: PathFacts) -> tuple[Finding, ...]:
    """Return what is to be said of a path: a missing leaf, permissions, mount options, space."""
    found = list(option_findings(facts.mount))
    if facts.missing:
        found.append(
            Finding(
                "missing-folder",
                Severity.INFO,
                "the folder does not exist; its nearest existing ancestor was judged",
                where=facts.existing,
                remedy="it is created there at the first save",
            )
        )
    if facts.dangling_link:
        found.append(
            Finding(
                "dangling-link",
                Severity.WARNING,
                f"a symlink on the way points at something missing: {facts.real}",
                where=facts.dangling_link,
                remedy="create its target: a folder can't be created through a dangling symlink",
            )
        )
    if not facts.writable:
        found.append(_not_writable(facts.writable_errno, facts.existing, uid=facts.uid))
    found += _space(facts)
    return tuple(found)


def _not_writable(number: int, where: str, *, uid: int, during: str = "") -> Finding:
    message = f"no files can be created here as uid {uid}: {os.strerror(number)}{during}"
    remedy = {
        errno.EACCES: "check as the user of the job, or have the folder's permissions changed",
        errno.ENOTDIR: "name a folder",
    }.get(number, "look at the mount on this node")
    facts = {"errno": number, "uid": uid}
    return Finding("not-writable", Severity.ERROR, message, where=where, remedy=remedy, facts=facts)


def _space(facts: PathFacts) -> list[Finding]:
    """Return what statfs says of space. Quotas are not in it."""
    found = []
    for name, what, free, total, least in (
        ("space", "bytes", facts.free_bytes, facts.total_bytes, _LEAST_BYTES),
        ("inodes", "inodes", facts.free_inodes, facts.total_inodes, 1),
    ):
        if not total or free is None:  # not counted by this file system
            continue
        numbers = {"free": free, "total": total}
        message = f"only {free} of {total} {what} are left"
        if free < least:
            found.append(Finding(f"no-{name}", Severity.ERROR, message, where=facts.existing, facts=numbers))
        elif free * 10 < total:  # parallel file systems can refuse long before: the fullest target decides
            found.append(Finding(f"low-{name}", Severity.WARNING, message, where=facts.existing, facts=numbers))
    return found


def probe_writes(folder: str, *, deadline_s: float) -> tuple[Finding, ...]:
    """Create, write, fsync and remove one small file in an existing folder, and try O_DIRECT on it.

    Raises `DeadlineExceeded` where that hangs; the file, `.ckptctl-probe-*`, may then remain.
    """
    name = os.path.join(folder, PROBE_PREFIX + secrets.token_hex(8))
    answer = run_in_child(lambda: _write_probe(name), deadline_s=deadline_s)
    found = []
    if number := answer["error"]:
        if number in (errno.ENOSPC, errno.EDQUOT):
            message = f"a small file can't be written: {os.strerror(number)}"
            remedy = "free space, or ask for more quota"
            found.append(Finding("no-space", Severity.ERROR, message, where=folder, remedy=remedy))
        else:
            during = f" (in the {answer['during']} of a probe)"
            found.append(_not_writable(number, folder, uid=os.geteuid(), during=during))
    elif number := answer["direct_error"]:
        found.append(
            Finding(
                "no-direct-io",
                Severity.WARNING,
                f"O_DIRECT is refused: {os.strerror(number)}",
                where=folder,
                remedy="saves go through the page cache, which is slower and takes the job's memory",
                facts={"errno": number},
            )
        )
    else:
        found.append(Finding("probed", Severity.INFO, "a file was written, fsynced and removed", where=folder))
    if number := answer["remove_error"]:
        message = f"the probe's file can't be removed: {os.strerror(number)}"
        found.append(Finding("probe-remains", Severity.WARNING, message, where=name, remedy="remove it by hand"))
    return tuple(found)


def _write_probe(path: str) -> dict[str, Any]:
    answer: dict[str, Any] = {"error": 0, "during": "", "direct_error": 0, "remove_error": 0}
    block = mmap.mmap(-1, _PROBE_BYTES)  # a page: aligned, as O_DIRECT wants it
    during = "creation"
    created = False
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        created = True
        try:
            during = "write"
            _write_block(fd, block)
            during = "fsync"
            os.fsync(fd)
        finally:
            os.close(fd)
        # With a descriptor of its own: creation with O_DIRECT leaves a file behind where O_DIRECT is refused.
        answer["direct_error"] = _direct_error(path, block)
    except OSError as exc:
        answer.update(error=exc.errno, during=during)
    finally:
        if created:
            try:
                os.unlink(path)
            except OSError as exc:
                answer["remove_error"] = exc.errno
    return answer


def _direct_error(path: str, block: mmap.mmap) -> int:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_DIRECT | os.O_NOFOLLOW | os.O_CLOEXEC)
        with contextlib.closing(os.fdopen(fd, "wb", buffering=0)):
            _write_block(fd, block)
    except OSError as exc:
        return exc.errno or errno.EIO
    return 0


def _write_block(fd: int, block: mmap.mmap) -> None:
    if os.write(fd, block) != _PROBE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # a short write: the next one would say so
