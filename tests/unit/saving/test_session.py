"""What a training process is told, and how a rank finds out that something is wrong before it trains."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ckptctl.errors import NotShared, SettingsInvalid
from ckptctl.model.checkpoint import PROOF
from ckptctl.saving.posix import PosixEngine
from ckptctl.saving.session import Incarnation, SaveSettings, Session
from ckptctl.storage import journal
from tests.support.lineage import begin


@pytest.fixture
def told(tmp_path: Path) -> Incarnation:
    """What a rank of a second incarnation is told, which resumes at step 4."""
    begin(tmp_path / "run1").save(4)
    return begin(tmp_path / "run1", restart=1).leader.incarnation


def session(incarnation: Incarnation, placement: tuple[str, ...] = ("n1", "n2"), rank: int = 0) -> Session:
    """Return a session."""
    return Session(incarnation, rank=rank, placement=placement, engine=PosixEngine(), settings=SaveSettings())


def test_an_incarnation_goes_through_the_environment_unchanged(told: Incarnation) -> None:
    environment = told.environment()
    assert all(name.startswith("CKPTCTL_") for name in environment)
    assert Incarnation.from_environment({**environment, "HOME": "/"}) == told
    assert told.step == 4
    assert Path(told.path).name == "step-00000004.g0001"


def test_a_first_start_has_no_path_and_no_digest(tmp_path: Path) -> None:
    first = begin(tmp_path / "run1").leader.incarnation
    assert Incarnation.from_environment(first.environment()) == first
    assert (first.step, first.path, first.digest) == (0, "", "")


def test_without_variables_there_is_no_incarnation() -> None:
    assert Incarnation.from_environment({"PATH": "/bin"}) is None


@pytest.mark.parametrize("absent", list(Incarnation("/r", "1.0", "l", 1, "n", 0, "", "", 0).environment()))
def test_half_a_set_of_variables_is_refused_naming_what_is_absent(told: Incarnation, absent: str) -> None:
    environment = told.environment()
    del environment[absent]
    with pytest.raises(SettingsInvalid, match=absent) as caught:
        Incarnation.from_environment(environment)
    assert caught.value.exit_code == 60


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CKPTCTL_GENERATION", "three"),
        ("CKPTCTL_GENERATION", "0"),
        ("CKPTCTL_RESUME_STEP", "-1"),
        ("CKPTCTL_RESUME_STEP", "1.5"),
        ("CKPTCTL_RESUME_DIGEST", ""),
        ("CKPTCTL_RESUME_PATH", ""),
        ("CKPTCTL_ROOT", ""),
        ("CKPTCTL_NONCE", ""),
    ],
)
def test_a_wrong_variable_is_refused_by_name(told: Incarnation, variable: str, value: str) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        Incarnation.from_environment({**told.environment(), variable: value})
    assert variable in caught.value.message + caught.value.context


@pytest.mark.parametrize(("placement", "rank"), [((), 0), (("n1",), 1), (("n1",), -1)])
def test_a_world_that_makes_no_sense_is_refused(told: Incarnation, placement: tuple[str, ...], rank: int) -> None:
    with pytest.raises(SettingsInvalid, match="makes no sense"):
        session(told, placement, rank)


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", ".."])
def test_a_node_name_that_cannot_name_a_file_is_refused(told: Incarnation, name: str) -> None:
    with pytest.raises(SettingsInvalid, match="node name"):
        session(told, ("n1", name))


def test_a_rank_that_sees_the_root_as_run_did_goes_on(told: Incarnation) -> None:
    session(told).verify()


@pytest.mark.parametrize("other", ["lineage", "generation", "manifest", "nothing", "no commit"])
def test_a_rank_that_sees_another_root_is_refused_by_its_nodes_name(told: Incarnation, tmp_path: Path, other: str) -> None:
    changes: dict[str, object] = {
        "lineage": {"lineage": "f" * 32},
        "generation": {"nonce": "another"},
        "manifest": {"digest": "0" * 64},
        "nothing": {"root": str(tmp_path / "empty")},
        "no commit": {},
    }[other]  # type: ignore[assignment]
    if other == "no commit":
        (Path(told.path) / PROOF / "COMMIT").unlink()
    with pytest.raises(NotShared, match="node n2") as caught:
        session(dataclasses.replace(told, **changes), rank=1).verify()  # type: ignore[arg-type]
    assert caught.value.exit_code == 11
    assert "n2" in caught.value.hint


def test_leaders_follow_from_the_placement(told: Incarnation) -> None:
    placement = ("n1", "n1", "n2", "n2")
    sessions = [session(told, placement, rank) for rank in range(4)]
    assert [one.leads for one in sessions] == [True, False, False, False]
    assert [one.leads_node for one in sessions] == [True, False, True, False]
    assert sessions[3].nodes == {"n1": (0, 1), "n2": (2, 3)}


def test_that_a_run_must_never_restart_is_recorded_once(told: Incarnation) -> None:
    for rank in (0, 1):
        session(told, rank=rank).record_never_restart(8)
    (event,) = session(told).repository.journal.events(journal.NEVER)
    assert (event.generation, event.step) == (told.generation, 8)


def test_pruning_that_fails_does_not_fail_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begin(tmp_path / "run1", settings=SaveSettings(deadline_s=5, keep_last=2, keep_every=0))
    run.save(4)

    def refuse(**_: object) -> None:
        raise OSError(5, "EIO")

    monkeypatch.setattr(run.leader.repository, "prune", refuse)
    assert run.save(8).id.step == 8


def test_a_rank_that_reaches_the_same_files_through_another_mount_type_is_refused(told: Incarnation) -> None:
    kind, _, where = told.mount.partition(" ")
    assert kind
    assert where.endswith("/run1")
    session(told).verify()
    session(dataclasses.replace(told, mount="")).verify()
    with pytest.raises(NotShared, match="the same files through another mount"):
        session(dataclasses.replace(told, mount=f"lustre {where}")).verify()


def test_another_way_to_the_same_files_is_said_once_per_node(told: Incarnation, caplog: pytest.LogCaptureFixture) -> None:
    other = dataclasses.replace(told, mount=f"{told.mount.partition(' ')[0]} 10.0.0.9:/export/run1")
    for rank in (0, 1, 2):
        session(other, ("n1", "n1", "n2"), rank).verify()
    assert len([record for record in caplog.records if "the batch host as 10.0.0.9:/export/run1" in record.message]) == 2
