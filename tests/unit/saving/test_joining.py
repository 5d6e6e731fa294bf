"""How a training process learns its incarnation: from the environment, from the root, or by starting one itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckptctl.errors import RootInUse, SettingsInvalid
from ckptctl.model.job import Node
from ckptctl.saving import joining
from ckptctl.scheduler.slurm import SlurmScheduler
from ckptctl.storage.repository import Repository
from tests.support.lineage import begin

HERE = Node("n1", "boot")


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> SlurmScheduler:
    """Inside Slurm's job 17, first restart, in a container: no `scontrol`, only the environment."""
    for name in list(os.environ):
        if name.startswith(("CKPTCTL_", "SLURM_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", "/nowhere")
    for name, value in {"JOB_ID": "17", "RESTART_COUNT": "1", "JOB_NODELIST": "n[1-2]", "JOB_USER": "ada"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    return SlurmScheduler()


@pytest.fixture
def alone(slurm: SlurmScheduler, monkeypatch: pytest.MonkeyPatch) -> SlurmScheduler:
    """Outside any job."""
    for name in list(os.environ):
        if name.startswith("SLURM_"):
            monkeypatch.delenv(name)
    return slurm


def test_the_environment_of_this_job_is_believed(tmp_path: Path, slurm: SlurmScheduler) -> None:
    told = begin(tmp_path / "run1", job="17", restart=1).leader.incarnation
    assert joining.told(told.environment(), None, slurm) == told
    assert joining.told(told.environment(), str(tmp_path / "run1"), slurm) == told


@pytest.mark.parametrize(("job", "restart"), [("18", 1), ("17", 0)])
def test_another_jobs_or_incarnations_environment_is_refused(
    tmp_path: Path, slurm: SlurmScheduler, job: str, restart: int
) -> None:
    told = begin(tmp_path / "run1", job=job, restart=restart).leader.incarnation
    with pytest.raises(SettingsInvalid, match=r"and this is job 17\.1"):
        joining.told(told.environment(), None, slurm)


def test_where_the_environment_was_not_passed_on_the_root_tells(tmp_path: Path, slurm: SlurmScheduler) -> None:
    begin(tmp_path / "run1", job="17").save(4)
    told = begin(tmp_path / "run1", job="17", restart=1).leader.incarnation
    assert joining.told({}, str(tmp_path / "run1"), slurm) == told
    assert told.step == 4


@pytest.mark.parametrize(("job", "restart"), [("18", 1), ("17", 0), ("17", 2)])
def test_a_root_whose_newest_generation_is_anothers_tells_nothing(
    tmp_path: Path, slurm: SlurmScheduler, job: str, restart: int
) -> None:
    begin(tmp_path / "run1", job=job, restart=restart)
    assert joining.told({}, str(tmp_path / "run1"), slurm) is None


def test_a_start_without_run_takes_a_generation_and_the_last_complete_checkpoint(tmp_path: Path, alone: SlurmScheduler) -> None:
    root = str(tmp_path / "run1")
    assert joining.begin_alone(root, alone, HERE).step == 0
    begin(root, scheduler="none").save(4)
    found = joining.begin_alone(root, alone, HERE)
    assert (found.generation, found.step) == (3, 4)


def test_a_live_process_on_this_machine_that_holds_the_root_is_not_fenced(
    tmp_path: Path, alone: SlurmScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = str(tmp_path / "run1")
    parent = os.getppid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: parent)
        joining.begin_alone(root, alone, HERE)
    with pytest.raises(RootInUse):
        joining.begin_alone(root, alone, HERE)
    assert Repository(root).newest_generation() == 1


def test_an_earlier_incarnation_of_the_same_job_is_no_obstacle(tmp_path: Path, slurm: SlurmScheduler) -> None:
    root = str(tmp_path / "run1")
    assert joining.begin_alone(root, slurm, HERE).job == "17.1"
    assert joining.begin_alone(root, slurm, HERE).generation == 2
