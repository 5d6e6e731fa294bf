"""A function in a child with a deadline: its answer, errors and death, and that nobody waits for one that hangs."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptctl.checks import child
from ckptctl.checks.child import run_in_child
from ckptctl.errors import CkptctlError, DeadlineExceeded, OutOfSpace, StorageFault, UsageError

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 10.0


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def wait_until(condition: Callable[[], object]) -> bool:
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("value", [None, 7, "é\udcff\n", {"a": [1, {"b": None}]}, "x" * 2_000_000])
def test_the_answer_comes_back(value: Any) -> None:
    assert run_in_child(lambda: value, deadline_s=LIMIT_S) == value


def test_it_runs_in_another_process_and_leaves_none_behind() -> None:
    pid = run_in_child(os.getpid, deadline_s=LIMIT_S)
    assert pid != os.getpid()
    assert gone(pid)


def test_a_hang_ends_at_the_deadline_and_is_not_waited_for(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"0\.2 s"):
        run_in_child(lambda: os.open(fifo, os.O_RDONLY), deadline_s=0.2)
    assert time.monotonic() - started < 2
    # Killed, and reaped by a later call.
    assert wait_until(lambda: run_in_child(lambda: True, deadline_s=LIMIT_S) and not child._abandoned)


def test_a_child_that_blocks_signals_is_killed_too(tmp_path: Path) -> None:
    def stubborn() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        (tmp_path / "pid").write_text(str(os.getpid()))
        time.sleep(60)

    with pytest.raises(DeadlineExceeded):
        run_in_child(stubborn, deadline_s=0.3)
    pid = int((tmp_path / "pid").read_text())
    assert wait_until(lambda: run_in_child(lambda: True, deadline_s=LIMIT_S) and gone(pid))


@pytest.mark.parametrize(
    ("death", "words"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "signal 11"),
        (lambda: os._exit(3), "exit code 3"),
        (lambda: os._exit(0), "exit code 0"),
    ],
)
def test_a_crash_is_a_fault_and_says_how(death: Callable[[], None], words: str) -> None:
    with pytest.raises(StorageFault, match=words):
        run_in_child(death, deadline_s=LIMIT_S)


def test_our_errors_come_back_as_they_were() -> None:
    def fail() -> None:
        try:
            raise OSError(errno.ESTALE, "gone")
        except OSError as exc:
            raise OutOfSpace("what", context="where", hint="to do") from exc

    with pytest.raises(OutOfSpace) as caught:
        run_in_child(fail, deadline_s=LIMIT_S)
    assert (caught.value.message, caught.value.context, caught.value.hint) == ("what", "where", "to do")
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ESTALE


def test_an_error_without_a_cause_has_none() -> None:
    def fail() -> None:
        raise UsageError("what")

    with pytest.raises(UsageError) as caught:
        run_in_child(fail, deadline_s=LIMIT_S)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("function", [lambda: 1 / 0, lambda: sys.exit(0), lambda: {1, 2}])
def test_anything_else_is_a_bug_with_its_traceback(function: Callable[[], Any]) -> None:
    with pytest.raises(RuntimeError, match="Traceback") as caught:
        run_in_child(function, deadline_s=LIMIT_S)
    assert not isinstance(caught.value, CkptctlError)


def test_the_child_holds_none_of_our_descriptors(tmp_path: Path) -> None:
    # Not a lock either: a child that hangs in the kernel would keep it.
    with open(tmp_path / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        def seen() -> list[str]:
            links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
            return [os.readlink(link) for link in links if os.path.lexists(link)]  # the listing's own is gone

        found = run_in_child(seen, deadline_s=LIMIT_S)
    assert [name.partition(":")[0] for name in sorted(found)] == ["/dev/null"] * 3 + ["pipe"]


def test_it_works_where_the_parent_has_no_standard_streams(tmp_path: Path) -> None:
    code = (
        "import os, sys; from ckptctl.checks.child import run_in_child\n"
        "for fd in (0, 1, 2): os.close(fd)\n"
        "open(sys.argv[1], 'w').write(str(run_in_child(lambda: 7, deadline_s=10)))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "answer")], env=env)
    assert (tmp_path / "answer").read_text() == "7"


def test_handlers_of_the_parent_do_not_run_in_the_child() -> None:
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(os.getpid()))
    try:

        def hit() -> bool:
            os.kill(os.getpid(), signal.SIGUSR1)
            return bool(seen)

        assert run_in_child(hit, deadline_s=LIMIT_S) is False
        os.kill(os.getpid(), signal.SIGUSR1)
        assert seen == [os.getpid()]
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


def test_where_sigchld_is_ignored_the_answer_still_comes() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert run_in_child(lambda: 7, deadline_s=LIMIT_S) == 7
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_the_child_ends_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import os, sys, time; from ckptctl.checks.child import run_in_child\n"
        "def hang():\n    open(sys.argv[1] + '.part', 'w').write(str(os.getpid()))\n"
        "    os.rename(sys.argv[1] + '.part', sys.argv[1]); time.sleep(60)\n"
        "run_in_child(hang, deadline_s=60)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "pid")], env=env)
    assert wait_until((tmp_path / "pid").exists)
    pid = int((tmp_path / "pid").read_text())
    parent.kill()
    parent.wait()
    # Somebody else reaps it: a zombie is good enough.
    assert wait_until(lambda: gone(pid) or Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] in "ZX")
