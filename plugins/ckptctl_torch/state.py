"""From what a user has (modules, optimizers, objects, values) to what DCP takes, and back. By names, never by indices."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from ckptctl.errors import KeyMismatch, UsageError

OURS = "ckptctl."
"""Keys that begin so are ckptctl's own."""


def collect(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return `state` as a state dict for DCP; tensors are the live ones, not copies.

    A fresh optimizer's state is made only to learn its shapes and is taken away again: its first update stays what it was.
    Raises `UsageError` naming the key of an optimizer whose module is not in `state`.
    """
    found: dict[str, Any] = {}
    for key, value in state.items():
        _check_key(key)
        if isinstance(value, nn.Module):
            found[key] = get_model_state_dict(value)
        elif isinstance(value, torch.optim.Optimizer):
            with _left_as_found(value):
                found[key] = get_optimizer_state_dict(_module_of(key, value, state), value)
        elif _is_stateful(value):
            found[key] = value.state_dict()
        else:
            found[key] = value
    return found


def template(state: Mapping[str, Any], saved: Metadata | None = None) -> dict[str, Any]:
    """Return the state dict that DCP loads into, in place.

    Objects (not modules or optimizers) may have grown other plain entries since: entries that `saved` has below such an
    object's key are asked for too.
    """
    found = collect(state)
    paths = saved.planner_data or {} if saved is not None else {}
    for key, path in paths.items():
        owner = state.get(str(path[0]))
        plain = saved is not None and isinstance(saved.state_dict_metadata.get(key), BytesStorageMetadata)
        if plain and len(path) > 1 and _is_stateful(owner) and not isinstance(owner, (nn.Module, torch.optim.Optimizer)):
            _offer(found, path)
    return found


def keys_of(state_dict: Mapping[str, Any]) -> list[str]:
    """Return the flat keys of a state dict, as DCP names them."""
    return list(flatten_state_dict(dict(state_dict))[0])


def restore(state: MutableMapping[str, Any], loaded: Mapping[str, Any]) -> None:
    """Put what was loaded where it belongs: in place for modules, optimizers, objects and tensors.

    A plain value (an int, a string) can't be changed in place: it is replaced in `state` itself.
    """
    for key, value in list(state.items()):
        if isinstance(value, nn.Module):
            set_model_state_dict(value, loaded[key])
        elif isinstance(value, torch.optim.Optimizer):
            set_optimizer_state_dict(_module_of(key, value, state), value, loaded[key])
        elif _is_stateful(value):
            value.load_state_dict(loaded[key])
        elif not isinstance(value, torch.Tensor):
            state[key] = loaded[key]


def check_keys(
    saved: Collection[str],
    wanted: Collection[str],
    allow_missing: Sequence[str] = (),
    allow_unloaded: Sequence[str] = (),
) -> None:
    """Raise `KeyMismatch` naming the keys asked for and not saved, or saved and asked for by nobody.

    `allow_missing` and `allow_unloaded` are patterns (`optim.*`) of keys that may be. ckptctl's own keys may be unloaded.
    """
    missing = [key for key in sorted(set(wanted) - set(saved)) if not _matches(key, allow_missing)]
    unloaded = [
        key for key in sorted(set(saved) - set(wanted)) if not key.startswith(OURS) and not _matches(key, allow_unloaded)
    ]
    lines = []
    if missing:
        lines.append(f"asked for and not in the checkpoint: {_some(missing)}")
    if unloaded:
        lines.append(f"in the checkpoint and loaded by nobody: {_some(unloaded)}")
    if lines:
        raise KeyMismatch(
            "; ".join(lines),
            hint="pass the same state as was saved, or Checkpointer(allow_missing=…, allow_unloaded=…) with patterns",
        )


def _check_key(key: object) -> None:
    if not isinstance(key, str) or not key or key.startswith(OURS):
        raise UsageError(f"{key!r} cannot name a part of the state", hint=f"use a string that does not begin with {OURS!r}")


def _is_stateful(value: object) -> bool:
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def _module_of(key: str, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> nn.Module:
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for value in state.values():
        if isinstance(value, nn.Module) and held <= {id(parameter) for parameter in value.parameters()}:
            return value
    raise UsageError(
        f"the optimizer {key!r} holds parameters of no module in the state",
        hint='put its module beside it: {"model": model, "optim": optim}',
    )


@contextmanager
def _left_as_found(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Leave a fresh optimizer fresh. DCP makes state by a step with zero gradients, which leaves `step` at 1 (torch 2.13)."""
    if optimizer.state:
        yield
        return
    gradients = [(parameter, parameter.grad) for group in optimizer.param_groups for parameter in group["params"]]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        optimizer.state.clear()
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _offer(found: dict[str, Any], path: tuple[Any, ...]) -> None:
    place: Any = found
    for step in path[:-1]:
        if not isinstance(place, dict):
            return
        place = place.setdefault(step, {})
    if isinstance(place, dict):
        place.setdefault(path[-1], None)


def _matches(key: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns)


def _some(keys: list[str], limit: int = 8) -> str:
    return ", ".join(keys[:limit]) + (f" and {len(keys) - limit} more" if len(keys) > limit else "")
