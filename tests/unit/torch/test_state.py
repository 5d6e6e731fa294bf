"""From a user's objects to a state dict and back: by names, with every mismatch named, and without side effects."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ckptctl_torch import state as states
from torch import nn

from ckptctl.errors import KeyMismatch, UsageError


def trained(seed: int, steps: int, observe: Any = None) -> list[float]:
    """Train a small model and return its losses; `observe(model, optimizer)` is called before the first step."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        if observe is not None and step in (0, 3):
            observe(model, optimizer)
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_looking_at_the_state_changes_no_later_step() -> None:
    """DCP makes a fresh optimizer's state by a step of its own, which would leave `step` at 1."""
    plain = trained(3, 20)
    assert (
        trained(3, 20, lambda model, optimizer: states.collect({"model": model, "optim": optimizer}, materialise=True)) == plain
    )


def test_a_fresh_optimizer_stays_fresh_and_gradients_stay() -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3)).sum().backward()
    gradient = model.weight.grad
    found = states.collect({"model": model, "optim": optimizer}, materialise=True)
    assert "optim.state.weight.exp_avg" in states.keys_of(found)
    assert not optimizer.state
    assert model.weight.grad is gradient


def test_an_optimizer_without_its_module_is_refused_by_name() -> None:
    optimizer = torch.optim.AdamW(nn.Linear(3, 3).parameters())
    with pytest.raises(UsageError, match="'optim' holds parameters of no module"):
        states.collect({"model": nn.Linear(3, 3), "optim": optimizer})


@pytest.mark.parametrize("key", ["", "ckptctl.x", 3])
def test_keys_that_cannot_name_a_part_are_refused(key: Any) -> None:
    with pytest.raises(UsageError, match="cannot name"):
        states.collect({key: 1})


def test_every_mismatched_key_is_named() -> None:
    with pytest.raises(KeyMismatch) as caught:
        states.check_keys(["a", "only-saved", "ckptctl.rng/0"], ["a", "only-wanted"])
    assert "asked for and not in the checkpoint: only-wanted" in caught.value.message
    assert "loaded by nobody: only-saved" in caught.value.message
    assert "ckptctl.rng" not in caught.value.message
    assert caught.value.exit_code == 60


def test_mismatches_that_the_user_allows_pass() -> None:
    states.check_keys(["a", "old.x"], ["a", "new.y"], allow_missing=["new.*"], allow_unloaded=["old.*"])
    with pytest.raises(KeyMismatch):
        states.check_keys(["a", "old.x"], ["a", "new.y"], allow_missing=["new.*"])


def test_of_many_mismatches_the_first_few_are_named_and_the_rest_counted() -> None:
    with pytest.raises(KeyMismatch, match="and 12 more"):
        states.check_keys([], [f"k{number:02d}" for number in range(20)])


def test_plain_values_are_replaced_and_tensors_are_loaded_in_place() -> None:
    tensor = torch.zeros(2)
    state: dict[str, Any] = {"step": 0, "name": "a", "tensor": tensor}
    states.restore(state, {"step": 5, "name": "b", "tensor": tensor})
    assert (state["step"], state["name"]) == (5, "b")
    assert state["tensor"] is tensor
