"""SIGKILL of any rank, or of the committer, before every durable operation of a save and of a start.

The list of operations is recorded from a run without a kill, so that a new operation is covered the day it is written.
`test_traced.py` holds the list against what the kernel saw.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptctl.actions import inspect
from ckptctl.errors import SaveFailed
from ckptctl.model.checkpoint import PROOF
from ckptctl.model.verdict import Completeness
from ckptctl.saving.session import SaveSettings
from ckptctl.storage import files
from ckptctl.storage.repository import Repository
from ckptctl.storage.start import choose
from tests.support.lineage import Run, begin
from tests.support.processes import wait_for

PLACEMENT = ("n1", "n1", "n2")  # rank 0 leads and commits, rank 1 hands it its receipt, rank 2 leads the other node
SAVE = SaveSettings(deadline_s=1.0, keep_last=2, keep_every=0)
DEADLINE_S = 20.0


class Recorder:
    """Writes down each durable operation before it happens, and ends this process before the one at `kill_at`."""

    def __init__(self, log: Path, kill_at: int | None) -> None:
        self.log, self.kill_at, self.count = log, kill_at, 0

    def __call__(self, operation: str, path: str) -> None:
        if self.count == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1
        with open(self.log, "a") as file:
            file.write(json.dumps([operation, os.path.basename(path)]) + "\n")


def forked(action: Callable[[], None], recorder: Recorder) -> int:
    """Run `action` in a child that is observed; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        files.observe(recorder)
        action()
        os._exit(0)
    except SaveFailed:
        os._exit(3)
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        os._exit(1)


def ended(pid: int) -> int:
    """Wait for a child and return its exit code, negative for a signal; end it when it takes too long."""

    def probe() -> tuple[int] | None:
        found, status = os.waitpid(pid, os.WNOHANG)
        return (os.waitstatus_to_exitcode(status),) if found else None

    try:
        return wait_for(f"the end of process {pid}", probe, DEADLINE_S, poll_s=0.002)[0]
    except TimeoutError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def save_by_processes(run: Run, step: int, folder: Path, *, victim: int = -1, kill_at: int | None = None) -> list[int]:
    """Save with one process per rank; the `victim` is killed before its operation number `kill_at`. Returns exit codes."""
    reader, writer = os.pipe()

    def rank_0() -> None:
        os.close(writer)
        run.stage(step)
        run.write(step, 0)
        with open(reader, "rb") as pipe:
            data = pipe.read()
        if data:
            run.receipts[step, 1] = pickle.loads(data)
        run.leave_receipt(step, "n1", error="" if data else "rank 1 is gone")
        run.commit(step)

    def wait_for_stage() -> None:
        staging = run.leader.staging(step)
        wait_for("the staged step", lambda: run.leader.repository.plan(staging), 1.0, poll_s=0.002)

    def rank_1() -> None:
        os.close(reader)
        wait_for_stage()
        run.write(step, 1)
        with open(writer, "wb") as pipe:
            pipe.write(pickle.dumps(run.receipts[step, 1]))

    def rank_2() -> None:
        os.close(reader)
        os.close(writer)
        wait_for_stage()
        run.write(step, 2)
        run.leave_receipt(step, "n2")

    pids = [
        forked(action, Recorder(folder / f"operations-{rank}", kill_at if rank == victim else None))
        for rank, action in enumerate((rank_0, rank_1, rank_2))
    ]
    os.close(reader)
    os.close(writer)
    return [ended(pid) for pid in pids]


def operations(folder: Path, rank: int) -> list[tuple[str, str]]:
    """Return what a rank's process announced."""
    path = folder / f"operations-{rank}"
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def check_nothing_torn(root: Path) -> int:
    """Check that whatever counts as complete is whole to the last byte; returns the step that a start would take."""
    for row in inspect.list_root(str(root)):
        if row.verdict is Completeness.COMPLETE:
            assert inspect.verify(str(root / row.folder), deep=True).verdict is Completeness.COMPLETE, row
    chosen = choose(Repository(root)).chosen
    assert chosen is not None
    return chosen.id.step


def check_goes_on(root: Path, at_least: int) -> int:
    """Start again, check that nothing complete was lost, and that a next save works. Returns the step it resumed at."""
    run = begin(root, placement=PLACEMENT, settings=SAVE)
    assert run.started.point.step >= at_least
    assert check_nothing_torn(root) == run.started.point.step
    assert run.save(12).id.step == 12
    assert check_nothing_torn(root) == 12
    return run.started.point.step


