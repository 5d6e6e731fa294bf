"""FSDP2 over several processes: saved on four ranks, resumed on any number, and one rank's failure told to all."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ckptctl.actions import inspect
from ckptctl.model.verdict import Completeness
from tests.support.lineage import folders

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
DEADLINE_S = 120


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(what: str, world: int, folder: Path) -> list[dict[str, Any]]:
    """Run a world of workers and return what each rank saw."""
    base = {name: value for name, value in os.environ.items() if not name.startswith(("CKPTCTL_", "SLURM_"))}
    base |= {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    out = folder / f"{what}-{world}"
    workers = [
        subprocess.Popen(
            [sys.executable, str(HERE / "worker.py"), what, str(folder / "root"), str(out)],
            env={**base, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        for worker in workers:
            said, _ = worker.communicate(timeout=DEADLINE_S)
            assert worker.returncode == 0, said[-4000:]
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
                worker.communicate()
    return [torch.load(f"{out}.{rank}", weights_only=False) for rank in range(world)]


def same(left: Any, right: Any) -> bool:
    """Whether two nested states are the same, bit for bit."""
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right) and left.dtype == right.dtype
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def test_a_checkpoint_of_four_ranks_resumes_on_any_number_of_ranks(tmp_path: Path) -> None:
    saved = run("train", 4, tmp_path)[0]["saved"]
    for world in (2, 3, 1):
        (loaded, *_) = run("resume", world, tmp_path)
        assert loaded["step"] == 4
        assert same(loaded["loaded"], saved), f"on {world} ranks"
    moments = [entry for entry in saved["optim"]["state"].values() if entry["exp_avg"].abs().sum() > 0]
    assert moments, "the optimizer had something to lose"


def test_the_stock_reader_reads_it_where_ckptctl_is_not_importable(tmp_path: Path) -> None:
    saved = run("train", 4, tmp_path)[0]["saved"]
    folder = tmp_path / "root" / "step-00000004.g0001"
    done = subprocess.run(
        [sys.executable, str(HERE / "stock_reader.py"), str(folder), str(tmp_path / "whole.pt")],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    whole = torch.load(tmp_path / "whole.pt", weights_only=False)
    assert same(whole["model"], dict(saved["model"]))
    for name, entry in saved["optim"]["state"].items():
        assert same(whole["optim"]["state"][name], entry), name


def test_a_rank_that_cannot_write_fails_the_save_on_every_rank_and_is_named(tmp_path: Path) -> None:
    seen = run("fail", 4, tmp_path)
    assert {one["error"].split(":")[0] for one in seen} == {"SaveFailed"}
    assert len({one["error"] for one in seen}) == 1
    assert "node n1 failed: rank 2: OutOfSpace" in seen[0]["error"]
    root = tmp_path / "root"
    assert folders(root) == ["step-00000004.g0001"]
    assert inspect.verify(str(root / "step-00000004.g0001"), deep=True).verdict is Completeness.COMPLETE


def test_ranks_that_save_different_steps_are_told_so_on_every_rank(tmp_path: Path) -> None:
    seen = run("differ", 2, tmp_path)
    assert all("the ranks save different steps (6 to 7)" in one["error"] for one in seen)


def test_the_dcp_writer_and_reader_work_in_a_world_and_on_another(tmp_path: Path) -> None:
    saved = run("dcp", 4, tmp_path)[0]["saved"]
    assert folders(tmp_path / "root") == ["step-00000001.g0001"]
    (loaded, *_) = run("dcp-load", 2, tmp_path)
    assert same(loaded["loaded"]["model"], saved["model"])
