"""The start of an incarnation: what it takes, what it refuses, what it sets aside, and that it loses nothing."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from ckptctl.actions import inspect
from ckptctl.errors import Fenced, NoCheckpoint, RootInUse, StorageFault
from ckptctl.model.checkpoint import PROOF
from ckptctl.model.manifest import Generation
from ckptctl.model.verdict import Completeness
from ckptctl.storage import files, journal
from ckptctl.storage.repository import Repository
from ckptctl.storage.start import StartOptions, choose
from tests.support.lineage import begin, folders, quarantine


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A path that does not exist yet."""
    return tmp_path / "run1"


def test_a_first_start_is_at_step_0(root: Path) -> None:
    point = begin(root).started.point
    assert (point.generation, point.step, point.folder, point.manifest_digest) == (1, 0, "", "")


def test_a_start_takes_the_newest_complete_checkpoint(root: Path) -> None:
    run = begin(root)
    run.save(4)
    run.save(8)
    run.until_receipts(12, nodes=["n1"])
    point = begin(root, restart=1).started.point
    assert (point.generation, point.step, point.folder) == (2, 8, "step-00000008.g0001")
    assert point.limits == {"1": 8}
    assert [name.partition(".by")[0] for name in quarantine(root)] == ["staging-g0001"]


def test_a_crash_in_the_very_first_save_starts_at_0_and_says_what_was_set_aside(root: Path) -> None:
    begin(root).until_receipts(4, nodes=["n1"])
    started = begin(root).started
    assert started.point.step == 0
    assert len(started.point.set_aside) == 1
    assert quarantine(root) == list(started.point.set_aside)


def test_a_root_that_another_live_job_holds_is_refused_by_name(root: Path) -> None:
    begin(root, job="17", user="grace").save(4)
    with pytest.raises(RootInUse, match="job 17 of user grace") as caught:
        begin(root, job="18", alive=lambda holder: True)
    assert caught.value.exit_code == 24
    assert "--take-over" in caught.value.hint
    assert Repository(root).newest_generation() == 1, "the healthy run is not fenced by a refused one"


def test_take_over_fences_the_other_job(root: Path) -> None:
    first = begin(root, job="17")
    begin(root, job="18", alive=lambda holder: True, options=StartOptions(take_over=True, settle_s=0))
    with pytest.raises(Fenced, match="generation 1 is fenced: generation 2"):
        first.stage(4)


def test_a_holder_nobody_knows_counts_as_alive_until_it_has_been_silent_long_enough(root: Path) -> None:
    begin(root, job="17")

    def unknown(holder: Generation) -> bool | None:
        return None

    with pytest.raises(RootInUse, match="sign of life"):
        begin(root, job="18", alive=unknown, options=StartOptions(silent_s=900, settle_s=0))
    assert begin(root, job="18", alive=unknown, options=StartOptions(silent_s=0.0, settle_s=0)).generation == 2


def test_a_holder_nobody_knows_that_recorded_its_own_end_is_gone(root: Path) -> None:
    begin(root, job="17")
    Repository(root).journal.write(journal.DECISION, 1, 0, action="stop", cause="finished")
    assert begin(root, job="18", alive=lambda holder: None).generation == 2
    with pytest.raises(RootInUse):
        begin(root, job="19", alive=lambda holder: None)


def test_a_recorded_step_that_is_not_to_be_found_is_a_storage_fault(root: Path) -> None:
    run = begin(root)
    for step in (4, 8):
        run.save(step)
    shutil.rmtree(root / "step-00000008.g0001")
    with pytest.raises(StorageFault, match="step 8 was committed but is not to be found"):
        begin(root)
    point = begin(root, options=StartOptions(allow_older=True, settle_s=0)).started.point
    assert point.step == 4


