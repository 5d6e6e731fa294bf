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
    _get_fqns,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from ckptctl.errors import KeyMismatch, UsageError

OURS = "ckptctl."
"""Keys that begin so are ckptctl's own."""


def collect(state: Mapping[str, Any], *, materialise: bool = False) -> dict[str, Any]:
    """Return `state` as a state dict for DCP; tensors are the live ones, not copies.

    An optimizer that has not stepped yet has no state to save. `materialise` makes one, to learn its shapes for a load, and
    takes it away again: its first update stays what it was. Raises `UsageError` naming the key of an optimizer whose module is
    not in `state`.
    """
    found: dict[str, Any] = {}
    for key, value in state.items():
        _check_key(key)
        if isinstance(value, nn.Module):
            found[key] = get_model_state_dict(value)
        elif isinstance(value, torch.optim.Optimizer):
            fresh = not value.state
            with _left_as_found(value):
                found[key] = get_optimizer_state_dict(_module_of(key, value, state), value)
            if fresh and not materialise:
                found[key].pop("state", None)
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
    found = collect(state, materialise=True)
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


def set_apart(state: Mapping[str, Any], found: dict[str, Any], saved: Collection[str]) -> dict[str, dict[str, Any]]:
    """Take out of a template the optimizer state of parameters that had none when the checkpoint was saved.

    Returns it by the optimizer's key and the parameter's name, for `restore`, which gives these parameters none either. The
    state of an optimizer of which the checkpoint holds nothing at all stays in: it was asked for and is not there.
    """
    apart: dict[str, dict[str, Any]] = {}
    for key, value in state.items():
        if not isinstance(value, torch.optim.Optimizer):
            continue
        known = {name for name in saved if name.startswith(f"{key}.")}
        states = found[key].get("state", {})
        for name in list(states) if known else []:
            if not any(f"{key}.state.{name}.{entry}" in known for entry in states[name]):
                apart.setdefault(key, {})[name] = states.pop(name)
        if known and not states:
            found[key].pop("state", None)
    return apart


def not_saved(state: Mapping[str, Any], saved: Collection[str]) -> tuple[str, ...]:
    """Return the keys of the optimizers of which the checkpoint holds nothing at all."""
    optimizers = [key for key, value in state.items() if isinstance(value, torch.optim.Optimizer)]
    return tuple(key for key in optimizers if not any(name.startswith(f"{key}.") for name in saved))


def restore(
    state: MutableMapping[str, Any],
    loaded: Mapping[str, Any],
    apart: Mapping[str, Mapping[str, Any]] | None = None,
    absent: Collection[str] = (),
) -> None:
    """Put what was loaded where it belongs: in place for modules, optimizers, objects and tensors.

    `apart` is what `set_apart` took out; optimizers in `absent`, of which the checkpoint holds nothing, are left as they are.
    A plain value (an int, a string) can't be changed in place: it is replaced in `state` itself.
    """
    for key, value in list(state.items()):
        if isinstance(value, nn.Module):
            set_model_state_dict(value, loaded[key])
        elif isinstance(value, torch.optim.Optimizer):
            if key not in absent:
                _restore_optimizer(_module_of(key, value, state), value, loaded[key], (apart or {}).get(key, {}))
        elif _is_stateful(value):
            value.load_state_dict(loaded[key])
        elif not isinstance(value, torch.Tensor):
            state[key] = loaded[key]


def _restore_optimizer(
    module: nn.Module, optimizer: torch.optim.Optimizer, loaded: dict[str, Any], apart: Mapping[str, Any]
) -> None:
    """Load an optimizer; parameters in `apart` end up without state. DCP wants state for all, so they get some and lose it."""
    set_optimizer_state_dict(module, optimizer, {**loaded, "state": {**loaded.get("state", {}), **apart}})
    for name, parameter in module.named_parameters():
        if parameter in optimizer.state and _get_fqns(module, name) & set(apart):
            del optimizer.state[parameter]


def check_keys(
    saved: Collection[str],
    wanted: Collection[str],
    allow_missing: Sequence[str] = (),
    allow_unloaded: Sequence[str] = (),
    unloaded: Collection[str] | None = None,
) -> None:
    """Raise `KeyMismatch` naming the keys asked for and not saved, or saved and asked for by nobody.

    `allow_missing` and `allow_unloaded` are patterns (`optim.*`) of keys that may be. ckptctl's own keys may be unloaded.
    `unloaded` are the keys that no rank asked for, where ranks ask for different ones; this rank's alone, if not said.
    """
    missing = [key for key in sorted(set(wanted) - set(saved)) if not _matches(key, allow_missing)]
    left = not_asked_for(saved, wanted, allow_unloaded) if unloaded is None else sorted(unloaded)
    lines = []
    if missing:
        lines.append(f"asked for and not in the checkpoint: {_some(missing)}")
    if left:
        lines.append(f"in the checkpoint and loaded by nobody: {_some(left)}")
    if lines:
        raise KeyMismatch(
            "; ".join(lines),
            hint="pass the same state as was saved, or Checkpointer(allow_missing=…, allow_unloaded=…) with patterns",
        )


def not_asked_for(saved: Collection[str], wanted: Collection[str], allow_unloaded: Sequence[str] = ()) -> list[str]:
    """Return the saved keys that this rank does not ask for and that must be asked for by somebody."""
    left = sorted(set(saved) - set(wanted))
    return [key for key in left if not key.startswith(OURS) and not _matches(key, allow_unloaded)]


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
