"""The POSIX engine: O_DIRECT from an aligned image, several threads, crc32c in the pass, honest fallback to buffered."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from concurrent.futures import ThreadPoolExecutor

from crc32c import crc32c

from ckptctl import events
from ckptctl.model.manifest import BLOCK_BYTES, WrittenFile, blocks_digest
from ckptctl.storage import files

ALIGNMENT_BYTES = 4096
"""Alignment of memory, offsets and lengths for O_DIRECT: what every file system in the type table accepts."""
_NO_PREALLOCATION = {errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL}
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def aligned_buffer(size_bytes: int) -> mmap.mmap:
    """Return zeroed private memory whose address is page-aligned and whose length is a multiple of the O_DIRECT alignment."""
    return mmap.mmap(-1, max(ALIGNMENT_BYTES, -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES))


class PosixEngine:
    """Writes one file image with `threads` threads in blocks of 8 MiB; `interfaces.Engine` is the contract.

    O_DIRECT needs an image at a page-aligned address (`aligned_buffer`); any other image, or a file system that refuses
    (EINVAL at open or at the first write), is written through the page cache, and the proof keeps the errno. The end of
    the file below the alignment goes through an aligned bounce page and the file is truncated to the image's length.
    """

    name = "posix"

    def __init__(self, *, threads: int = 4, direct: bool = True) -> None:
        self.threads = max(1, threads)
        self.direct = direct

    def write(self, dir_fd: int, name: str, image: memoryview) -> WrittenFile:
        """See `interfaces.Engine.write`."""
        if len(image) == 0 or not self.direct or not _is_aligned(image):
            return self._write(dir_fd, name, image, direct=False, fallback=0, create=True)
        try:
            return self._write(dir_fd, name, image, direct=True, fallback=0, create=True)
        except _DirectRefused as refused:
            events.emit(
                events.FALLBACK,
                f"{name}: the file system refuses O_DIRECT ({os.strerror(refused.errno)}); written through the page cache",
                file=name,
                errno=refused.errno,
            )
            return self._write(dir_fd, name, image, direct=False, fallback=refused.errno, create=not refused.created)

    def _write(self, dir_fd: int, name: str, image: memoryview, *, direct: bool, fallback: int, create: bool) -> WrittenFile:
        size = len(image)
        flags = os.O_WRONLY | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else os.O_TRUNC)
        with files.translated(name, "write the shard"):
            if create:
                files.announce("create", name)
            try:
                fd = os.open(name, flags | (os.O_DIRECT if direct else 0), 0o666, dir_fd=dir_fd)
            except OSError as exc:
                if direct and exc.errno == errno.EINVAL:
                    # Linux may have created the file before the file system refused the flag
                    raise _DirectRefused(exc.errno, created=_exists(dir_fd, name)) from exc
                raise
            try:
                files.keep_group_read(fd)
                _preallocate(fd, size)
                blocks = self._write_blocks(fd, image, direct=direct)
                if direct and size % ALIGNMENT_BYTES:
                    os.ftruncate(fd, size)
                files.announce("fsync", name)
                os.fsync(fd)
            finally:
                os.close(fd)
        return WrittenFile(name, size, blocks, "direct" if direct else "buffered", fallback)

    def _write_blocks(self, fd: int, image: memoryview, *, direct: bool) -> tuple[int, ...]:
        def one(offset: int) -> int:
            block = image[offset : offset + BLOCK_BYTES]
            _write_block(fd, block, offset, direct=direct)
            return int(crc32c(block))

        offsets = range(0, len(image), BLOCK_BYTES)
        if not offsets:
            return ()
        first = one(0)  # alone, so that a refusal of O_DIRECT is met once
        if len(offsets) == 1:
            return (first,)
        with ThreadPoolExecutor(max_workers=min(self.threads, len(offsets) - 1)) as pool:
            return (first, *pool.map(one, offsets[1:]))


class _DirectRefused(Exception):
    def __init__(self, number: int, *, created: bool) -> None:
        super().__init__(number)
        self.errno = number
        self.created = created


def _write_block(fd: int, block: memoryview, offset: int, *, direct: bool) -> None:
    whole = len(block) // ALIGNMENT_BYTES * ALIGNMENT_BYTES if direct else len(block)
    done = 0
    while done < whole:
        try:
            written = os.pwrite(fd, block[done:whole], offset + done)
        except OSError as exc:
            if direct and exc.errno == errno.EINVAL and offset + done == 0:
                raise _DirectRefused(exc.errno, created=True) from exc
            raise
        if direct and written % ALIGNMENT_BYTES:
            written -= written % ALIGNMENT_BYTES  # a short write: go on from the last whole page
            if not written:
                raise OSError(errno.EIO, "short unaligned write")
        done += written
    if whole < len(block):
        with mmap.mmap(-1, ALIGNMENT_BYTES) as bounce:
            bounce[: len(block) - whole] = bytes(block[whole:])
            try:
                written = os.pwrite(fd, bounce, offset + whole)
            except OSError as exc:
                if exc.errno == errno.EINVAL and offset + whole == 0:
                    raise _DirectRefused(exc.errno, created=True) from exc
                raise
            if written != ALIGNMENT_BYTES:
                raise OSError(errno.EIO, "short write of the last page")


def _preallocate(fd: int, size: int) -> None:
    """Reserve the space by `fallocate(2)` so that a full file system says so first; never libc's slow emulation."""
    if size and _libc.fallocate(fd, 0, 0, size) != 0:
        number = ctypes.get_errno()
        if number not in _NO_PREALLOCATION:
            raise OSError(number, os.strerror(number))


def _is_aligned(image: memoryview) -> bool:
    if image.readonly:
        return False
    address = ctypes.addressof(ctypes.c_char.from_buffer(image))
    return address % ALIGNMENT_BYTES == 0


def _exists(dir_fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except OSError:
        return False
    return True


def digest_file(path: str) -> tuple[int, str]:
    """Read a file once and return its size and digest as a manifest has them. Raises `StorageFault`."""
    blocks: list[int] = []
    size = 0
    with files.translated(path, "read"), open(path, "rb", buffering=0) as file:
        buffer = memoryview(bytearray(BLOCK_BYTES))
        while True:
            filled = 0
            while filled < BLOCK_BYTES and (count := file.readinto(buffer[filled:])):
                filled += count
            if not filled:
                break
            blocks.append(int(crc32c(buffer[:filled])))
            size += filled
    return size, blocks_digest(tuple(blocks))
