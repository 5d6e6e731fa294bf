"""Run a function in a forked child with a deadline, because a system call on a dead mount may never return.

A child that hangs in the kernel does not even react to SIGKILL until the mount answers. It is therefore killed and
left: waiting for it would hang the parent too.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import ckptctl.errors
from ckptctl.errors import CkptctlError, DeadlineExceeded, StorageFault

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
_abandoned: set[int] = set()


def run_in_child(function: Callable[[], Any], *, deadline_s: float) -> Any:
    """Return what `function` returns in a forked child; it must be JSON.

    Raises `DeadlineExceeded` when it is not done in time, `StorageFault` when the child dies without an answer, the
    same `CkptctlError` that the function raises (with its `__cause__`, if an `OSError`), and `RuntimeError` with the
    child's traceback for anything else. The function has no descriptor of the parent's, neither standard output nor
    locks: a child that hangs must not keep the reader of our output, or another job, waiting.

    Forks without exec: for processes that run few threads, not for trainers.
    """
    end = time.monotonic() + deadline_s
    _reap()
    receiver, sender = os.pipe()
    parent = os.getpid()
    # Blocked, so that no handler of the parent's runs in the child before it has handlers of its own.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _child(function, sender, parent, mask)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        os.close(sender)
        answer = _read_all(receiver, end)
    except BaseException:
        _abandon(pid)
        raise
    finally:
        os.close(receiver)
    if answer is None:
        _abandon(pid)
        raise DeadlineExceeded(
            f"no answer within {deadline_s:g} s", hint="a mount on the way to it hangs; its process was left behind"
        )
    return _result(answer, _status(pid, end))


def _read_all(receiver: int, end: float) -> bytes | None:
    """Read up to the end of the pipe; None at the deadline."""
    poll = select.poll()
    poll.register(receiver, select.POLLIN)
    parts: list[bytes] = []
    while (left_s := end - time.monotonic()) > 0:
        if poll.poll(left_s * 1000):
            part = os.read(receiver, 65536)
            if not part:
                return b"".join(parts)
            parts.append(part)
    return None


def _status(pid: int, end: float) -> int:
    """Return the exit code of a child that has closed its pipe, -n for signal n. It may still hang on its way out."""
    pause_s = 0.0005
    while True:
        try:
            found, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # reaped by somebody else, or SIGCHLD is ignored
            return 0
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            _abandon(pid)
            return 0
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.02)


def _result(answer: bytes, status: int) -> Any:
    try:
        message = json.loads(answer)
    except ValueError:  # died before it had written all of it
        how = f"signal {-status}" if status < 0 else f"exit code {status}"
        raise StorageFault(f"the process that looked at it died: {how}", hint="look at the kernel's log") from None
    if "value" in message:
        return message["value"]
    if "bug" in message:
        raise RuntimeError(message["bug"])
    kind = getattr(ckptctl.errors, message["error"], CkptctlError)
    error = kind(message["message"], context=message["context"], hint=message["hint"])
    number = message["errno"]
    raise error from (None if number is None else OSError(number, os.strerror(number)))


def _child(function: Callable[[], Any], sender: int, parent: int, mask: set[int]) -> NoReturn:
    code = 1
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before that was set
            os._exit(1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        for number in (signal.SIGUSR1, signal.SIGUSR2):  # Slurm sends its notices to every process of a jobstep
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if sender <= 2:  # the parent has no standard streams
            sender = fcntl.fcntl(sender, fcntl.F_DUPFD_CLOEXEC, 3)
        _close_all_but(sender)
        answer = json.dumps(_answer(function)).encode()
        while answer:
            answer = answer[os.write(sender, answer) :]
        code = 0
    finally:
        os._exit(code)


def _answer(function: Callable[[], Any]) -> dict[str, Any]:
    try:
        value = function()
        json.dumps(value)
        return {"value": value}
    except CkptctlError as exc:
        cause = exc.__cause__
        return {
            "error": type(exc).__name__,
            "message": exc.message,
            "context": exc.context,
            "hint": exc.hint,
            "errno": cause.errno if isinstance(cause, OSError) else None,
        }
    except BaseException:  # noqa: BLE001  the parent is told, whatever it is
        return {"bug": f"in the child:\n{traceback.format_exc()}"}


def _close_all_but(sender: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd != sender:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(fd)


def _abandon(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _abandoned.add(pid)
    _reap()


def _reap() -> None:
    """Collect those that have ended meanwhile, without waiting for any."""
    for pid in tuple(_abandoned):
        try:
            ended = os.waitpid(pid, os.WNOHANG)[0] == pid
        except ChildProcessError:
            ended = True
        if ended:
            _abandoned.discard(pid)
