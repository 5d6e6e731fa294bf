"""A folder that is called a cache and holds training state, or is written after it was filled, is told so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckptctl.actions.check import check
from ckptctl.checks.cache import no_cache
from ckptctl.policy.site import Artifact


def messages(folder: Path) -> list[str]:
    """Look at a folder."""
    return [finding.message for finding in no_cache(str(folder), deadline_s=10)]


@pytest.mark.parametrize(
    "name",
    [
        "step-00000004.g0001/__0_0.distcp",
        "x/.metadata",
        "global_step10/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "latest_checkpointed_iteration.txt",
        "checkpoint-10/trainer_state.json",
        "last.ckpt",
    ],
)
def test_training_state_is_found_by_its_names(tmp_path: Path, name: str) -> None:
    (tmp_path / "shard-000.tar").touch()
    assert messages(tmp_path) == []
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    (found,) = messages(tmp_path)
    assert name in found


def test_the_look_is_bounded(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c" / "d"
    deep.mkdir(parents=True)
    (deep / "last.ckpt").touch()
    assert messages(tmp_path) == []


def test_of_many_a_few_are_named(tmp_path: Path) -> None:
    for rank in range(9):
        (tmp_path / f"__{rank}_0.distcp").touch()
    assert messages(tmp_path)[0].endswith("and 6 more")


def test_what_is_not_there_is_no_finding(tmp_path: Path) -> None:
    assert messages(tmp_path / "none") == []


def test_check_tells_it_for_caches_only(tmp_path: Path) -> None:
    (tmp_path / "last.ckpt").touch()
    for artifact in Artifact:
        names = [finding.name for finding in check(str(tmp_path), artifact=artifact).report.findings]
        assert ("state-in-cache" in names) is not artifact.durable


@pytest.mark.parametrize("marker", ["_SUCCESS", ".complete", "dataset_info.json", "index.json"])
def test_what_is_written_after_the_cache_was_filled_is_named(tmp_path: Path, marker: str) -> None:
    for name in ("shard-0.tar", marker, "late/out.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    now = (tmp_path / marker).stat().st_mtime
    os.utime(tmp_path / "shard-0.tar", (now - 900, now - 900))
    assert messages(tmp_path) == []
    os.utime(tmp_path / "late/out.bin", (now + 900, now + 900))
    (found,) = messages(tmp_path)
    assert marker in found
    assert "late/out.bin" in found


def test_without_a_marker_nobody_knows_when_it_was_filled(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (number * 10_000, number * 10_000))
    assert messages(tmp_path) == []
