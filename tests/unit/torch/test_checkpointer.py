"""`Checkpointer` in a world of one: everything comes back, and every mistake is named before harm is done."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ckptctl_torch import Checkpointer, CheckpointReader, CheckpointWriter
from torch import nn
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint import load as dcp_load
from torch.distributed.checkpoint import save as dcp_save

from ckptctl.errors import Fenced, KeyMismatch, SettingsInvalid, StepTaken, UsageError
from ckptctl.saving.session import Incarnation
from ckptctl.storage import journal
from ckptctl.storage.repository import Repository
from tests.support.lineage import begin, folders


@pytest.fixture(autouse=True)
def _outside_any_job(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith(("CKPTCTL_", "SLURM_")):
            monkeypatch.delenv(name)
    return


class Progress:
    """An object with a state of its own."""

    def __init__(self) -> None:
        self.epoch, self.seen = 0, {"a": 1}

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "seen": dict(self.seen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.seen = state["epoch"], dict(state["seen"])


def parts(seed: int = 0) -> dict[str, Any]:
    """Return a training state, fresh."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.3), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=100)
    return {"model": model, "optim": optimizer, "schedule": schedule, "progress": Progress(), "note": "fresh", "count": 0}


def train(state: dict[str, Any], steps: int) -> list[float]:
    """Train and return the losses; every random generator has a part in them."""
    losses = []
    for _ in range(steps):
        noise = random.random() + float(np.random.rand())
        loss = (state["model"](torch.randn(8, 16)) + noise).square().mean()
        loss.backward()
        state["optim"].step()
        state["schedule"].step()
        state["optim"].zero_grad()
        state["progress"].epoch += 1
        losses.append(loss.item())
    return losses


def test_a_resumed_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    root = tmp_path / "run1"
    with Checkpointer(root=root) as ckpt:
        state = parts()
        assert ckpt.load(state) == 0
        train(state, 5)
        state |= {"note": "saved", "count": 5}
        ckpt.save(5, state)
        expected = train(state, 5)
    random.seed(99)
    np.random.seed(99)
    with Checkpointer(root=root) as ckpt:
        state = parts(seed=1)
        assert ckpt.load(state) == 5
        assert (state["note"], state["count"], state["progress"].epoch) == ("saved", 5, 5)
        assert train(state, 5) == expected


def test_saving_changes_no_step_of_the_run(tmp_path: Path) -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    plain = train(parts(), 20)
    random.seed(0)
    np.random.seed(0)
    with Checkpointer(root=tmp_path / "run1") as ckpt:
        state = parts()
        ckpt.load(state)
        losses = []
        for step in range(1, 21):
            losses += train(state, 1)
            assert not ckpt.should_stop()
            if step % 4 == 0:
                ckpt.save(step, state)
    assert losses == plain


def test_every_entry_of_a_fresh_optimizer_is_restored(tmp_path: Path) -> None:
    """A fresh AdamW given to DCP as it is comes back empty, and DCP says nothing."""
    with Checkpointer(root=tmp_path / "run1") as ckpt:
        state = parts()
        train(state, 3)
        ckpt.save(3, state)
        saved = state["optim"].state_dict()["state"]
    with Checkpointer(root=tmp_path / "run1") as ckpt:
        state = parts(seed=1)
        ckpt.load(state)
        loaded = state["optim"].state_dict()["state"]
    assert set(loaded) == set(saved)
    for number, entries in saved.items():
        assert set(loaded[number]) == set(entries) == {"step", "exp_avg", "exp_avg_sq"}
        for name, value in entries.items():
            assert torch.equal(loaded[number][name], value), (number, name)


