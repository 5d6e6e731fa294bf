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
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

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
                command = [sys.executable, str(HERE / "failing_worker.py"), what, str(folder / "root"), str(out)]
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the checkpoint root of this module's worlds."""
    return tmp_path_factory.mktemp("worlds")


@pytest.fixture(scope="module")
def lost(folder: Path) -> list[dict[str, Any]]:
    """What the ranks saw of a world whose ranks failed one by one, and whose last rank then died."""
    return run("lose", 2, folder, codes={1: 9})


@pytest.fixture(scope="module")
def resumed(lost: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """What the ranks of a new world of the same size saw when they loaded."""
    return run("resume", 2, folder)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_cannot_write_is_named_on_every_rank_by_both_ways_to_save(lost: list[dict[str, Any]], failing: int) -> None:
    for one in lost:
        assert one[f"save {failing}"].startswith("SaveFailed: ")
        for way in ("save", "dcp"):
            assert f"node n{failing} failed: rank {failing}: OutOfSpace: cannot write the shard" in one[f"{way} {failing}"], way
        assert one["folders"] == ["step-00000001.g0001"]


def test_after_failed_saves_only_whole_checkpoints_are_there(lost: list[dict[str, Any]], folder: Path) -> None:
    assert folders(folder / "root") == ["step-00000001.g0001", "step-00000010.g0001"]
    for name in folders(folder / "root"):
        assert inspect.verify(str(folder / "root" / name), deep=True).verdict is Completeness.COMPLETE


@pytest.mark.parametrize(("saved", "step"), [("first", 1), ("second", 10)], ids=["dcp writer", "save"])
def test_parameters_and_moments_of_both_ways_to_save_are_read_whole(
    lost: list[dict[str, Any]], folder: Path, tmp_path: Path, saved: str, step: int
) -> None:
    dcp_to_torch_save(str(folder / "root" / f"step-{step:08d}.g0001"), str(tmp_path / "whole.pt"))
    found = torch.load(tmp_path / "whole.pt", weights_only=False)
    assert same(found["model"], dict(lost[0][saved]["model"]))
    assert same(found["optim"]["state"], dict(lost[0][saved]["optim"]["state"]))


def test_a_rank_that_dies_in_its_write_ends_the_save_of_the_others_at_once(lost: list[dict[str, Any]]) -> None:
    assert lost[0]["lost"]
    assert lost[0]["lost after"] < 30, "a lost rank is learned from its connection, not from a deadline"


def test_a_rank_that_dies_in_its_write_makes_save_raise_save_failed_on_the_others(lost: list[dict[str, Any]]) -> None:
    assert lost[0]["lost"].startswith("SaveFailed: "), lost[0]["lost"]
    assert "a rank was lost" in lost[0]["lost"]


def test_each_rank_gets_its_own_random_numbers_back(lost: list[dict[str, Any]], resumed: list[dict[str, Any]]) -> None:
    assert [one["step"] for one in resumed] == [10, 10]
    assert [one["draws"] for one in resumed] == [one["draws"] for one in lost]
    assert resumed[0]["draws"] != resumed[1]["draws"]
    assert same(resumed[0]["loaded"], lost[0]["second"])


def test_a_value_with_a_name_per_rank_comes_back_when_the_others_may_be_unloaded(resumed: list[dict[str, Any]]) -> None:
    assert [one["allowed"] for one in resumed] == [(0, "same"), (11, "same")]


def test_a_value_with_a_name_per_rank_comes_back(resumed: list[dict[str, Any]]) -> None:
    assert [one["error"] for one in resumed] == ["", ""]
    assert [one["mine"] for one in resumed] == [0, 11]
