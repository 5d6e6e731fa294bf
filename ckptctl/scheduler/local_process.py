"""Processes by id: which ones belong to a local node, and ending them so that a reused id is never hit.

Linux only: everything is read from `/proc`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Proc:
    """One process; `start` (clock ticks since boot) tells it from a later one that was given the same id."""

    pid: int
    parent: int
    group: int
    state: str
    start: int

    @property
    def dead(self) -> bool:
        """Whether it has ended and only waits to be reaped."""
        return self.state in "ZX"


def read(pid: int) -> Proc | None:
    """Return the process with this id, or None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    # The command's name stands in parentheses and may hold spaces and parentheses itself: cut at the last one.
    fields = text[text.rindex(b")") + 2 :].split()
    return Proc(pid, int(fields[1]), int(fields[2]), fields[0].decode(), int(fields[19]))


def every() -> dict[int, Proc]:
    """Return all living processes by id (those that only wait to be reaped left out)."""
    found = (read(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {proc.pid: proc for proc in found if proc is not None and not proc.dead}


def same(pid: int, start: int) -> bool:
    """Whether the process that was started at `start` under this id still lives."""
    proc = read(pid)
    return proc is not None and proc.start == start and not proc.dead


def descendants(root: int, table: dict[int, Proc]) -> list[Proc]:
    """Return the living descendants of `root`, without `root` itself."""
    children: dict[int, list[Proc]] = {}
    for proc in table.values():
        children.setdefault(proc.parent, []).append(proc)
    found: list[Proc] = []
    todo = [root]
    while todo:
        for child in children.get(todo.pop(), ()):
            found.append(child)
            todo.append(child.pid)
    return found


def variable(pid: int, name: str) -> str | None:
    """Return a variable of the environment a process was started with; None when it has none or can't be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return None
    prefix = name.encode() + b"="
    return next((os.fsdecode(word[len(prefix) :]) for word in words if word.startswith(prefix)), None)


def members(leader: int, name: str, value: str) -> list[Proc]:
    """Return the living processes of a node: its group, the descendants of its leader, and whoever carries its mark.

    The mark is the variable `name=value`. It finds processes that left the group (`setsid`) after the leader has died,
    when descent shows nothing; only one that was also started with another environment is missed then.
    """
    table = every()
    found = {proc.pid: proc for proc in descendants(leader, table)}
    for proc in table.values():
        if proc.pid not in found and (proc.group == leader or variable(proc.pid, name) == value):
            found[proc.pid] = proc
    return list(found.values())


def send(proc: Proc, number: int) -> None:
    """Send a signal to this very process, not to a later one with its id. No error when it has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        try:
            handle = os.pidfd_open(proc.pid)
        except ProcessLookupError:
            return
        except (OSError, AttributeError):  # a kernel without pidfds (RHEL 8): the look and the signal are two calls
            if same(proc.pid, proc.start):
                os.kill(proc.pid, number)
            return
        try:
            if same(proc.pid, proc.start):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def kill_all(find: Callable[[], Iterable[Proc]], *, deadline_s: float) -> list[Proc]:
    """SIGKILL what `find` returns, again and again until it returns nothing; return who is left at the deadline."""
    end = time.monotonic() + deadline_s
    while True:
        left = list(find())
        if not left or time.monotonic() > end:
            return left
        for proc in left:
            send(proc, signal.SIGKILL)
        time.sleep(0.005)


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, so that none gets out of sight (PR_SET_CHILD_SUBREAPER)."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int) -> None:
    """Between fork and exec: have the kernel kill this process when `parent` dies."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call
        os._exit(137)