@pytest.fixture
def prepared(tmp_path: Path) -> Callable[[str], tuple[Path, Path, Run]]:
    """Make a root with steps 2 and 4 complete, and a running incarnation."""

    def make(name: str) -> tuple[Path, Path, Run]:
        folder = tmp_path / name
        folder.mkdir()
        run = begin(folder / "root", placement=PLACEMENT, settings=SAVE)
        run.save(2)
        run.save(4)
        return folder, folder / "root", run

    return make


Prepare = Callable[[str], tuple[Path, Path, Run]]


def test_a_save_without_a_kill_is_complete(prepared: Prepare) -> None:
    folder, root, run = prepared("whole")
    assert save_by_processes(run, 8, folder) == [0, 0, 0]
    assert check_nothing_torn(root) == 8
    kinds = {kind for rank in range(3) for kind, _ in operations(folder, rank)}
    assert kinds == {"mkdir", "create", "link", "rename", "fsync"}


@pytest.mark.parametrize("victim", [0, 1, 2], ids=["leader and committer", "rank of its node", "leader of the other node"])
def test_a_kill_before_any_operation_of_a_save_never_shows_a_torn_checkpoint(prepared: Prepare, victim: int) -> None:
    folder, _, run = prepared("recording")
    save_by_processes(run, 8, folder)
    plan = operations(folder, victim)
    committed = ("rename", "step-00000008.g0001")
    assert len(plan) >= 2
    for kill_at, operation in enumerate(plan):
        folder, root, run = prepared(f"kill-{kill_at}")
        codes = save_by_processes(run, 8, folder, victim=victim, kill_at=kill_at)
        where = f"killed before operation {kill_at}, {operation}"
        assert codes[victim] == -signal.SIGKILL, where
        step = check_nothing_torn(root)
        if victim == 0:
            assert (step == 8) == (committed in plan[:kill_at]), where
        elif step == 8:  # its receipt was already there as a whole
            assert operations(folder, 0)[-1][0] in ("fsync", "rename", "link", "mkdir"), where
            assert codes[0] == 0, where
        else:
            assert codes[0] == 3, f"{where}: the leader must say that the save failed"
        assert check_goes_on(root, at_least=step) in (4, 8), where
        shutil.rmtree(folder)


@pytest.mark.parametrize("left_behind", ["nothing", "torn save", "whole save"])
def test_a_kill_before_any_operation_of_a_start_loses_nothing(prepared: Prepare, left_behind: str) -> None:
    expected = 8 if left_behind == "whole save" else 4

    def leave(name: str) -> tuple[Path, Path]:
        folder, root, run = prepared(name)
        if left_behind != "nothing":
            run.until_receipts(8, nodes=None if left_behind == "whole save" else ["n1"])
        return folder, root

    folder, root = leave("recording")
    pid = forked(lambda: begin(root, placement=PLACEMENT, settings=SAVE) and None, Recorder(folder / "operations-0", None))
    assert ended(pid) == 0
    plan = operations(folder, 0)
    assert len(plan) > 10
    for kill_at, operation in enumerate(plan):
        folder, root = leave(f"kill-{kill_at}")
        recorder = Recorder(folder / "operations-0", kill_at)
        code = ended(forked(lambda root=root: begin(root, placement=PLACEMENT, settings=SAVE) and None, recorder))
        where = f"killed before operation {kill_at}, {operation}"
        assert code == -signal.SIGKILL, where
        assert check_nothing_torn(root) in (4, expected), where
        assert check_goes_on(root, at_least=4) == expected, where
        shutil.rmtree(folder)


def test_a_kill_before_any_operation_of_the_making_of_a_root_leaves_it_usable(tmp_path: Path) -> None:
    def make(root: Path) -> None:
        Repository(root).create()

    assert ended(forked(lambda: make(tmp_path / "first"), Recorder(tmp_path / "operations-0", None))) == 0
    for kill_at in range(len(operations(tmp_path, 0))):
        root = tmp_path / f"kill-{kill_at}"
        assert ended(forked(lambda root=root: make(root), Recorder(tmp_path / "ignored", kill_at))) == -signal.SIGKILL
        assert begin(root).started.point.step == 0
        assert (root / PROOF / "lineage.json").exists()
