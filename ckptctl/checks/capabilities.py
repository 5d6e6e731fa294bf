"""What a folder can really do, by doing it: create, write, fsync, rename, link, O_DIRECT, read back. Leaves nothing behind.

All of it happens in one folder of its own, `.ckptctl-probe-*`, in a child with a deadline. A child that hangs or dies is killed
and its folder removed by another; what a whole process group that was killed left behind is removed by the next probe.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets
import shutil
import time
from typing import Any

from ckptctl.checks import scratch, tools
from ckptctl.checks.child import run_in_child
from ckptctl.checks.path import not_writable
from ckptctl.errors import CkptctlError, DeadlineExceeded, StorageFault
from ckptctl.model.report import Finding, Severity

PROBE_PREFIX = ".ckptctl-probe-"
_PAGE_BYTES = 4096
_SAMPLE_BYTES = 16 * 1024 * 1024
_REMOVE_S = 2.0
_TOOL_S = 2.0


def probe(folder: str, *, deadline_s: float, lustre: bool = False) -> tuple[Finding, ...]:
    """Try everything that a save needs in an existing folder; on `lustre` also whether this node keeps new files to itself.

    Raises `DeadlineExceeded` where that hangs. Findings: `probed` with the throughput of a small sample, `no-direct-io`,
    `no-link` and `no-noreplace` (a slower way is taken), and as errors `not-writable`, `no-space`, `rename-not-atomic`,
    `exclusive-create-broken`, `reads-differ` and `kept-on-this-node`: checkpoints can't live there.
    """
    name = scratch.new_name(folder, PROBE_PREFIX)
    try:
        answer: dict[str, Any] = run_in_child(lambda: _try_everything(folder, name, lustre), deadline_s=deadline_s)
    except (DeadlineExceeded, StorageFault):
        with contextlib.suppress(CkptctlError):
            run_in_child(lambda: shutil.rmtree(name, ignore_errors=True), deadline_s=_REMOVE_S)
        raise
    return tuple(_findings(folder, name, answer))


def _try_everything(folder: str, name: str, lustre: bool) -> dict[str, Any]:
    answer: dict[str, Any] = {"error": 0, "during": "", "direct": 0, "link": 0, "broken": [], "bytes_per_s": 0.0, "remains": 0}
    scratch.remove_leftovers(folder, PROBE_PREFIX)
    step = "creation"
    made = False
    try:
        os.mkdir(name, 0o700)
        made = True
        first, second = os.path.join(name, "a"), os.path.join(name, "b")
        block = mmap.mmap(-1, _PAGE_BYTES)  # a page: aligned, as O_DIRECT wants it
        block[:16] = secrets.token_bytes(16)
        _write(first, block, os.O_EXCL)
        step = "fsync of the folder"
        _fsync_folder(name)
        step = "exclusive creation"
        if not _refuses(first):
            answer["broken"].append("exclusive-create-broken")
        step = "rename"
        _write(second, mmap.mmap(-1, _PAGE_BYTES), os.O_EXCL)
        os.rename(first, second)
        if os.path.lexists(first) or _read(second) != bytes(block):
            answer["broken"].append("rename-not-atomic")
        step = "rename of a folder"
        os.mkdir(os.path.join(name, "c"))
        os.rename(os.path.join(name, "c"), os.path.join(name, "d"))
        step = "read"
        if _read(second) != bytes(block):
            answer["broken"].append("reads-differ")
        if lustre and tools.cached_for_writing(second, deadline_s=_TOOL_S):
            answer["broken"].append("kept-on-this-node")
        answer["link"] = _errno_of(lambda: os.link(second, first))
        # With a descriptor of its own: creation with O_DIRECT leaves a file behind where O_DIRECT is refused.
        answer["direct"] = _errno_of(lambda: _write(second, block, 0, os.O_DIRECT))
        step = "write"
        sample = mmap.mmap(-1, _SAMPLE_BYTES)
        begun = time.perf_counter()
        _write(os.path.join(name, "sample"), sample, os.O_EXCL, 0 if answer["direct"] else os.O_DIRECT)
        answer["bytes_per_s"] = _SAMPLE_BYTES / max(time.perf_counter() - begun, 1e-6)
    except OSError as exc:
        answer.update(error=exc.errno, during=step)
    finally:
        if made:
            shutil.rmtree(name, ignore_errors=True)
            answer["remains"] = int(os.path.lexists(name))
    return answer


def _findings(folder: str, name: str, answer: dict[str, Any]) -> list[Finding]:
    found: list[Finding] = []
    if number := answer["error"]:
        if number in (errno.ENOSPC, errno.EDQUOT):
            message = f"a small file can't be written: {os.strerror(number)}"
            found.append(Finding("no-space", Severity.ERROR, message, folder, "free space, or ask for more quota"))
        else:
            found.append(not_writable(number, folder, uid=os.geteuid(), during=f" (in the {answer['during']} of a probe)"))
    advice = "use another file system"
    found += [Finding(name, Severity.ERROR, _BROKEN[name], where=folder, remedy=advice) for name in answer["broken"]]
    if not answer["error"] and not answer["broken"]:
        rate = f"{answer['bytes_per_s'] / 1e6:.0f} MB/s"
        message = f"files were created, written, fsynced, renamed, read back and removed; one small sample went at {rate}"
        found.append(Finding("probed", Severity.INFO, message, folder, facts={"bytes_per_s": round(answer["bytes_per_s"])}))
    if number := answer["direct"]:
        message = f"O_DIRECT is refused: {os.strerror(number)}"
        remedy = "saves go through the page cache, which is slower and takes the job's memory"
        found.append(Finding("no-direct-io", Severity.WARNING, message, folder, remedy, {"errno": number}))
    if number := answer["link"]:
        message = f"hard links are refused: {os.strerror(number)}"
        remedy = "nothing: exclusively created claim files decide instead"
        found.append(Finding("no-link", Severity.INFO, message, folder, remedy, {"errno": number}))
    if answer["remains"]:
        message = "the probe's folder can't be removed"
        found.append(Finding("probe-remains", Severity.WARNING, message, where=name, remedy="remove it by hand"))
    return found


_BROKEN = {
    "exclusive-create-broken": "a file that exists could be created exclusively: two committers could both win",
    "rename-not-atomic": "a rename over a file left the old name or the old content: a save can't become complete in one step",
    "kept-on-this-node": "Lustre puts new files on this node's own disk (PCC, read-write) until it attaches or archives them",
    "reads-differ": "what was written and fsynced is read back differently",
}


def _write(path: str, data: mmap.mmap, create: int, direct: int = 0) -> None:
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | direct | (os.O_CREAT | create if create else 0)
    fd = os.open(path, flags, 0o600)
    try:
        if os.write(fd, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # a short write: the next one would say so
        os.fsync(fd)
    finally:
        os.close(fd)


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read(_PAGE_BYTES)


def _fsync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _refuses(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return True
    return False


def _errno_of(action: Any) -> int:
    try:
        action()
    except OSError as exc:
        return exc.errno or errno.EIO
    return 0
