"""Looking at one path, in a child with a deadline, and what is to be said of it beside its class."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict
from typing import Any

from ckptctl.checks.child import run_in_child
from ckptctl.model.mount import PathFacts
from ckptctl.model.report import Finding, Severity
from ckptctl.model.verdict import Placement
from ckptctl.policy.filesystems import FILE_SYSTEMS
from ckptctl.policy.placement import option_findings, speed_findings
from ckptctl.storage.mounts import examine

SPACE_FINDINGS = frozenset({"no-space", "no-inodes", "no-quota"})
"""Names of findings that mean exit code 13, not 14."""
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
    found = [*option_findings(facts.mount), *speed_findings(facts.mount)]
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
        found.append(not_writable(facts.writable_errno, facts.existing, uid=facts.uid))
    found += _space(facts)
    return tuple(found)


def _space(facts: PathFacts) -> list[Finding]:
    """Return what statfs says of space. Quotas are not in it, but those of a project (XFS, ext4)."""
    found = []
    known = FILE_SYSTEMS.get(facts.mount.type)
    made_up = known is not None and known.placement is Placement.SHARED_OBJECT  # rclone: 0 of 1000000000 inodes are free
    for name, what, free, total, least in (
        ("space", "bytes", facts.free_bytes, facts.total_bytes, _LEAST_BYTES),
        ("inodes", "inodes", None if made_up else facts.free_inodes, facts.total_inodes, 1),
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


def not_writable(number: int, where: str, *, uid: int, during: str = "") -> Finding:
    """Return the finding for a folder in which no files can be created."""
    message = f"no files can be created here as uid {uid}: {os.strerror(number)}{during}"
    remedy = {
        errno.EACCES: "check as the user of the job, or have the folder's permissions changed",
        errno.ENOTDIR: "name a folder",
    }.get(number, "look at the mount on this node")
    facts = {"errno": number, "uid": uid}
    return Finding("not-writable", Severity.ERROR, message, where=where, remedy=remedy, facts=facts)
