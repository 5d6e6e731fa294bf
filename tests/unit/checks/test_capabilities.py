"""The probe: what a folder can really do, found by doing it, with nothing left behind."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptctl.checks import capabilities
from ckptctl.checks.capabilities import PROBE_PREFIX, probe
from ckptctl.errors import DeadlineExceeded


def names(folder: Path, deadline_s: float = 20) -> list[str]:
    """Probe a folder and return the names of the findings."""
    return [finding.name for finding in probe(str(folder), deadline_s=deadline_s)]


def test_a_good_folder_is_told_so_with_a_rate_and_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    (found, *_) = probe(str(tmp_path), deadline_s=20)
    assert found.name == "probed"
    assert found.facts["bytes_per_s"] > 0
    assert os.listdir(tmp_path) == ["mine"]


def broken_exclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have exclusive creation succeed on a file that exists."""
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, flags, mode=0o777, **more: real(path, flags & ~os.O_EXCL, mode, **more))


def copying_rename(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have rename copy, as object stores behind a folder do."""

    def rename(source: str, target: str) -> None:
        if os.path.isdir(source):
            os.mkdir(target)
        else:
            shutil.copy(source, target)

    monkeypatch.setattr(os, "rename", rename)


def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have hard links refused."""

    def link(source: str, target: str) -> None:
        raise OSError(errno.EPERM, "no links", target)

    monkeypatch.setattr(os, "link", link)


def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the file system be full."""

    def write(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(capabilities, "_write", write)


@pytest.mark.parametrize(
    ("harm", "expected"),
    [
        (broken_exclusive, "exclusive-create-broken"),
        (copying_rename, "rename-not-atomic"),
        (no_links, "no-link"),
        (full, "no-space"),
    ],
)
def test_what_a_save_needs_and_is_not_there_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[[pytest.MonkeyPatch], None], expected: str
) -> None:
    harm(monkeypatch)
    found = {finding.name: finding.severity.value for finding in probe(str(tmp_path), deadline_s=20)}
    assert found[expected] == ("info" if expected == "no-link" else "error")
    assert ("probed" in found) is (expected == "no-link")
    assert os.listdir(tmp_path) == []


def test_a_probe_that_hangs_is_killed_and_its_folder_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "rename", lambda source, target: time.sleep(600))
    begun = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        probe(str(tmp_path), deadline_s=0.5)
    assert time.monotonic() - begun < 20
    assert os.listdir(tmp_path) == []


def test_leftovers_of_killed_probes_are_removed_when_they_are_old_and_nothing_else_is(tmp_path: Path) -> None:
    old, young = tmp_path / f"{PROBE_PREFIX}old", tmp_path / f"{PROBE_PREFIX}young"
    other, file = tmp_path / "ckptctl-probe-not", tmp_path / f"{PROBE_PREFIX}file"
    for folder in (old, young, other):
        folder.mkdir()
        (folder / "x").touch()
    file.touch()
    for path in (old, other, file):
        os.utime(path, (1, 1))
    assert "probed" in names(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(path.name for path in (young, other, file))