def test_a_recorded_step_that_appears_late_is_waited_for(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begin(root)
    for step in (4, 8):
        run.save(step)
    os.rename(root / "step-00000008.g0001", root / "elsewhere")
    monkeypatch.setattr(
        "ckptctl.storage.start.time.sleep", lambda _: os.rename(root / "elsewhere", root / "step-00000008.g0001")
    )
    assert begin(root, options=StartOptions(settle_s=5)).started.point.step == 8


def test_a_root_with_no_complete_checkpoint_left_is_never_started_from_scratch(root: Path) -> None:
    run = begin(root)
    run.save(4)
    (root / "step-00000004.g0001" / PROOF / "COMMIT").unlink()
    with pytest.raises(NoCheckpoint, match="none of them is complete"):
        begin(root)
    with pytest.raises(NoCheckpoint):
        inspect.select(str(root))
    assert (root / "step-00000004.g0001").exists(), "nothing is moved by a start that refuses"


def test_a_damaged_newest_checkpoint_is_skipped_with_its_reason_and_kept_in_quarantine(root: Path) -> None:
    run = begin(root)
    for step in (4, 8):
        run.save(step)
    os.truncate(root / "step-00000008.g0001" / "__1_0.distcp", 10)
    point = begin(root).started.point
    assert point.step == 4
    assert [(skip.step, "__1_0.distcp" in skip.reason) for skip in point.skipped] == [(8, True)]
    assert [name.rpartition(".")[0] for name in quarantine(root)] == ["fenced-step-00000008.g0001"]
    assert (root / PROOF / "quarantine" / quarantine(root)[0] / "__1_0.distcp").exists()


def test_a_folder_of_another_lineage_is_never_taken(root: Path, tmp_path: Path) -> None:
    other = begin(tmp_path / "run2")
    other.save(99)
    run = begin(root)
    run.save(4)
    shutil.copytree(tmp_path / "run2" / "step-00000099.g0001", root / "step-00000099.g0001")
    point = begin(root).started.point
    assert point.step == 4
    assert "another lineage" in point.skipped[0].reason
    assert (root / "step-00000099.g0001").exists(), "it is somebody's: it is not moved"


def test_a_save_with_all_receipts_is_recovered_under_the_new_generation(root: Path) -> None:
    run = begin(root)
    run.save(4)
    run.until_receipts(8)
    started = begin(root).started
    assert started.point.step == 8
    assert started.point.recovered == ("step-00000008.g0002",)
    (found, *_) = Repository(root).complete()
    assert Repository(root).check_sizes(found).recovered_from == 1
    assert inspect.verify(str(root / "step-00000008.g0002"), deep=True).verdict is Completeness.COMPLETE


def test_a_save_that_has_its_commit_but_was_not_renamed_is_recovered(root: Path) -> None:
    run = begin(root)
    run.save(4)
    run.until_receipts(8)

    def die(operation: str, path: str) -> None:
        if operation == "rename" and path.endswith("step-00000008.g0001"):
            raise KeyboardInterrupt

    files.observe(die)
    with pytest.raises(KeyboardInterrupt):
        run.commit(8)
    files.observe(None)
    assert begin(root).started.point.folder == "step-00000008.g0002"


@pytest.mark.parametrize("harm", ["receipt error", "short file", "no metadata", "foreign plan"])
def test_a_save_that_is_not_whole_is_not_recovered(root: Path, harm: str) -> None:
    run = begin(root)
    run.save(4)
    staged = Path(run.leader.staging(8))
    if harm == "receipt error":
        run.until_receipts(8, nodes=["n1"])
        run.leave_receipt(8, "n2", error="EIO")
    else:
        run.until_receipts(8)
    if harm == "short file":
        os.truncate(staged / "__0_0.distcp", 7)
    elif harm == "no metadata":
        (staged / PROOF / "dcp-metadata").unlink()
    elif harm == "foreign plan":
        plan = staged / PROOF / "plan.json"
        plan.write_text(json.dumps({**json.loads(plan.read_text()), "lineage": "f" * 32}))
    started = begin(root).started
    assert started.point.step == 4
    assert started.point.recovered == ()
    assert folders(root) == ["step-00000004.g0001"]
    assert quarantine(root)


def zombie(root: Path, step: int) -> str:
    """Let generation 1 commit `step` behind everybody's back, as a process does that was stopped just before its rename."""
    source = root / "step-00000004.g0001"
    target = root / f"step-{step:08d}.g0001"
    shutil.copytree(source, target)
    path = target / PROOF / "COMMIT"
    path.write_text(json.dumps({**json.loads(path.read_text()), "step": step}))
    return target.name


def test_a_zombies_checkpoint_is_never_chosen_never_complete_and_moves_no_other(root: Path) -> None:
    begin(root).save(4)
    new = begin(root)
    new.save(8)
    late = zombie(root, 8)
    beyond = zombie(root, 100)
    rows = {row.folder: row for row in inspect.list_root(str(root))}
    assert rows[late].verdict is Completeness.SUSPECT
    assert rows[beyond].verdict is Completeness.SUSPECT
    assert "fenced" in rows[beyond].reason
    assert rows["step-00000008.g0002"].verdict is Completeness.COMPLETE
    assert inspect.select(str(root)).folder == "step-00000008.g0002"
    third = begin(root).started
    assert third.point.folder == "step-00000008.g0002"
    assert folders(root) == ["step-00000004.g0001", "step-00000008.g0002"]
    assert {name[: len("fenced-") + len(late)] for name in quarantine(root) if name.startswith("fenced-")} == {
        f"fenced-{late}",
        f"fenced-{beyond}",
    }


def test_the_fence_is_as_durable_as_the_choice_and_holds_over_many_generations(root: Path) -> None:
    begin(root).save(4)
    for _ in range(5):
        begin(root)
    zombie(root, 6)
    assert choose(Repository(root)).chosen is not None
    assert inspect.select(str(root)).step == 4


def test_a_start_that_dies_before_its_resume_point_leaves_everything_for_the_next(root: Path) -> None:
    run = begin(root)
    run.save(4)
    run.until_receipts(8)

    def die(operation: str, path: str) -> None:
        if operation == "link" and path.endswith(".resume.json"):
            raise KeyboardInterrupt

    files.observe(die)
    with pytest.raises(KeyboardInterrupt):
        begin(root)
    files.observe(None)
    started = begin(root).started
    assert (started.point.generation, started.point.step) == (3, 8)


def test_of_two_starts_at_the_same_time_only_the_newer_goes_on(root: Path) -> None:
    begin(root).save(4)
    newer = []

    def overtake(operation: str, path: str) -> None:
        if (operation == "link" and path.endswith("0002.resume.json")) or (operation == "create" and "0002.resume" in path):
            files.observe(None)
            newer.append(begin(root))

    files.observe(overtake)
    try:
        older = begin(root)
    except Fenced:
        older = None
    finally:
        files.observe(None)
    assert newer[0].generation == 3
    if older is not None:  # overtaken after its last check: every save of it is refused
        with pytest.raises(Fenced):
            older.stage(8)
    newer[0].save(8)
    assert inspect.select(str(root)).folder == "step-00000008.g0003"


def test_the_commit_event_that_a_crash_swallowed_is_written_by_the_next_start(root: Path) -> None:
    run = begin(root)
    run.save(4)
    book = Repository(root).journal
    for event in book.events(journal.COMMIT):
        os.unlink(event.path)
    begin(root)
    (event,) = book.events(journal.COMMIT)
    assert (event.step, event.generation) == (4, 1)


def test_incarnations_are_told_from_generations_and_journal(root: Path) -> None:
    begin(root, job="5").save(4)
    begin(root, job="5", restart=1).save(8)
    rows = inspect.incarnations(str(root))
    assert [(row.generation, row.restart, row.resumed, row.last_complete) for row in rows] == [(1, 0, 0, 4), (2, 1, 4, 8)]
