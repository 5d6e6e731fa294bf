"""`Checkpointer` without process group, without job: each part that comes back, each refusal, and what a refusal leaves."""

from __future__ import annotations

import copy
import os
import random
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from ckptctl_torch import Checkpointer, CheckpointReader, CheckpointWriter
from torch import nn
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from ckptctl.actions import inspect
from ckptctl.errors import Fenced, KeyMismatch, OutOfSpace, SaveFailed, SettingsInvalid, StepTaken, UsageError
from ckptctl.model.verdict import Completeness
from ckptctl.storage.repository import Repository
from tests.support.lineage import begin, folders


@pytest.fixture(autouse=True)
def _outside_any_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("CKPTCTL_", "SLURM_")):
            monkeypatch.delenv(name)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root that does not exist yet."""
    return tmp_path / "run1"


def fresh(seed: int = 0, **options: Any) -> dict[str, Any]:
    """Return a model and its AdamW."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.3), nn.Linear(16, 4))
    return {"model": model, "optim": torch.optim.AdamW(model.parameters(), lr=0.01, **options)}


def train(state: dict[str, Any], steps: int = 1) -> list[float]:
    """Train and return the losses."""
    losses = []
    for _ in range(steps):
        loss = state["model"](torch.randn(8, 16)).square().mean()
        loss.backward()
        state["optim"].step()
        state["optim"].zero_grad()
        losses.append(loss.item())
    return losses


def parameters(state: dict[str, Any]) -> list[torch.Tensor]:
    """Return copies of the parameters."""
    return [parameter.detach().clone() for parameter in state["model"].parameters()]


def moments(state: dict[str, Any]) -> dict[Any, dict[str, torch.Tensor]]:
    """Return a copy of the optimizer's state, by parameter number."""
    found: dict[Any, dict[str, torch.Tensor]] = copy.deepcopy(state["optim"].state_dict()["state"])
    return found


def same_moments(left: dict[Any, dict[str, torch.Tensor]], right: dict[Any, dict[str, torch.Tensor]]) -> bool:
    """Whether two optimizer states have the same entries, bit for bit."""
    return {(number, name) for number in left for name in left[number]} == {
        (number, name) for number in right for name in right[number]
    } and all(torch.equal(left[number][name], right[number][name]) for number in left for name in left[number])


def is_whole(folder: str | Path) -> bool:
    """Whether every byte of a checkpoint is what was committed."""
    return inspect.verify(str(folder), deep=True).verdict is Completeness.COMPLETE


# --- what comes back ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheduler", ["auto", "local", "slurm"])
def test_outside_any_job_every_scheduler_gives_a_world_of_one(root: Path, scheduler: str) -> None:
    with Checkpointer(root=root, scheduler=scheduler) as ckpt:
        assert ckpt.load({"x": 1}) == 0
        assert ckpt.resume_path == ""
        folder = ckpt.save(1, {"x": 1})
        assert list(ckpt.session.nodes) == [socket.gethostname().split(".")[0]]
    assert folder == str(root / "step-00000001.g0001")
    assert is_whole(folder)


DRAWS = {"python": random.random, "numpy": np.random.rand, "torch": lambda: torch.rand(1).item()}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_each_random_generator_goes_on_where_it_was(root: Path, draw: Any) -> None:
    with Checkpointer(root=root) as ckpt:
        draw()
        ckpt.save(1, {"x": 1})
        expected = [draw() for _ in range(5)]
    draw()
    with Checkpointer(root=root) as ckpt:
        ckpt.load({"x": 0})
        assert [draw() for _ in range(5)] == expected


def test_a_first_start_moves_no_random_generator(root: Path) -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = (random.random(), np.random.rand(), torch.rand(1).item())
    random.seed(1)
    np.random.seed(1)
    state = fresh()
    torch.manual_seed(1)
    with Checkpointer(root=root) as ckpt:
        ckpt.load(state)
        ckpt.save(1, state)
        assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected


