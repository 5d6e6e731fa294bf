"""Implementations are found by name, and one that is missing or broken is named."""

from __future__ import annotations

from importlib import metadata

import pytest

from ckptctl import registry
from ckptctl.errors import PluginBroken


def test_the_built_in_ones_are_found_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert registry.names(registry.SCHEDULERS) == ["local", "slurm"]
    assert registry.names(registry.ENGINES) == ["posix"]
    assert registry.engine("posix", threads=2).name == "posix"
    monkeypatch.delenv("CKPTCTL_LOCAL_JOB", raising=False)
    assert registry.scheduler().name == "slurm"
    monkeypatch.setenv("CKPTCTL_LOCAL_JOB", "1")
    assert registry.scheduler().name == "local"


def test_an_unknown_name_is_refused_naming_the_known_ones() -> None:
    with pytest.raises(PluginBroken, match="no pbs in") as caught:
        registry.scheduler("pbs")
    assert "local, slurm" in caught.value.context
    assert caught.value.exit_code == 61


def test_one_that_does_not_load_is_named_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    point = metadata.EntryPoint("fast", "no.such.module:Engine", registry.ENGINES)
    monkeypatch.setattr(metadata, "entry_points", lambda **_: [point])
    with pytest.raises(PluginBroken, match=r"fast of ckptctl\.engines does not load: No module named 'no'"):
        registry.engine("fast")