def test_a_checkpoint_is_a_stock_dcp_folder(tmp_path: Path) -> None:
    with Checkpointer(root=tmp_path / "run1") as ckpt:
        state = parts()
        train(state, 2)
        folder = ckpt.save(2, state)
    template = {"model": parts(seed=1)["model"].state_dict(), "progress": {"epoch": 0}}
    dcp_load(template, storage_reader=FileSystemReader(folder), no_dist=True)
    assert template["progress"]["epoch"] == 2
    for key, value in state["model"].state_dict().items():
        assert torch.equal(template["model"][key], value)


def test_keys_that_nobody_loads_or_that_are_not_there_are_errors_naming_them(tmp_path: Path) -> None:
    root = tmp_path / "run1"
    with Checkpointer(root=root) as ckpt:
        ckpt.save(1, {"a": torch.ones(2), "b": torch.ones(2)})
    with Checkpointer(root=root) as ckpt, pytest.raises(KeyMismatch) as caught:
        ckpt.load({"a": torch.zeros(2), "c": torch.zeros(2)})
    assert "not in the checkpoint: c" in caught.value.message
    assert "loaded by nobody: b" in caught.value.message
    with Checkpointer(root=root, allow_missing=["c"], allow_unloaded=["b"]) as ckpt:
        state = {"a": torch.zeros(2), "c": torch.zeros(2)}
        assert ckpt.load(state) == 1
    assert state["a"].tolist() == [1, 1]
    assert state["c"].tolist() == [0, 0]


def test_old_checkpoints_are_pruned_as_the_arguments_say(tmp_path: Path) -> None:
    with Checkpointer(root=tmp_path / "run1", keep_last=3, keep_every=0) as ckpt:
        for step in range(1, 7):
            ckpt.save(step, {"x": torch.ones(1) * step})
    assert folders(tmp_path / "run1") == [f"step-{step:08d}.g0001" for step in (4, 5, 6)]


def test_a_structure_that_changes_between_saves_is_saved_as_it_is(tmp_path: Path) -> None:
    with Checkpointer(root=tmp_path / "run1") as ckpt:
        ckpt.save(1, {"x": torch.ones(2)})
        ckpt.save(2, {"x": torch.ones(3), "text": "a" * 10})
        folder = ckpt.save(3, {"x": torch.ones(3) * 3, "text": "a" * 100_000})
    template = {"x": torch.zeros(3), "text": ""}
    dcp_load(template, storage_reader=FileSystemReader(folder), no_dist=True)
    assert template["x"].tolist() == [3, 3, 3]
    assert template["text"] == "a" * 100_000


@pytest.mark.parametrize(("step", "error"), [(0, UsageError), (-1, UsageError), (1, StepTaken)])
def test_steps_that_cannot_be_saved_are_refused(tmp_path: Path, step: int, error: type[Exception]) -> None:
    with Checkpointer(root=tmp_path / "run1") as ckpt:
        ckpt.save(1, {"x": torch.ones(1)})
        with pytest.raises(error):
            ckpt.save(step, {"x": torch.ones(1)})


def test_a_step_before_the_one_resumed_at_is_refused(tmp_path: Path) -> None:
    with Checkpointer(root=tmp_path / "run1") as ckpt:
        ckpt.save(8, {"x": torch.ones(1)})
    with Checkpointer(root=tmp_path / "run1") as ckpt, pytest.raises(UsageError, match="before step 8"):
        ckpt.save(4, {"x": torch.ones(1)})


def test_a_trainer_that_was_overtaken_is_fenced_at_its_next_save(tmp_path: Path) -> None:
    with Checkpointer(root=tmp_path / "run1") as ckpt:
        ckpt.save(1, {"x": torch.ones(1)})
        begin(tmp_path / "run1")
        with pytest.raises(Fenced):
            ckpt.save(2, {"x": torch.ones(1)})


def test_a_trainer_that_was_overtaken_is_fenced_without_a_save(tmp_path: Path) -> None:
    with Checkpointer(root=tmp_path / "run1", stop_every=1) as ckpt:
        begin(tmp_path / "run1")
        assert not ckpt.should_stop()
        with pytest.raises(Fenced):
            ckpt.should_stop()