@pytest.mark.parametrize("options", [{}, {"amsgrad": True}, {"foreach": False}, {"capturable": False, "maximize": True}])
def test_a_fresh_optimizer_gets_every_saved_entry_and_makes_the_same_next_steps(root: Path, options: dict[str, Any]) -> None:
    """The first silent trap: `dcp.load` into a fresh AdamW restores nothing and says nothing."""
    with Checkpointer(root=root) as ckpt:
        state = fresh(**options)
        train(state, 3)
        ckpt.save(3, state)
        saved, expected = moments(state), (train(state, 4), parameters(state))
    assert all(entry["step"] == 3 and entry["exp_avg"].abs().sum() > 0 for entry in saved.values())
    with Checkpointer(root=root) as ckpt:
        state = fresh(seed=1, **options)
        assert ckpt.load(state) == 3
        assert same_moments(moments(state), saved)
        assert train(state, 4) == expected[0]
        assert all(map(torch.equal, parameters(state), expected[1]))


@pytest.mark.parametrize("save_first", [False, True])
def test_the_first_twenty_steps_are_those_of_a_run_without_ckptctl(root: Path, save_first: bool) -> None:
    """The second silent trap: DCP leaves a fresh AdamW at step 1, which changes its first update."""
    plain = fresh()
    torch.manual_seed(5)
    expected = train(plain, 20)
    state = fresh()
    torch.manual_seed(5)
    with Checkpointer(root=root) as ckpt:
        ckpt.load(state)
        if save_first:
            ckpt.save(1, state)
        losses = []
        for step in range(2, 22):
            losses += train(state)
            ckpt.save(step, state)
    assert losses == expected
    assert all(map(torch.equal, parameters(state), parameters(plain)))
    assert same_moments(moments(state), moments(plain))


def test_a_fresh_optimizer_that_was_saved_is_resumed_at_its_first_update(root: Path) -> None:
    plain = fresh()
    torch.manual_seed(5)
    expected = train(plain, 5)
    with Checkpointer(root=root) as ckpt:
        ckpt.save(1, fresh())
    with Checkpointer(root=root) as ckpt:
        state = fresh(seed=1)
        ckpt.load(state)
        torch.manual_seed(5)
        assert train(state, 5) == expected


def test_an_optimizer_that_the_checkpoint_does_not_hold_stays_fresh_when_that_is_allowed(root: Path) -> None:
    with Checkpointer(root=root) as ckpt:
        ckpt.save(1, {"model": fresh()["model"]})
    plain = fresh()
    torch.manual_seed(5)
    expected = train(plain, 5)
    with Checkpointer(root=root, allow_missing=["optim.*"]) as ckpt:
        state = fresh()
        assert ckpt.load(state) == 1
        torch.manual_seed(5)
        assert train(state, 5) == expected


def test_a_model_with_a_parameter_that_never_had_a_gradient_is_resumed(root: Path) -> None:
    def build() -> dict[str, Any]:
        torch.manual_seed(0)
        model = nn.ModuleDict({"used": nn.Linear(3, 3), "idle": nn.Linear(3, 3)})
        return {"model": model, "optim": torch.optim.AdamW(model.parameters())}

    with Checkpointer(root=root) as ckpt:
        state = build()
        state["model"]["used"](torch.ones(3)).sum().backward()
        state["optim"].step()
        ckpt.save(1, state)
        saved = moments(state)
    with Checkpointer(root=root) as ckpt:
        state = build()
        assert ckpt.load(state) == 1
        assert same_moments(moments(state), saved)


def test_a_frozen_parameter_is_no_obstacle(root: Path) -> None:
    with Checkpointer(root=root) as ckpt:
        state = fresh()
        state["model"][0].requires_grad_(False)
        train(state, 2)
        ckpt.save(2, state)
        saved = moments(state)
    with Checkpointer(root=root) as ckpt:
        state = fresh(seed=1)
        state["model"][0].requires_grad_(False)
        ckpt.load(state)
        assert same_moments(moments(state), saved)


