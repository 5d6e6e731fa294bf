"""Durable file operations: who wins, what is announced, and what an errno becomes."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ckptctl.errors import OutOfSpace, StorageFault
from ckptctl.storage import files


@pytest.fixture
def operations() -> Iterator[list[tuple[str, str]]]:
    """What is announced while the test runs."""
    seen: list[tuple[str, str]] = []
    files.observe(lambda operation, path: seen.append((operation, os.path.basename(path))))
    yield seen
    files.observe(None)


def test_of_several_creators_exactly_one_wins_and_the_content_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "token.json"

    def attempt(number: int) -> int | None:
        try:
            files.create_once(str(target), f"{number}".encode() * 1000)
        except FileExistsError:
            return None
        return number

    with ThreadPoolExecutor(16) as pool:
        won = [number for number in pool.map(attempt, range(10, 42)) if number is not None]
    assert len(won) == 1
    assert target.read_bytes() == f"{won[0]}".encode() * 1000
    assert os.listdir(tmp_path) == ["token.json"]


def test_create_once_fsyncs_the_file_before_the_link_and_the_folder_after_it(
    tmp_path: Path, operations: list[tuple[str, str]]
) -> None:
    files.create_once(str(tmp_path / "a"), b"x")
    kinds = [kind for kind, _ in operations]
    assert kinds == ["create", "fsync", "link", "fsync"]
    assert operations[2] == ("link", "a")
    assert operations[3] == ("fsync", tmp_path.name)


@pytest.mark.parametrize("refusal", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_hard_links_a_claim_decides_and_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(refusal, os.strerror(refusal), target)

    monkeypatch.setattr(os, "link", refuse)
    files.create_once(str(tmp_path / "a"), b"first")
    with pytest.raises(FileExistsError):
        files.create_once(str(tmp_path / "a"), b"second")
    assert (tmp_path / "a").read_bytes() == b"first"


def test_a_claim_left_by_a_dead_creator_blocks_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EPERM, "no links", target)

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / ".a.claim").touch()
    with pytest.raises(FileExistsError):
        files.create_once(str(tmp_path / "a"), b"x")
    assert not (tmp_path / "a").exists(), "a claim without its file must never turn into two owners"


def test_a_file_in_staging_is_created_only_once(tmp_path: Path) -> None:
    files.create_in_staging(str(tmp_path / "a"), b"x")
    with pytest.raises(FileExistsError):
        files.create_in_staging(str(tmp_path / "a"), b"y")
    assert (tmp_path / "a").read_bytes() == b"x"


def test_a_move_never_replaces(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x").touch()
    with pytest.raises(FileExistsError):
        files.move(str(tmp_path / "a"), str(tmp_path / "b"))
    (tmp_path / "file").write_text("1")
    (tmp_path / "other").write_text("2")
    with pytest.raises(FileExistsError):
        files.move(str(tmp_path / "file"), str(tmp_path / "other"))
    assert (tmp_path / "other").read_text() == "2"


def test_a_move_makes_the_names_of_both_folders_durable(tmp_path: Path, operations: list[tuple[str, str]]) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "x").touch()
    files.move(str(tmp_path / "a" / "x"), str(tmp_path / "b" / "x"))
    assert operations == [("rename", "x"), ("fsync", "b"), ("fsync", "a")]


def test_moving_what_is_gone_is_a_storage_fault_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(StorageFault) as caught:
        files.move(str(tmp_path / "gone"), str(tmp_path / "b"))
    assert "gone" in caught.value.context


def test_an_observer_that_raises_prevents_the_operation(tmp_path: Path) -> None:
    def refuse(operation: str, path: str) -> None:
        raise RuntimeError(operation)

    files.observe(refuse)
    try:
        with pytest.raises(RuntimeError, match="create"):
            files.create_once(str(tmp_path / "a"), b"x")
        with pytest.raises(RuntimeError, match="mkdir"):
            files.make_folder(str(tmp_path / "b"))
    finally:
        files.observe(None)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_file_system_is_out_of_space(number: int) -> None:
    error = files.as_ours(OSError(number, "x"), "/shared/x", "write")
    assert isinstance(error, OutOfSpace)
    assert error.exit_code == 13
    assert error.context == "/shared/x"


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.EROFS, errno.EACCES, errno.ENOENT])
def test_any_other_errno_is_a_storage_fault_with_advice(number: int) -> None:
    error = files.as_ours(OSError(number, "x"), "/shared/x", "write")
    assert isinstance(error, StorageFault)
    assert os.strerror(number) in error.message
    assert error.hint


def test_the_group_may_read_and_search_what_is_created_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        files.make_folder(str(tmp_path / "d"))
        files.create_in_staging(str(tmp_path / "d" / "f"), b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(tmp_path / "d").st_mode) & 0o050 == 0o050
    assert stat.S_IMODE(os.stat(tmp_path / "d" / "f").st_mode) & 0o040


def test_names_of_an_absent_folder_are_none_and_of_a_file_a_fault(tmp_path: Path) -> None:
    assert files.names(str(tmp_path / "absent")) == []
    (tmp_path / "f").touch()
    with pytest.raises(StorageFault):
        files.names(str(tmp_path / "f"))


def test_a_rename_that_nfs_sent_twice_has_succeeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def twice(source: str, target: str) -> None:
        rename(source, target)
        rename(source, target)  # ENOENT: the first one did it

    (tmp_path / "a").mkdir()
    monkeypatch.setattr(os, "rename", twice)
    files.move(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "b").is_dir()
    with pytest.raises(StorageFault):
        files.move(str(tmp_path / "a"), str(tmp_path / "c"))


def test_a_private_folder_is_its_users_alone(tmp_path: Path) -> None:
    files.make_folder(str(tmp_path / "x"), private=True)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o700
