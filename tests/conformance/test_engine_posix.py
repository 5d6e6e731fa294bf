"""The engine conformance suite on the POSIX engine, with and without O_DIRECT, and its own promises beyond the suite."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckptctl.errors import OutOfSpace
from ckptctl.saving.posix import PosixEngine, aligned_buffer
from ckptctl.testing.engine import CHECKS, MakeEngine

ENGINES: dict[str, MakeEngine] = {
    "direct": lambda: PosixEngine(threads=3),
    "one thread": lambda: PosixEngine(threads=1),
    "buffered": lambda: PosixEngine(direct=False),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_check(check: Callable[[MakeEngine, str], None], engine: str, tmp_path: Path) -> None:
    check(ENGINES[engine], str(tmp_path))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB that takes no O_DIRECT on older kernels."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a tmpfs")
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True, text=True, timeout=10
    )
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True, timeout=10)


@pytest.mark.parametrize("direct", [True, False])
def test_a_full_file_system_is_out_of_space_before_a_byte_is_written(small: Path, direct: bool) -> None:
    size = 6 * 1024 * 1024
    image = memoryview(aligned_buffer(size))[:size]
    folder = os.open(small, os.O_RDONLY)
    try:
        with pytest.raises(OutOfSpace):
            PosixEngine(direct=direct).write(folder, "big", image)
    finally:
        os.close(folder)


def _written(folder: Path, size: int = 20000) -> tuple[str, int, bool]:
    image = memoryview(aligned_buffer(size))[:size]
    image[:] = bytes(place % 251 for place in range(size))
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        proof = PosixEngine().write(descriptor, "x", image)
    finally:
        os.close(descriptor)
    return proof.route, proof.fallback_errno, (folder / "x").read_bytes() == image


def test_an_aligned_image_takes_the_direct_route_where_the_file_system_allows(tmp_path: Path) -> None:
    route, number, same = _written(tmp_path)
    assert same
    assert (route, number) in (("direct", 0), ("buffered", errno.EINVAL)), "the route is the one really taken"


def test_a_refusal_of_o_direct_at_open_falls_back_and_keeps_the_errno(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refuse(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_DIRECT:
            os.close(real(path, flags & ~os.O_DIRECT, mode, dir_fd=dir_fd))  # Linux may create the file and then refuse
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refuse)
    assert _written(tmp_path) == ("buffered", errno.EINVAL, True)


def test_a_refusal_of_o_direct_at_the_first_write_falls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = os.pwrite, []

    def refuse(fd: int, data: bytes, offset: int) -> int:
        if not asked:
            asked.append(offset)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", refuse)
    assert _written(tmp_path) == ("buffered", errno.EINVAL, True)


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, data[:4096] if len(data) > 4096 else data, offset))
    assert _written(tmp_path)[2]


def test_aligned_buffers_are_aligned_and_a_multiple_of_the_alignment() -> None:
    for size in (0, 1, 4096, 5000):
        buffer = aligned_buffer(size)
        assert len(buffer) % 4096 == 0
        assert len(buffer) >= max(size, 1)
        assert ctypes.addressof(ctypes.c_char.from_buffer(buffer)) % 4096 == 0