@pytest.mark.parametrize("kind", ["sequential", "plateau", "cosine"])
def test_schedules_of_other_shapes_go_on(root: Path, kind: str) -> None:
    from torch.optim import lr_scheduler as schedules

    def build() -> dict[str, Any]:
        state = fresh()
        optimizer = state["optim"]
        if kind == "sequential":
            parts = [schedules.LinearLR(optimizer), schedules.CosineAnnealingLR(optimizer, 10)]
            state["schedule"] = schedules.SequentialLR(optimizer, parts, [3])
        elif kind == "plateau":
            state["schedule"] = schedules.ReduceLROnPlateau(optimizer, patience=1)
        else:
            state["schedule"] = schedules.CosineAnnealingWarmRestarts(optimizer, 4)
        return state

    def rates(state: dict[str, Any], steps: int) -> list[float]:
        found = []
        for _ in range(steps):
            train(state)
            state["schedule"].step(*([1.0] if kind == "plateau" else []))
            found.append(state["optim"].param_groups[0]["lr"])
        return found

    with Checkpointer(root=root) as ckpt:
        state = build()
        rates(state, 5)
        ckpt.save(5, state)
        expected = rates(state, 6)
    with Checkpointer(root=root) as ckpt:
        state = build()
        ckpt.load(state)
        assert rates(state, 6) == expected


