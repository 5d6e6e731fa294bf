"""What the tools of a file system know beside statfs: quotas, Lustre layouts and client cache. Reads only.

A tool that is missing, fails or does not answer in time is no fault: the answer is less then. All of it happens in children
with a deadline.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ckptctl.checks.child import run_in_child
from ckptctl.errors import CkptctlError
from ckptctl.model.mount import PathFacts
from ckptctl.model.quota import Component, Quota
from ckptctl.storage import tool_text

_FOLDERS = ("/usr/lpp/mmfs/bin", "/usr/local/bin", "/usr/local/sbin", "/usr/bin", "/usr/sbin", "/bin", "/sbin")
_TOOL_OF = {"lustre": "lfs", "gpfs": "mmlsquota", **dict.fromkeys(("nfs", "nfs4", "ext2", "ext3", "ext4", "xfs"), "quota")}
_QUOTA_OPTION = re.compile(r"(quota|(u|usr|g|grp|p|prj)j?quota)(=.*)?")
_OUTPUT_BYTES = 1024 * 1024


def quotas(facts: PathFacts, *, deadline_s: float) -> tuple[list[Quota], str]:
    """Return the quotas of this user, of the group and of the project or fileset at a path, and why there may be more.

    The reason is empty when all were told. File systems that keep no quota here are not asked; the kernel itself puts the
    project quotas of XFS, ext4 and Lustre into the space of a folder that hands its project down.
    """
    kind = facts.mount.type
    name = _TOOL_OF.get(kind)
    local = name == "quota" and kind not in ("nfs", "nfs4")
    if name is None or (local and not any(_QUOTA_OPTION.fullmatch(option) for option in facts.mount.super_options)):
        return [], ""
    ask = {"lfs": _lustre, "mmlsquota": _gpfs, "quota": _linux}[name]
    end = _earlier(deadline_s)

    def look() -> list[dict[str, Any]] | None:
        tool = find(name)
        return None if tool is None else [asdict(quota) for quota in ask(tool, facts, end)]

    try:
        found = run_in_child(look, deadline_s=deadline_s)
    except CkptctlError:
        return [], f"`{name}` did not answer in time"
    if found is None:
        return [], f"no `{name}` on this node"
    return [quota for quota in (Quota(**fields) for fields in found) if quota.limited], ""


def layout(facts: PathFacts, *, deadline_s: float) -> tuple[Component, ...]:
    """Return the layout that Lustre gives files made in a folder; () elsewhere, or where `lfs` does not tell."""
    if facts.mount.type != "lustre":
        return ()
    end = _earlier(deadline_s)
    try:
        text = run_in_child(lambda: _run("lfs", ["getstripe", "-d", facts.existing], end), deadline_s=deadline_s)
    except CkptctlError:
        return ()
    return tool_text.lustre_layout(text)


def cached_for_writing(path: str, *, deadline_s: float) -> bool:
    """Whether Lustre keeps a file that was just written on this node's own disk (PCC, read-write). Can hang."""
    return tool_text.pcc_state(_run("lfs", ["pcc", "state", path], time.monotonic() + deadline_s)) == "readwrite"


def find(name: str) -> str | None:
    """Return the path of a tool, also where it is not in `PATH`."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(_FOLDERS))


def _earlier(deadline_s: float) -> float:
    """Return when a tool has to be done, so that the child that started it can still kill it."""
    return time.monotonic() + 0.9 * deadline_s


def _run(name: str, words: Sequence[str], end: float) -> str:
    tool = find(name)
    return output([tool, *words], end) if tool else ""


def output(argv: Sequence[str], end: float) -> str:
    """Return what a command prints on standard output until the (monotonic) time `end`, whatever its exit code.

    A command that is not done by then is killed and not waited for: it may hang in the kernel.
    """
    import subprocess  # here: most paths need no tool

    left_s = end - time.monotonic()
    if left_s <= 0:
        return ""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError:
        return ""
    try:
        out, _ = process.communicate(timeout=left_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if process.stdout:
            process.stdout.close()
        return ""
    return out[:_OUTPUT_BYTES].decode(errors="replace")  # `quota` also exits with 1 when somebody is over one


def _owners(facts: PathFacts) -> tuple[int, int]:
    """Return whose quota new files at a path count to: this user's, and the folder's group where it hands that down."""
    found = os.stat(facts.existing)
    return os.geteuid(), found.st_gid if found.st_mode & stat.S_ISGID else os.getegid()


def _lustre(tool: str, facts: PathFacts, end: float) -> list[Quota]:
    user, group = _owners(facts)
    asked = [("-u", user, f"user {user}"), ("-g", group, f"group {group}")]
    if project := tool_text.lustre_project(output([tool, "project", "-d", facts.existing], end)):
        asked.append(("-p", project, f"project {project}"))
    rows = [(output([tool, "quota", "-q", flag, str(number), facts.existing], end), name) for flag, number, name in asked]
    return [found for text, name in rows if (found := tool_text.quota_row(text, name)) is not None]


def _gpfs(tool: str, facts: PathFacts, end: float) -> list[Quota]:
    user, group = _owners(facts)
    device = facts.mount.source.removeprefix("/dev/")
    asked = [["-u", str(user)], ["-g", str(group)]]
    attributes = find("mmlsattr")
    if attributes and (name := tool_text.fileset(output([attributes, "-L", facts.existing], end))):
        asked.append(["-j", name])
    return [found for words in asked for found in tool_text.mmlsquota(output([tool, "-Y", *words, device], end))]


def _linux(tool: str, facts: PathFacts, end: float) -> list[Quota]:
    user, group = _owners(facts)
    common = [tool, "-w", "-p", "-Q", "--show-mntpoint", "--hide-device", f"--filesystem={facts.mount.mount_point}"]
    rows = [
        (output([*common, flag, str(number)], end), f"{word} {number}")
        for flag, number, word in (("-u", user, "user"), ("-g", group, "group"))
    ]
    return [found for text, name in rows if (found := tool_text.quota_row(text, name)) is not None]