def test_a_signal_stops_the_run_within_twice_stop_every_calls_and_is_recorded(tmp_path: Path) -> None:
    with Checkpointer(root=tmp_path / "run1", stop_every=3) as ckpt:
        ckpt.save(1, {"x": torch.ones(1)})
        assert not any(ckpt.should_stop() for _ in range(7))
        os.kill(os.getpid(), 10)  # SIGUSR1
        answers = [ckpt.should_stop() for _ in range(6)]
        assert True in answers
        assert ckpt.stopping
    assert len(Repository(tmp_path / "run1").journal.events(journal.STOPPED)) == 1


def test_leaving_by_exit_code_93_is_recorded(tmp_path: Path) -> None:
    with pytest.raises(SystemExit), Checkpointer(root=tmp_path / "run1"):
        raise SystemExit(93)
    assert len(Repository(tmp_path / "run1").journal.events(journal.NEVER)) == 1
    with pytest.raises(SystemExit), Checkpointer(root=tmp_path / "run1"):
        raise SystemExit(1)
    assert len(Repository(tmp_path / "run1").journal.events(journal.NEVER)) == 1


def test_without_a_root_and_without_run_there_is_advice() -> None:
    with pytest.raises(SettingsInvalid, match="no checkpoint root"), Checkpointer():
        pass


def test_half_of_runs_variables_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTCTL_ROOT", str(tmp_path / "run1"))
    monkeypatch.setenv("CKPTCTL_JOB", "1.0")
    with pytest.raises(SettingsInvalid, match="half set"), Checkpointer():
        pass


def test_a_root_that_contradicts_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: Incarnation = begin(tmp_path / "run1").leader.incarnation
    for name, value in told.environment().items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsInvalid, match="different checkpoint roots"), Checkpointer(root=tmp_path / "run2"):
        pass


def test_use_outside_its_block_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="outside its `with` block"):
        Checkpointer(root=tmp_path / "run1").save(1, {})


def test_signal_handlers_are_given_back(tmp_path: Path) -> None:
    import signal

    before = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGTERM)
    with Checkpointer(root=tmp_path / "run1"):
        pass
    assert (signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGTERM)) == before


def test_the_dcp_writer_and_reader_are_the_same_checkpoint_to_everybody(tmp_path: Path) -> None:
    state = {"w": torch.randn(700, 500), "b": torch.randn(3).bfloat16(), "progress": {"step": 4}}
    with Checkpointer(root=tmp_path / "run1") as ckpt:
        dcp_save(state, storage_writer=CheckpointWriter(ckpt, 4), no_dist=True)
        with pytest.raises(BaseException, match="already saved"):
            dcp_save(state, storage_writer=CheckpointWriter(ckpt, 4), no_dist=True)
    assert folders(tmp_path / "run1") == ["step-00000004.g0001"]
    for stock in (False, True):
        with Checkpointer(root=tmp_path / "run1") as ckpt:
            template = {"w": torch.zeros(700, 500), "b": torch.zeros(3).bfloat16(), "progress": {"step": 0}}
            reader = FileSystemReader(ckpt.resume_path) if stock else CheckpointReader(ckpt)
            dcp_load(template, storage_reader=reader, no_dist=True)
            assert torch.equal(template["w"], state["w"])
            assert torch.equal(template["b"], state["b"])
            assert template["progress"] == {"step": 4}


def test_the_dcp_pair_refuses_what_makes_no_sense(tmp_path: Path) -> None:
    with Checkpointer(root=tmp_path / "run1") as ckpt:
        with pytest.raises(UsageError, match="no checkpoint to read"):
            CheckpointReader(ckpt)
        with pytest.raises(UsageError, match="checkpoint_id"):
            CheckpointWriter(ckpt, 1).reset("elsewhere")
    assert not CheckpointWriter.validate_checkpoint_id("x")
