"""The repository: one way to become a checkpoint, and everything that is not one is told from it."""

from __future__ import annotations

import errno
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ckptctl.errors import DamagedCheckpoint, Fenced, ManifestTooNew, SaveFailed, StepTaken, StorageFault
from ckptctl.model import codec
from ckptctl.model.checkpoint import PROOF, CheckpointId
from ckptctl.model.manifest import Lineage
from ckptctl.saving.posix import digest_file
from ckptctl.saving.session import SaveSettings
from ckptctl.storage import files
from ckptctl.storage.contents import verify_bytes
from ckptctl.storage.repository import Committed, Repository, Unbelieved
from tests.support import lineage
from tests.support.lineage import begin, folders, quarantine


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A path that does not exist yet."""
    return tmp_path / "run1"


def marker(root: Path, checkpoint: str) -> Path:
    """Return the path of a checkpoint's COMMIT."""
    return root / checkpoint / PROOF / "COMMIT"


def test_of_many_creators_of_a_root_all_get_the_same_lineage(root: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: Repository(root).create().id, range(24)))
    assert len(found) == 1
    assert Repository(root).create().id in found


@pytest.mark.parametrize("place", ["root", "parent"])
def test_a_file_where_the_root_should_be_is_a_storage_fault(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageFault, match="Not a directory"):
        Repository(tmp_path / "file" if place == "root" else tmp_path / "file" / "run1").create()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_an_unwritable_root_is_a_storage_fault_with_advice(root: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(path: str, *_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(StorageFault) as caught:
        Repository(root).create()
    assert str(root) in caught.value.context
    assert caught.value.hint


def test_a_root_of_a_newer_format_is_refused_and_left_alone(root: Path) -> None:
    Repository(root).create()
    path = root / PROOF / "lineage.json"
    body = {**json.loads(path.read_text()), "format": 2}
    path.write_text(json.dumps(body))
    with pytest.raises(ManifestTooNew):
        begin(root)
    assert json.loads(path.read_text()) == body
    assert os.listdir(root / PROOF / "generations") == []


def test_a_save_becomes_a_checkpoint_whose_every_byte_verifies(root: Path) -> None:
    found = begin(root).save(12)
    assert found.id == CheckpointId(12, 1)
    repository = Repository(root)
    assert [one.id for one in repository.complete()] == [found.id]
    manifest = repository.check_sizes(found)
    assert [file.path for file in manifest.files] == [".metadata", "__0_0.distcp", "__1_0.distcp"]
    assert [(rank.rank, rank.node) for rank in manifest.ranks] == [(0, "n1"), (1, "n2")]
    assert verify_bytes(found.path, manifest, digest_file) == []
    assert not os.listdir(repository.staging(1))


def test_changed_bytes_are_named_by_a_deep_look_and_a_cut_file_by_a_short_one(root: Path) -> None:
    found = begin(root).save(12)
    repository = Repository(root)
    manifest = repository.manifest(found)
    shard = Path(found.path) / "__1_0.distcp"
    data = bytearray(shard.read_bytes())
    data[4999] ^= 1
    shard.write_bytes(data)
    assert verify_bytes(found.path, manifest, digest_file) == ["__1_0.distcp: its bytes are not those that were committed"]
    shard.write_bytes(data[:-1])
    with pytest.raises(DamagedCheckpoint, match=r"__1_0\.distcp has 4999 bytes where 5000"):
        repository.check_sizes(found)
    shard.unlink()
    with pytest.raises(DamagedCheckpoint, match=r"__1_0\.distcp is missing"):
        repository.check_sizes(found)


@pytest.mark.parametrize("what", ["changed", "missing"])
def test_a_manifest_that_is_not_the_committed_one_is_damage(root: Path, what: str) -> None:
    found = begin(root).save(12)
    path = Path(found.path) / PROOF / found.commit.manifest
    if what == "changed":
        path.write_bytes(path.read_bytes().replace(b'"world_size":2', b'"world_size":3'))
    else:
        path.unlink()
    with pytest.raises(DamagedCheckpoint, match="manifest"):
        Repository(root).check_sizes(found)


@pytest.mark.parametrize(
    ("change", "reason", "damaged"),
    [
        (None, "no COMMIT", False),
        ({"format": 2}, "newer", False),
        ({"step": "x"}, "damaged field", True),
        ({"lineage": "f" * 32}, "another lineage", False),
        ({"world_size": 0}, "impossible", True),
        ({"manifest": "../../etc/passwd"}, "impossible", True),
        ({"generation": 0}, "impossible", True),
    ],
)
def test_a_folder_that_is_no_checkpoint_says_why(
    root: Path, change: dict[str, object] | None, reason: str, damaged: bool
) -> None:
    found = begin(root).save(12)
    path = marker(root, found.id.folder)
    if change is None:
        path.unlink()
    else:
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    seen = Repository(root).look(found.id)
    assert isinstance(seen, Unbelieved)
    assert reason in seen.reason
    assert seen.damaged is damaged
    assert list(Repository(root).complete()) == []


def test_commit_is_believed_and_the_folders_name_is_not(root: Path) -> None:
    found = begin(root).save(12)
    os.rename(found.path, root / "step-00000099.g0001")
    seen = Repository(root).look(CheckpointId(99, 1))
    assert isinstance(seen, Committed)
    assert seen.id == CheckpointId(12, 1)


def test_a_step_is_saved_once(root: Path) -> None:
    run = begin(root)
    run.save(12)
    with pytest.raises(StepTaken):
        run.stage(12)
    run.stage(16)
    with pytest.raises(StepTaken):
        run.stage(16)


def test_a_save_whose_file_shrank_after_its_receipt_is_no_checkpoint(root: Path) -> None:
    run = begin(root)
    run.until_receipts(12)
    os.truncate(Path(run.leader.staging(12)) / "__0_0.distcp", 100)
    with pytest.raises(SaveFailed, match=r"__0_0\.distcp has 100 bytes"):
        run.commit(12)
    assert list(Repository(root).complete()) == []


def test_receipts_that_are_not_one_per_rank_are_no_checkpoint(root: Path) -> None:
    run = begin(root)
    run.stage(12)
    run.write(12, 0)
    run.leave_receipt(12, "n1")
    run.leave_receipt(12, "n2")  # says nothing of rank 1
    with pytest.raises(SaveFailed, match="one per rank"):
        run.commit(12)
    assert not marker(root, "step-00000012.g0001").exists()


def test_a_nodes_error_ends_the_save_and_names_the_node(root: Path) -> None:
    run = begin(root)
    run.until_receipts(12, nodes=["n1"])
    run.leave_receipt(12, "n2", error="rank 1: EIO")
    with pytest.raises(SaveFailed, match="node n2 failed: rank 1: EIO"):
        run.commit(12)


def test_a_missing_receipt_is_named_with_its_ranks_when_the_deadline_is_over(root: Path) -> None:
    run = begin(root, settings=SaveSettings(deadline_s=0.05))
    run.until_receipts(12, nodes=["n1"])
    with pytest.raises(SaveFailed, match=r"no receipt within 0 s from n2 \(ranks 1\)"):
        run.commit(12)


def test_a_half_written_receipt_is_not_there_yet(root: Path) -> None:
    run = begin(root, settings=SaveSettings(deadline_s=0.05))
    run.until_receipts(12)
    path = Path(run.leader.staging(12)) / PROOF / "receipts" / "n2.json"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(SaveFailed, match="n2"):
        run.commit(12)


@pytest.mark.parametrize("operation", ["stage", "commit"])
def test_an_older_generation_cannot_save_any_more(root: Path, operation: str) -> None:
    old = begin(root)
    old.save(4)
    old.until_receipts(8)
    begin(root)
    with pytest.raises(Fenced):
        old.stage(12) if operation == "stage" else old.commit(8)


@pytest.mark.parametrize("at", [("link", "COMMIT"), ("rename", "step-00000008.g0001")])
def test_a_generation_that_is_overtaken_inside_its_commit_leaves_no_checkpoint_of_its_own(
    root: Path, at: tuple[str, str]
) -> None:
    """A new start between the check and the operation: its sweep took the folder, and the zombie's rename finds nothing."""
    old = begin(root)
    old.save(4)
    old.until_receipts(8)
    new: list[lineage.Run] = []

    def overtake(operation: str, path: str) -> None:
        if (operation, os.path.basename(path)) == at and not new:
            files.observe(None)
            new.append(begin(root))

    files.observe(overtake)
    try:
        with pytest.raises((Fenced, StorageFault)):
            old.commit(8)
    finally:
        files.observe(None)
    # the new generation recovered step 8 under its own name, for all its receipts were there
    assert new[0].started.point.folder == "step-00000008.g0002"
    assert folders(root) == ["step-00000004.g0001", "step-00000008.g0002"]


def test_retention_keeps_the_newest_and_every_nth_and_what_it_did_not_commit(root: Path) -> None:
    run = begin(root, settings=SaveSettings(deadline_s=10, keep_last=2, keep_every=3))
    (root / "step-00000001.g0001.bak").mkdir()
    (root / "notes").mkdir()
    for step in range(1, 9):
        run.save(step)
    assert [name for name in folders(root) if name.endswith(".g0001")] == [f"step-{step:08d}.g0001" for step in (3, 6, 7, 8)]
    assert (root / "notes").exists()
    assert (root / "step-00000001.g0001.bak").exists()
    assert quarantine(root) == []


def test_a_file_of_somebody_elses_in_a_pruned_checkpoint_stays(root: Path) -> None:
    run = begin(root, settings=SaveSettings(deadline_s=10, keep_last=2, keep_every=0))
    run.save(1)
    (root / "step-00000001.g0001" / "my-notes.txt").write_text("mine")
    run.save(2)
    run.save(3)
    assert folders(root) == ["step-00000002.g0001", "step-00000003.g0001"]
    (kept,) = quarantine(root)
    assert kept.startswith("kept-step-00000001.g0001.")
    assert os.listdir(root / PROOF / "quarantine" / kept) == ["my-notes.txt"]
    begin(root)
    assert quarantine(root) == [kept]


def test_a_deletion_that_was_interrupted_is_finished_by_the_next_start(root: Path) -> None:
    run = begin(root)
    run.save(1)
    run.save(2)
    hidden = Repository(root).set_aside(str(root / "step-00000001.g0001"), "pruned-step-00000001.g0001")
    os.unlink(os.path.join(hidden, "__0_0.distcp"))
    begin(root)
    assert quarantine(root) == []


def test_retention_neither_counts_nor_deletes_what_is_fenced_or_damaged(root: Path) -> None:
    old = begin(root)
    old.save(4)
    old.save(8)
    new = begin(root)
    shutil.copytree(root / "step-00000008.g0001", root / "step-00000020.g0001")
    path = marker(root, "step-00000020.g0001")
    path.write_text(json.dumps({**json.loads(path.read_text()), "step": 20}))  # a zombie's: fenced above step 8
    new.save(12)
    assert folders(root) == ["step-00000008.g0001", "step-00000012.g0002", "step-00000020.g0001"]
    assert [one.id.step for one in Repository(root).complete()] == [12, 8]


def test_an_older_generation_deletes_nothing(root: Path) -> None:
    old = begin(root)
    for step in (4, 8, 12):
        old.save(step)
    begin(root)
    with pytest.raises(Fenced):
        Repository(root).prune(keep_last=2, keep_every=0, generation=1)
    assert len(folders(root)) == 2


def test_quarantine_keeps_only_the_newest_sweeps_of_its_own_lineage(root: Path) -> None:
    for number in range(7):
        run = begin(root)
        run.stage(number + 1)
    begin(root)
    sweeps = [name for name in quarantine(root) if name.startswith("staging-")]
    assert [name.partition(".")[0] for name in sweeps] == ["staging-g0004", "staging-g0005", "staging-g0006", "staging-g0007"]


def test_quarantine_never_deletes_what_is_not_its_own(root: Path) -> None:
    Repository(root).create()
    foreign = root / PROOF / "quarantine" / "staging-g0001.by-g0002.abc" / "step-00000004"
    foreign.mkdir(parents=True)
    (root / PROOF / "quarantine" / "damaged-step").mkdir()
    for number in range(7):
        begin(root).stage(number + 1)
    begin(root)
    assert foreign.exists()
    assert "damaged-step" in quarantine(root)


def test_staging_beside_the_proof_folder_works_the_same(root: Path) -> None:
    """Where a rename out of `.ckptctl` gives EXDEV (project quotas, filesets), staging lies in the root itself."""
    repository = Repository(root)
    made = repository.create()
    path = root / PROOF / "lineage.json"
    path.write_bytes(codec.encode(Lineage(**{**json.loads(codec.encode(made)), "staging": "beside"})))
    run = begin(root)
    assert Path(run.leader.staging(4)).parent == root / ".staging-g0001"
    run.save(4)
    run.until_receipts(8, nodes=["n1"])
    again = begin(root)
    assert again.started.point.step == 4
    assert any(name.startswith("staging-g0001") for name in quarantine(root))
    again.save(8)
    assert folders(root) == ["step-00000004.g0001", "step-00000008.g0002"]


def test_the_place_of_staging_is_tried_when_the_root_is_made(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.rename

    def refuse(source: str, target: str) -> None:
        if os.path.dirname(str(source)).endswith("staging"):
            raise OSError(errno.EXDEV, "cross-device link", target)
        real(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    assert Repository(root).create().staging == "beside"
