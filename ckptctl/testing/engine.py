"""The conformance suite for implementations of `ckptctl.interfaces.Engine`.

Call every function of `CHECKS` with a function that makes the engine and an empty folder on the file system it is to write
to. A check raises `AssertionError` saying what is wrong. No test framework is needed.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ckptctl.errors import CkptctlError
from ckptctl.interfaces import Engine
from ckptctl.model.manifest import BLOCK_BYTES, WrittenFile
from ckptctl.saving.posix import aligned_buffer, digest_file
from ckptctl.storage import files

ROUTES = {"direct", "buffered", "gds", "compat"}
SIZES = (0, 1, 511, 4095, 4096, 4097, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES + 4096 + 13)
MakeEngine = Callable[[], Engine]


def check_every_size(make: MakeEngine, folder: str) -> None:
    """A file of any size has exactly the image's bytes, and the proof says so."""
    engine = make()
    for size in SIZES:
        image = _image(size, seed=size)
        proof = _write(engine, folder, f"size-{size}", image)
        _compare(folder, proof, image)


def check_any_memory(make: MakeEngine, folder: str) -> None:
    """Images that are not aligned, or can't be changed, are written as well."""
    engine, size = make(), BLOCK_BYTES + 777
    whole = _image(size + 64, seed=3)
    for name, image in (("shifted", whole[13 : 13 + size]), ("readonly", memoryview(bytes(whole[:size])))):
        _compare(folder, _write(engine, folder, name, image), image)


def check_image_unchanged(make: MakeEngine, folder: str) -> None:
    """The image is the caller's: it is the same after the write."""
    image = _image(BLOCK_BYTES + 5, seed=4)
    before = zlib.crc32(image)
    _write(make(), folder, "unchanged", image)
    _expect(zlib.crc32(image) == before, "the engine changed the image")


def check_name_taken(make: MakeEngine, folder: str) -> None:
    """A name that exists is refused and its content stays."""
    with open(os.path.join(folder, "taken"), "wb") as file:
        file.write(b"somebody's")
    try:
        _write(make(), folder, "taken", _image(5000, seed=5))
    except (FileExistsError, CkptctlError):
        pass
    else:
        raise AssertionError("the engine wrote over a file that existed")
    with open(os.path.join(folder, "taken"), "rb") as file:
        _expect(file.read() == b"somebody's", "the engine changed a file that existed")


def check_side_by_side(make: MakeEngine, folder: str) -> None:
    """One engine writes several files at the same time."""
    engine = make()
    images = [_image(BLOCK_BYTES + number, seed=number) for number in range(6)]
    with ThreadPoolExecutor(len(images)) as pool:
        jobs = [pool.submit(_write, engine, folder, f"side-{number}", image) for number, image in enumerate(images)]
        for job, image in zip(jobs, images, strict=True):
            _compare(folder, job.result(), image)


def check_announced(make: MakeEngine, folder: str) -> None:
    """The exclusive create and the fsync are announced, in this order, before they happen."""
    seen: list[str] = []
    files.observe(lambda operation, path: seen.append(operation) if os.path.basename(path) == "announced" else None)
    try:
        _write(make(), folder, "announced", _image(5000, seed=6))
    finally:
        files.observe(None)
    _expect(seen[:1] == ["create"] and seen[-1:] == ["fsync"], f"announced: {seen}")


def check_group_reads(make: MakeEngine, folder: str) -> None:
    """The group can read the file, whatever the umask."""
    before = os.umask(0o077)
    try:
        _write(make(), folder, "for-the-group", _image(5000, seed=8))
    finally:
        os.umask(before)
    _expect(bool(os.stat(os.path.join(folder, "for-the-group")).st_mode & 0o040), "the group can't read the file")


def check_folder_gone(make: MakeEngine, folder: str) -> None:
    """A folder that was removed is an error of ours, not of the operating system."""
    path = os.path.join(folder, "gone")
    os.mkdir(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.rmdir(path)
        make().write(descriptor, "x", _image(5000, seed=7))
    except CkptctlError:
        return
    finally:
        os.close(descriptor)
    raise AssertionError("a write into a removed folder succeeded")


CHECKS: tuple[Callable[[MakeEngine, str], None], ...] = (
    check_every_size,
    check_any_memory,
    check_image_unchanged,
    check_name_taken,
    check_side_by_side,
    check_announced,
    check_group_reads,
    check_folder_gone,
)
"""All checks; each is independent of the others."""


def _image(size: int, *, seed: int) -> memoryview:
    image = memoryview(aligned_buffer(size))[:size]
    pattern = bytes((seed * 37 + place * (seed % 7 + 1)) % 253 for place in range(8191))
    for offset in range(0, size, len(pattern)):
        part = pattern[: size - offset]
        image[offset : offset + len(part)] = part
    return image


def _write(engine: Engine, folder: str, name: str, image: memoryview) -> WrittenFile:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return engine.write(descriptor, name, image)
    finally:
        os.close(descriptor)


def _compare(folder: str, proof: WrittenFile, image: memoryview) -> None:
    path = os.path.join(folder, proof.name)
    with open(path, "rb") as file:
        _expect(file.read() == image, f"{proof.name}: the file's bytes are not the image's")
    _expect(proof.size_bytes == len(image), f"{proof.name}: the proof says {proof.size_bytes} bytes, not {len(image)}")
    _expect(proof.digest == digest_file(path)[1], f"{proof.name}: the proof's checksums are not the file's")
    _expect(proof.route in ROUTES, f"{proof.name}: unknown route {proof.route!r}")


def _expect(right: bool, what: str) -> None:
    if not right:
        raise AssertionError(what)
