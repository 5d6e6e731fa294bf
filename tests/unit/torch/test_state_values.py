"""What `collect`, `template` and `restore` do to values: optimizers of every kind, objects that changed, plain values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ckptctl_torch import state as states
from torch import nn

from ckptctl.errors import KeyMismatch, UsageError


class Holder:
    """An object whose state is whatever it is given."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def pair(kind: type[torch.optim.Optimizer] = torch.optim.AdamW, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model and its fresh optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
    return model, kind(model.parameters(), lr=0.1, **options)


def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Make one step of training."""
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.AdamW, {}),
        (torch.optim.AdamW, {"amsgrad": True}),
        (torch.optim.Adam, {"foreach": False}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
        (torch.optim.Adagrad, {}),
    ],
)
def test_an_optimizer_that_was_looked_at_before_its_first_step_makes_the_same_steps(kind: Any, options: Any) -> None:
    plain, looked = pair(kind, **options), pair(kind, **options)
    for number in range(4):
        states.collect({"model": looked[0], "optim": looked[1]}, materialise=True)
        update(*plain)
        update(*looked)
        for left, right in zip(plain[0].parameters(), looked[0].parameters(), strict=True):
            assert torch.equal(left, right), number


def test_collecting_leaves_gradients_as_the_same_objects_with_the_same_values() -> None:
    model, optimizer = pair()
    model(torch.ones(2, 4)).square().mean().backward()
    before = [(parameter.grad, parameter.grad.clone()) for parameter in model.parameters() if parameter.grad is not None]
    states.collect({"model": model, "optim": optimizer}, materialise=True)
    assert not optimizer.state
    for parameter, (gradient, value) in zip(model.parameters(), before, strict=True):
        assert parameter.grad is gradient
        assert torch.equal(gradient, value)


def test_collecting_a_fresh_optimizer_leaves_no_gradients_where_there_were_none() -> None:
    model, optimizer = pair()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    states.collect({"model": model, "optim": optimizer}, materialise=True)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(map(torch.equal, model.parameters(), before))
    assert [group["lr"] for group in optimizer.param_groups] == [0.1]


def test_the_collected_tensors_are_the_live_ones() -> None:
    model, optimizer = pair()
    update(model, optimizer)
    found = states.collect({"model": model, "optim": optimizer})
    assert found["model"]["0.weight"].data_ptr() == model.get_parameter("0.weight").data_ptr()
    moment = optimizer.state[model.get_parameter("0.weight")]["exp_avg"]
    assert found["optim"]["state"]["0.weight"]["exp_avg"].data_ptr() == moment.data_ptr()


def test_names_not_indices_are_the_keys_of_an_optimizer() -> None:
    model, optimizer = pair()
    keys = states.keys_of(states.collect({"model": model, "optim": optimizer}, materialise=True))
    wanted = {"model.0.weight", "optim.state.0.weight.exp_avg", "optim.state.2.bias.step", "optim.param_groups.0.lr"}
    assert wanted <= set(keys)


@pytest.mark.parametrize("steps", [0, 2])
def test_restoring_overwrites_a_fresh_and_a_used_optimizer_alike(steps: int) -> None:
    model, optimizer = pair()
    for _ in range(3):
        update(model, optimizer)
    saved = states.collect({"model": model, "optim": optimizer})
    other, theirs = pair()
    for _ in range(steps):
        update(other, theirs)
    states.restore({"model": other, "optim": theirs}, saved)
    for mine, copy in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, copy)
        assert set(theirs.state[copy]) == {"step", "exp_avg", "exp_avg_sq"}
        for name, value in optimizer.state[mine].items():
            assert torch.equal(theirs.state[copy][name], value), name


def test_an_optimizer_finds_its_own_module_among_several() -> None:
    one, two = pair(), pair(torch.optim.SGD, momentum=0.9)
    state = {"a": one[0], "b": two[0], "of b": two[1], "of a": one[1]}
    keys = states.keys_of(states.collect(state, materialise=True))
    assert "of a.state.0.weight.exp_avg" in keys
    assert "of b.state.0.weight.momentum_buffer" in keys


def test_an_optimizer_alone_is_refused_with_advice_when_collected_and_when_restored() -> None:
    _, optimizer = pair()
    for action in (states.collect, states.template, lambda state: states.restore(state, {"optim": {}})):
        with pytest.raises(UsageError, match="'optim' holds parameters of no module") as caught:
            action({"optim": optimizer})
        assert "put its module beside it" in caught.value.hint


@pytest.mark.parametrize("key", ["ckptctl.", "ckptctl.rng/0", "", None, 0, b"model", ("a",)])
def test_a_key_that_cannot_name_a_part_is_shown_in_the_error(key: Any) -> None:
    with pytest.raises(UsageError) as caught:
        states.collect({key: 1})
    assert repr(key) in caught.value.message


@pytest.mark.parametrize("key", ["ckptctl", "ckptctlx", "a.b", "Δ", " "])
def test_other_strings_name_a_part(key: str) -> None:
    assert states.collect({key: 1}) == {key: 1}


@pytest.mark.parametrize("value", [3, -1, 2.5, True, None, "text", "", b"bytes", (1, 2), [1, [2]], {"a": {"b": 1}}])
def test_plain_values_are_collected_as_they_are_and_replaced(value: Any) -> None:
    assert states.collect({"v": value}) == {"v": value}
    state: dict[str, Any] = {"v": "before", "kept": (held := torch.ones(1))}
    states.restore(state, {"v": value, "kept": held})
    assert state["v"] == value
    assert state["kept"] is held


def test_an_object_gets_what_its_state_dict_gave() -> None:
    holder = Holder({"epoch": 0})
    states.restore({"progress": holder}, {"progress": {"epoch": 7}})
    assert holder.state == {"epoch": 7}


@pytest.mark.parametrize(
    ("patterns", "passes"),
    [
        (["optim.*"], False),
        (["optim.*", "extra"], True),
        (["*"], True),
        (["optim.state.?.exp_avg", "extra"], True),
        (["optim", "extra"], False),
        (["OPTIM.*", "extra"], False),
        (["optim.state.[0-9].*", "ex*"], True),
        ([], False),
    ],
)
def test_patterns_cover_whole_keys_and_mind_the_case(patterns: list[str], passes: bool) -> None:
    keys = ["optim.state.0.exp_avg", "extra"]
    for saved, wanted, allowed in ((keys, [], "allow_unloaded"), ([], keys, "allow_missing")):
        other = "allow_missing" if allowed == "allow_unloaded" else "allow_unloaded"
        with pytest.raises(KeyMismatch):
            states.check_keys(saved, wanted, **{other: ["*"]})
        if passes:
            states.check_keys(saved, wanted, **{allowed: patterns})
        else:
            with pytest.raises(KeyMismatch):
                states.check_keys(saved, wanted, **{allowed: patterns})


def test_only_the_keys_that_no_pattern_covers_are_named() -> None:
    with pytest.raises(KeyMismatch) as caught:
        states.check_keys(["b", "old.x"], ["c", "new.x"], ["new.*"], ["old.*"])
    assert caught.value.message == "asked for and not in the checkpoint: c; in the checkpoint and loaded by nobody: b"


def test_equal_keys_pass_whatever_their_order() -> None:
    states.check_keys(["a", "b", "ckptctl.rng/0", "ckptctl.rng/1"], ["b", "a"])
    states.check_keys([], [])