class Holder:
    """An object whose state is whatever it is given."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_an_object_that_has_grown_entries_since_its_start_gets_them_all(root: Path) -> None:
    grown = {"epoch": 3, "seen": {"files": [1, 2], "deep": {"name": "b"}}, "best": 0.5, "tensor": torch.arange(3)}
    with Checkpointer(root=root) as ckpt:
        ckpt.save(1, {"progress": Holder(grown)})
    with Checkpointer(root=root) as ckpt:
        holder = Holder({"epoch": 0, "tensor": torch.zeros(3, dtype=torch.int64)})
        ckpt.load({"progress": holder})
    assert torch.equal(holder.state.pop("tensor"), grown.pop("tensor"))
    assert holder.state == grown


@pytest.mark.parametrize("state", [{}, {"inner": {}}, {"none": None}, {"list": []}])
def test_an_object_with_an_empty_state_comes_back(root: Path, state: dict[str, Any]) -> None:
    with Checkpointer(root=root) as ckpt:
        ckpt.save(1, {"holder": Holder(state)})
    with Checkpointer(root=root) as ckpt:
        assert ckpt.load({"holder": (holder := Holder(copy.deepcopy(state)))}) == 1
    assert holder.state == state


@pytest.mark.parametrize("value", [7, 2.5, True, None, "text", b"\0bytes", (1, "a"), [1, [2, 3]], {"a": {"b": 1}}, {}])
def test_plain_values_come_back_with_their_type(root: Path, value: Any) -> None:
    with Checkpointer(root=root) as ckpt:
        ckpt.save(1, {"v": value})
    with Checkpointer(root=root) as ckpt:
        state: dict[str, Any] = {"v": copy.deepcopy(value)}
        if isinstance(value, (int, float, str)):
            state["v"] = type(value)()
        ckpt.load(state)
    assert state["v"] == value
    assert type(state["v"]) is type(value)


def test_a_run_told_by_the_environment_saves_under_what_it_was_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = begin(root).leader.incarnation
    for name, value in told.environment().items():
        monkeypatch.setenv(name, value)
    with Checkpointer() as ckpt:
        assert ckpt.load({"x": 0}) == 0
        ckpt.save(4, {"x": 4})
    assert folders(root) == ["step-00000004.g0001"]
    for name, value in begin(root).leader.incarnation.environment().items():
        monkeypatch.setenv(name, value)
    with Checkpointer() as ckpt:
        state = {"x": 0}
        assert ckpt.load(state) == 4
        assert state == {"x": 4}
        assert ckpt.resume_path == str(root / "step-00000004.g0001")


# --- keys --------------------------------------------------------------------------------------------------------


def test_a_mismatch_changes_nothing_in_the_state(root: Path) -> None:
    with Checkpointer(root=root) as ckpt:
        state = fresh()
        train(state)
        ckpt.save(1, state | {"count": 1})
    with Checkpointer(root=root) as ckpt:
        state = fresh(seed=1) | {"missing": 5}
        before = parameters(state)
        with pytest.raises(KeyMismatch) as caught:
            ckpt.load(state)
        assert all(map(torch.equal, parameters(state), before))
        assert not state["optim"].state
        assert state["missing"] == 5
    assert caught.value.message == "asked for and not in the checkpoint: missing; in the checkpoint and loaded by nobody: count"
    assert "allow_missing" in caught.value.hint


def test_a_module_that_nobody_loads_is_named_key_by_key(root: Path) -> None:
    with Checkpointer(root=root) as ckpt:
        ckpt.save(1, {"model": nn.Linear(2, 2), "head": nn.Linear(2, 2)})
    with Checkpointer(root=root) as ckpt, pytest.raises(KeyMismatch, match=r"loaded by nobody: head\.bias, head\.weight$"):
        ckpt.load({"model": nn.Linear(2, 2)})
    with Checkpointer(root=root, allow_unloaded=["head.*"]) as ckpt:
        assert ckpt.load({"model": nn.Linear(2, 2)}) == 1


def test_a_plain_value_that_may_be_missing_stays_as_it_was(root: Path) -> None:
    with Checkpointer(root=root) as ckpt:
        ckpt.save(1, {"x": 1})
    with Checkpointer(root=root, allow_missing=["new*"]) as ckpt:
        state = {"x": 0, "new": "mine", "newer": torch.ones(2), "newest": Holder({"a": 1})}
        ckpt.load(state)
    assert (state["x"], state["new"]) == (1, "mine")
    assert state["newer"].tolist() == [1, 1]  # type: ignore[attr-defined]
    assert state["newest"].state == {"a": 1}  # type: ignore[attr-defined]


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, -3])
def test_a_step_before_one_is_refused_and_leaves_nothing(root: Path, step: int) -> None:
    with Checkpointer(root=root) as ckpt:
        with pytest.raises(UsageError, match="count from 1"):
            ckpt.save(step, {"x": 1})
        assert os.listdir(Repository(root).staging(1)) == []
    assert folders(root) == []


def test_a_step_that_is_taken_is_refused_and_the_first_one_stays(root: Path) -> None:
    with Checkpointer(root=root) as ckpt:
        folder = ckpt.save(1, {"x": 1})
        with pytest.raises(StepTaken, match="step 1 was already saved"):
            ckpt.save(1, {"x": 2})
        ckpt.save(2, {"x": 3})
    assert is_whole(folder)
    dcp.load(state := {"x": 0}, storage_reader=FileSystemReader(folder), no_dist=True)
    assert state == {"x": 1}


def test_a_write_that_fails_names_the_cause_and_leaves_the_last_checkpoint(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpointer(root=root) as ckpt:
        folder = ckpt.save(1, {"x": 1})

        def refuse(*_: object) -> None:
            raise OutOfSpace("no space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(ckpt.session.engine, "write", refuse)
            with pytest.raises(SaveFailed, match="rank 0: OutOfSpace: no space left on device") as caught:
                ckpt.save(2, {"x": 2})
        assert "untouched" in caught.value.hint
        assert folders(root) == ["step-00000001.g0001"]
        assert is_whole(folder)
        ckpt.save(3, {"x": 3})
    with Checkpointer(root=root) as ckpt:
        assert ckpt.load(state := {"x": 0}) == 3
        assert state == {"x": 3}


def test_an_overtaken_run_is_fenced_at_its_save_and_the_newer_one_is_not_disturbed(root: Path) -> None:
    with Checkpointer(root=root) as ckpt:
        folder = ckpt.save(1, {"x": 1})
        newer = begin(root)
        with pytest.raises(Fenced):
            ckpt.save(2, {"x": 2})
        with pytest.raises(Fenced):
            ckpt.save(3, {"x": 3})
        newer.save(2)
    assert is_whole(folder)
    assert folders(root) == ["step-00000001.g0001", "step-00000002.g0002"]


@pytest.mark.parametrize("use", ["save", "load", "should_stop", "session", "group", "resume_path", "writer"])
def test_before_its_block_every_use_is_refused(root: Path, use: str) -> None:
    ckpt = Checkpointer(root=root, stop_every=1)
    with pytest.raises(UsageError, match="outside its `with` block"):
        _use(ckpt, use)
    assert not root.exists()


@pytest.mark.parametrize("use", ["save", "load", "writer"])
def test_after_its_block_every_use_is_refused(root: Path, use: str) -> None:
    with Checkpointer(root=root) as ckpt:
        ckpt.save(1, {"x": 1})
    with pytest.raises(UsageError, match="outside its `with` block"):
        _use(ckpt, use)
    assert folders(root) == ["step-00000001.g0001"]


def _use(ckpt: Checkpointer, use: str) -> None:
    if use == "save":
        ckpt.save(2, {"x": 1})
    elif use == "load":
        ckpt.load({"x": 1})
    elif use == "should_stop":
        ckpt.should_stop()
    elif use == "writer":
        CheckpointWriter(ckpt, 2).prepare_global_plan([])
    else:
        getattr(ckpt, use)


def test_each_variable_of_run_that_is_missing_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = begin(root).leader.incarnation.environment()
    for absent in told:
        with monkeypatch.context() as patched:
            for name, value in told.items():
                if name != absent:
                    patched.setenv(name, value)
            with pytest.raises(SettingsInvalid, match="half set") as caught, Checkpointer():
                pass
            assert absent in caught.value.message
            assert "srun --export=ALL" in caught.value.hint


@pytest.mark.parametrize(
    ("variable", "value", "what"),
    [
        ("CKPTCTL_GENERATION", "", "CKPTCTL_GENERATION is empty"),
        ("CKPTCTL_GENERATION", "four", "CKPTCTL_GENERATION is not a number"),
        ("CKPTCTL_GENERATION", "0", "contradict each other"),
        ("CKPTCTL_RESUME_STEP", "-1", "contradict each other"),
        ("CKPTCTL_RESUME_PATH", "/elsewhere", "contradict each other"),
        ("CKPTCTL_RESUME_DIGEST", "abc", "contradict each other"),
    ],
)
def test_a_variable_of_run_with_a_bad_value_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, what: str
) -> None:
    for name, given in {**begin(root).leader.incarnation.environment(), variable: value}.items():
        monkeypatch.setenv(name, given)
    with pytest.raises(SettingsInvalid, match=what), Checkpointer():
        pass


@pytest.mark.parametrize(
    ("arguments", "error"),
    [({"keep_last": 1}, SettingsInvalid), ({"keep_every": -1}, SettingsInvalid), ({"stop_every": 0}, UsageError)],
)
def test_arguments_that_make_no_sense_are_refused(root: Path, arguments: dict[str, int], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(arguments))):
        Checkpointer(root=root, **arguments)  # type: ignore[arg-type]


# --- pruning -----------------------------------------------------------------------------------------------------


def test_pruning_keeps_the_last_ones_and_every_nth_of_the_lineage(root: Path) -> None:
    for first in (1, 6):
        with Checkpointer(root=root, keep_last=2, keep_every=4) as ckpt:
            for step in range(first, first + 5):
                ckpt.save(step, {"x": step})
    kept = ["step-00000004.g0001", "step-00000008.g0002", "step-00000009.g0002", "step-00000010.g0002"]
    assert folders(root) == kept
    assert all(is_whole(root / name) for name in kept)


def test_an_argument_overrides_the_environment(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTCTL_KEEP_LAST", "5")
    monkeypatch.setenv("CKPTCTL_KEEP_EVERY", "0")
    with Checkpointer(root=root) as ckpt:
        for step in range(1, 9):
            ckpt.save(step, {"x": step})
    assert len(folders(root)) == 5
    with Checkpointer(root=root, keep_last=3) as ckpt:
        ckpt.save(9, {"x": 9})
    assert folders(root) == [f"step-{step:08d}.g{1 + (step == 9):04d}" for step in (7, 8, 9)]


# --- the DCP pair ------------------------------------------------------------------------------------------------


def mixed() -> dict[str, Any]:
    """Return tensors of several kinds and plain values."""
    torch.manual_seed(3)
    return {
        "large": torch.randn(600, 700),
        "transposed": torch.randn(40, 30).t(),
        "half": torch.randn(5).bfloat16(),
        "mask": torch.tensor([True, False]),
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "progress": {"step": 4, "names": ["a", "b"], "big": "x" * 100_000},
    }


def zeroed(state: dict[str, Any]) -> dict[str, Any]:
    """Return the same structure with other values."""
    tensors = {key: torch.zeros(value.shape, dtype=value.dtype) for key, value in state.items() if key != "progress"}
    return {**tensors, "progress": {"step": 0, "names": ["", ""], "big": ""}}


def assert_same(found: dict[str, Any], state: dict[str, Any]) -> None:
    """Compare bit for bit."""
    assert found.keys() == state.keys()
    for key, value in state.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(found[key], value), key
            assert found[key].dtype == value.dtype
        else:
            assert found[key] == value


def test_what_the_dcp_writer_wrote_is_read_by_everybody(root: Path, tmp_path: Path) -> None:
    state = mixed()
    with Checkpointer(root=root) as ckpt:
        dcp.save(state, storage_writer=CheckpointWriter(ckpt, 4), no_dist=True)
    folder = root / "step-00000004.g0001"
    assert is_whole(folder)
    dcp_to_torch_save(str(folder), str(tmp_path / "whole.pt"))
    assert_same(torch.load(tmp_path / "whole.pt", weights_only=False), state)
    dcp.load(found := zeroed(state), storage_reader=FileSystemReader(folder), no_dist=True)
    assert_same(found, state)
    with Checkpointer(root=root) as ckpt:
        dcp.load(found := zeroed(state), storage_reader=CheckpointReader(ckpt), no_dist=True)
        assert_same(found, state)
        found = zeroed(state)
        assert ckpt.load(found) == 4
        assert_same(found, state)


def test_what_checkpointer_wrote_is_read_by_the_dcp_reader(root: Path) -> None:
    state = mixed()
    with Checkpointer(root=root) as ckpt:
        ckpt.save(4, state)
    with Checkpointer(root=root) as ckpt:
        dcp.load(found := zeroed(state), storage_reader=CheckpointReader(ckpt), no_dist=True)
    assert_same(found, state)


def test_large_payloads_of_the_dcp_writer_lie_on_a_page_too(root: Path) -> None:
    state = mixed()
    with Checkpointer(root=root) as ckpt:
        dcp.save(state, storage_writer=CheckpointWriter(ckpt, 4), no_dist=True)
    file = (root / "step-00000004.g0001" / "__0_0.distcp").read_bytes()
    assert file.index(state["large"].numpy().tobytes()) % 4096 == 0


def test_a_write_that_fails_makes_dcp_save_raise_and_leaves_the_last_checkpoint(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Checkpointer(root=root) as ckpt:
        dcp.save(mixed(), storage_writer=CheckpointWriter(ckpt, 1), no_dist=True)

        def refuse(*_: object) -> None:
            raise OutOfSpace("no space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(ckpt.session.engine, "write", refuse)
            with pytest.raises(BaseException, match="OutOfSpace: no space left on device"):
                dcp.save(mixed(), storage_writer=CheckpointWriter(ckpt, 2), no_dist=True)
        assert folders(root) == ["step-00000001.g0001"]
        assert is_whole(root / "step-00000001.g0001")
        dcp.save(mixed(), storage_writer=CheckpointWriter(ckpt, 3), no_dist=True)
    assert folders(root) == ["step-00000001.g0001", "step-00000003.g0001"]


def test_an_overtaken_run_is_fenced_in_dcp_save(root: Path) -> None:
    with Checkpointer(root=root) as ckpt:
        begin(root)
        with pytest.raises(BaseException, match="taken over"):
            dcp.save(mixed(), storage_writer=CheckpointWriter(ckpt, 1), no_dist=True)
    assert folders(root) == []


def test_steps_of_both_ways_to_save_follow_one_another(root: Path) -> None:
    state = mixed()
    with Checkpointer(root=root, keep_last=9) as ckpt:
        ckpt.save(1, state)
        dcp.save(state, storage_writer=CheckpointWriter(ckpt, 2), no_dist=True)
        ckpt.save(3, state)
        with pytest.raises(StepTaken):
            ckpt.save(2, state)
    sequences = [found.commit.sequence for found in Repository(root).complete()]
    assert sorted(sequences) == [1, 2, 3]
