"""Waiting with a deadline, and processes as the kernel lists them. Knows nothing of Slurm."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class RigError(Exception):
    """The test rig, not the code under test, failed; the message ends with the relevant log."""


class RigTimeoutError(RigError, TimeoutError):
    """A wait of the rig reached its deadline; the message names what was awaited."""


def tail(path: Path, lines: int = 25) -> str:
    """The last lines of a log, or a line saying that there is none; never raises for a missing file."""
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return f"({path.name}: no such file)"
    return "\n".join(text.splitlines()[-lines:])


def wait_for(
    what: str,
    probe: Callable[[], T | None],
    deadline_s: float,
    *,
    log: Callable[[], str] = lambda: "",
    poll_s: float = 0.05,
) -> T:
    """Poll `probe` until it returns something true, and return that.

    Raises:
        RigTimeoutError: naming `what`, with `log()` attached, once `deadline_s` has passed.
    """
    end = time.monotonic() + deadline_s
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() >= end:
            raise RigTimeoutError(f"not within {deadline_s:g} s: {what}\n{log()}".rstrip())
        time.sleep(poll_s)


def run_bounded(
    argv: Sequence[str | Path], timeout_s: float, *, env: dict[str, str] | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end with captured text output; the return code is the caller's business.

    The command gets a session of its own, and the whole session is killed at the deadline: killing only the
    first process left `nsenter`'s child alive, which then blocked the read of its output for ever.
    """
    command = [str(part) for part in argv]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=env,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(stdin, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise RigTimeoutError(f"not within {timeout_s:g} s: {' '.join(command)}\n{out}{err}".rstrip()) from None
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@dataclass(frozen=True)
class Process:
    """One live process, with its numbers in the namespace of the caller and in its own."""

    pid: int
    inner_pid: int
    parent: int
    name: str
    state: str

    @property
    def argv(self) -> list[str]:
        """Its command line; empty when it has ended meanwhile."""
        try:
            raw = Path(f"/proc/{self.pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return []
        return [part.decode(errors="replace") for part in raw.rstrip(b"\0").split(b"\0")]


def read_process(pid: int) -> Process | None:
    """What /proc says of a process; None when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return Process(
        pid=pid,
        inner_pid=int(fields["NSpid"].split()[-1]),
        parent=int(fields["PPid"]),
        name=fields["Name"].strip(),
        state=fields["State"].split()[0],
    )


def all_pids() -> Iterator[int]:
    """Every process id that the caller's /proc shows."""
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def only_descendant(pid: int) -> int | None:
    """The last process of the chain of children that starts at `pid`; None when it has no child yet."""
    parents = {p.parent: p.pid for p in map(read_process, all_pids()) if p is not None}
    last = pid
    while last in parents:
        last = parents[last]
    return last if last != pid else None


def pid_namespace(pid: int) -> str | None:
    """The identity of the pid namespace that a process is in, `pid:[N]`; None for a process that is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def send_signal(pid: int, number: int) -> bool:
    """Send a signal; False when the process was already gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
