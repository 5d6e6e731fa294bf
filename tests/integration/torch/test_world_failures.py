"""Worlds whose ranks fail, die or differ: every survivor is told who it was, and the last checkpoint stays whole."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
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


def run(what: str, world: int, folder: Path, codes: dict[int, int] | None = None) -> list[dict[str, Any]]:
    """Run a world of workers, one deadline for all, and return what each rank saw. `codes` are exit codes other than 0."""
    base = {name: value for name, value in os.environ.items() if not name.startswith(("CKPTCTL_", "SLURM_"))}
    base |= {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    out = folder / f"{what}-{world}"
    end_s = time.monotonic() + DEADLINE_S
    workers: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(world):
            with open(f"{out}.{rank}.log", "wb") as log:
                command = [sys.executable, str(HERE / "pair_worker.py"), what, str(folder / "root"), str(out)]
                environment = {**base, "RANK": str(rank)}
                workers.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
        for rank, worker in enumerate(workers):
            code = worker.wait(timeout=max(1.0, end_s - time.monotonic()))
            assert code == (codes or {}).get(rank, 0), Path(f"{out}.{rank}.log").read_text()[-4000:]
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait(10)
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


def test_either_way_to_save_names_the_failing_rank_on_every_rank_and_goes_on_afterwards(tmp_path: Path) -> None:
    seen = run("pair", 2, tmp_path)
    for failing in (0, 1):
        for one in seen:
            assert one[f"save {failing}"].startswith("SaveFailed: "), one[f"save {failing}"]
            for way in ("save", "dcp"):
                assert f"rank {failing}: OutOfSpace: cannot write the shard" in one[f"{way} {failing}"], (way, failing)
    assert all(one["folders"] == ["step-00000001.g0001"] for one in seen)
    root = tmp_path / "root"
    assert folders(root) == ["step-00000001.g0001", "step-00000009.g0001"]
    for name in folders(root):
        assert inspect.verify(str(root / name), deep=True).verdict is Completeness.COMPLETE
    whole = tmp_path / "whole.pt"
    stock = [sys.executable, str(HERE / "stock_reader.py"), str(root / "step-00000001.g0001"), str(whole)]
    done = subprocess.run(stock, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr[-3000:]
    found = torch.load(whole, weights_only=False)
    assert same(found["model"], dict(seen[0]["saved"]["model"]))
    for name, entry in seen[0]["saved"]["optim"]["state"].items():
        assert same(found["optim"]["state"][name], entry), name
    (loaded, *_) = run("pair-load", 1, tmp_path)
    assert same(loaded["loaded"], seen[0]["last"])


@pytest.fixture(scope="module")
def bereaved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]], float]:
    """A world of two nodes whose rank 1 died in the write of step 2: its folder, what was seen, the seconds it took."""
    folder = tmp_path_factory.mktemp("bereaved")
    begun = time.monotonic()
    seen = run("alone", 2, folder, codes={1: 9})
    return folder, seen, time.monotonic() - begun


def test_a_rank_that_dies_in_its_write_ends_the_save_at_once_and_the_last_checkpoint_stays(bereaved: Any) -> None:
    folder, seen, took_s = bereaved
    assert seen[0]["error"]
    assert took_s < 60, "a lost rank is learned from its connection, not from a deadline"
    assert folders(folder / "root") == ["step-00000001.g0001"]
    assert inspect.verify(str(folder / "root" / "step-00000001.g0001"), deep=True).verdict is Completeness.COMPLETE


def test_a_rank_that_dies_in_its_write_makes_save_raise_save_failed_on_the_others(bereaved: Any) -> None:
    _, seen, _ = bereaved
    assert seen[0]["error"].startswith("SaveFailed: "), seen[0]["error"]
    assert "a rank was lost" in seen[0]["error"]


@pytest.fixture(scope="module")
def resumed(bereaved: Any) -> list[dict[str, Any]]:
    """What the ranks of a new world of the same size saw when they loaded step 1."""
    return run("alone-load", 2, bereaved[0])


def test_each_rank_gets_its_own_random_numbers_back(bereaved: Any, resumed: list[dict[str, Any]]) -> None:
    assert [one["step"] for one in resumed] == [1, 1]
    assert [one["draws"] for one in resumed] == [one["expected"] for one in bereaved[1]]
    assert resumed[0]["draws"] != resumed[1]["draws"]


def test_a_value_with_a_name_per_rank_comes_back_when_the_others_may_be_unloaded(resumed: list[dict[str, Any]]) -> None:
    assert [one["allowed"] for one in resumed] == [(0, "same"), (11, "same")]


def test_a_value_with_a_name_per_rank_comes_back(resumed: list[dict[str, Any]]) -> None:
    assert [one["error"] for one in resumed] == ["", ""]
    assert [one["mine"] for one in resumed] == [0, 11]
