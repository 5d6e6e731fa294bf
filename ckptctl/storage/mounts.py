"""Where a path lives: its mount row, its file system, what is behind it. Linux only; looks, and changes nothing.

The row is found by the mount id of an open descriptor. Never by the longest mount point that fits (with stacked mounts
the first match is the hidden one), never by device number (files of overlayfs and btrfs report another than their row).
Everything here can hang on a dead mount: a caller that must not goes through `ckptctl.checks.path`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptctl.errors import StorageFault, UsageError
from ckptctl.model.mount import BlockDevice, MountRow, PathFacts
from ckptctl.storage import addresses
from ckptctl.storage.devices import backing_chain

if TYPE_CHECKING:
    from ckptctl.model.manifest import FilesystemIdentity

AUTOFS_MAGIC = 0x0187
_MOUNTINFO = "/proc/self/mountinfo"
_NETWORK_SERVERS = ("nfs", "nfs4", "cifs", "smb3")  # types whose `addr=` is the one server that holds the bytes
_LOOP_DEPTH = 3
_AT_FDCWD = -100
_AT_EACCESS = 0x200
_libc = ctypes.CDLL(None, use_errno=True)

_ESCAPE = re.compile(rb"\\([0-3][0-7]{2})")


# --- the mount table --------------------------------------------------------------------------------------------------


def parse_row(line: bytes) -> MountRow:
    """Parse one row of mountinfo. Raises `ValueError` for a row that is not understood to the end: it is never guessed.

    `id parent major:minor root mount_point options [tag…] - type source super_options`. Fields are separated by exactly
    one space, so that an empty source is two of them. Options are split before they are unescaped: overlayfs writes a
    comma inside a value as `\\054`.
    """
    fields = line.rstrip(b"\n").split(b" ")
    try:
        dash = fields.index(b"-", 6)
    except ValueError:
        raise ValueError(f"no separator after the mount options: {line!r}") from None
    tail = b" ".join(fields[dash + 1 :]).split(b" ", 2)  # some file systems print spaces in their options
    device = fields[2].split(b":")
    numbers = [*fields[:2], *device]
    if len(tail) < 2 or len(device) != 2 or not all(number.isdigit() for number in numbers):
        raise ValueError(f"not a row of the mount table: {line!r}")
    if not fields[3] or not fields[4] or not tail[0]:
        raise ValueError(f"a row without root, mount point or type: {line!r}")
    ids = [int(number) for number in numbers]
    return MountRow(
        id=ids[0],
        parent=ids[1],
        major=ids[2],
        minor=ids[3],
        root=_unescape(fields[3]),
        mount_point=_unescape(fields[4]),
        options=_options(fields[5]),
        tags=tuple(_unescape(tag) for tag in fields[6:dash]),
        type=_unescape(tail[0]),
        source=_unescape(tail[1]),
        super_options=_options(tail[2] if len(tail) == 3 else b""),
    )


def find_row(table: bytes, mount_id: int) -> MountRow | None:
    """Return the row of one mount id, None when the table has none. Other rows are not looked at, broken or not.

    Raises `ValueError` when the row itself is not understood.
    """
    wanted = b"%d " % mount_id
    for line in table.split(b"\n"):
        if line.startswith(wanted):
            return parse_row(line)
    return None


def _unescape(field: bytes) -> str:
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field))


def _options(field: bytes) -> tuple[str, ...]:
    return tuple(_unescape(option) for option in field.split(b",")) if field else ()


def _row_of(fd: int) -> MountRow:
    """Return the row of the mount that an open descriptor is on."""
    with open(f"/proc/self/fdinfo/{fd}", "rb") as file:
        found = re.search(rb"^mnt_id:\s*(\d+)$", file.read(), re.MULTILINE)
    if found is None:
        raise StorageFault("the kernel does not tell the mount of an open file", hint="is /proc mounted?")
    for _ in range(3):  # a table that changes while it is read can lack a row that is there
        with open(_MOUNTINFO, "rb") as file:
            table = file.read()
        try:
            row = find_row(table, int(found[1]))
        except ValueError as exc:
            raise StorageFault(f"a mount row that ckptctl does not understand: {exc}", context=_MOUNTINFO) from exc
        if row is not None:
            return row
    raise StorageFault(
        f"mount {int(found[1])} is not in the mount table: it was detached, or lies outside this root",
        context=_MOUNTINFO,
        hint="leave the folder and enter it again, or mount it again",
    )


def row_at(where: str | int) -> MountRow:
    """Return the row of the mount that an existing path, or an open descriptor, is on.

    Raises `StorageFault`, also for a path that does not exist.
    """
    with _faults(str(where)):
        if isinstance(where, int):
            return _row_of(where)
        fd = os.open(where, os.O_PATH | os.O_CLOEXEC)
        try:
            return _row_of(fd)
        finally:
            os.close(fd)


def identity(where: str | int) -> FilesystemIdentity:
    """Return type, source and root of that mount.

    Two nodes with the same identity may share the volume; with different ones they hardly do. It proves nothing: one
    address can be two servers. Raises like `row_at`.
    """
    return row_at(where).identity


def place(path: str) -> tuple[str, str]:
    """Return the type of the mount that an existing path is on, and its folder as the file system's source names it.

    The same in a container that binds a part of the mount elsewhere: `/lustre/team/run` of `server:/scratch` and `/ckpt/run`
    of a bind of its `team` are both `server:/scratch/team/run`. Raises like `row_at`.
    """
    real = os.path.realpath(path)
    row = row_at(real)
    inner = os.path.join(row.root, os.path.relpath(real, row.mount_point))
    return row.type, row.identity.source.rstrip("/") + os.fsencode(os.path.normpath(inner)).decode("utf-8", "backslashreplace")


# --- one path ---------------------------------------------------------------------------------------------------------


def examine(path: str) -> PathFacts:
    """Look at a path as this user, in this mount namespace, without creating anything.

    A missing path is looked at by its nearest existing ancestor; an automount is triggered once. A path that can't be
    reached (no permission, stale, not connected) is never judged by an ancestor: that raises `StorageFault`, whose
    `__cause__` is the `OSError`. Can hang.
    """
    if not path or "\0" in path:
        raise UsageError(f"not a path: {path!r}")
    return _examine(path, _LOOP_DEPTH)


def _examine(path: str, loop_depth: int) -> PathFacts:
    with _faults(path):
        real = os.path.realpath(path)
        fd, existing = _open_nearest(real)
        if _magic(fd) == AUTOFS_MAGIC:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.stat(os.path.join(existing, "."))  # O_PATH alone does not mount it
            fd, existing = _open_nearest(real)
        try:
            row = _row_of(fd)
            space = os.fstatvfs(fd)
            unit = space.f_frsize or space.f_bsize
            devices = backing_chain(row)
            return PathFacts(
                asked=path,
                real=real,
                existing=existing,
                dangling_link=_dangling_link(path) if existing != real else "",
                mount=row,
                magic=_magic(fd),
                uid=os.geteuid(),
                writable_errno=_writable_errno(fd) or (errno.EROFS if row.read_only else 0),  # ext4's stop is in the row alone
                total_bytes=space.f_blocks * unit,
                free_bytes=space.f_bavail * unit,
                total_inodes=space.f_files or None,
                free_inodes=space.f_favail if space.f_files else None,
                devices=devices,
                backing=_behind_loop(devices, loop_depth),
                server_is_local=_server_is_local(row),
            )
        finally:
            os.close(fd)


@contextlib.contextmanager
def _faults(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        hint = {
            errno.EACCES: "check as the user of the job: this one may not enter it",
            errno.ENOENT: "the folder does not exist",
            errno.ESTALE: "the server has lost this mount: mount it again",
            errno.ENOTCONN: "the client of this mount has ended: mount it again",
        }.get(exc.errno or 0, "look at the mount, its client and the kernel's log on this node")
        raise StorageFault(f"can't look at the path: {exc.strerror}", context=path, hint=hint) from exc


def _open_nearest(real: str) -> tuple[int, str]:
    at = real
    while True:
        try:
            return os.open(at, os.O_PATH | os.O_CLOEXEC), at
        except (FileNotFoundError, NotADirectoryError):
            if at == "/":
                raise
            at = os.path.dirname(at)


def _dangling_link(path: str) -> str:
    """Return the symlink on the way along `path` whose target is missing; "" when there is none."""
    at = os.path.abspath(path)
    found = ""
    while at not in ("/", "//"):
        if os.path.islink(at) and not os.path.exists(at):
            found = at
        at = os.path.dirname(at)
    return found


def _magic(fd: int) -> int:
    # os.statvfs has no f_type. It is the first word of struct statfs on every 64-bit Linux but s390x, where the value
    # read disagrees with every table entry, and the path is refused as UNKNOWN.
    buffer = ctypes.create_string_buffer(512)
    if _libc.fstatfs(fd, buffer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF)


def _writable_errno(fd: int) -> int:
    # By number, because os.access only says no; through /proc, because the name may have changed since it was opened.
    if not stat.S_ISDIR(os.fstat(fd).st_mode):
        return errno.ENOTDIR
    name = f"/proc/self/fd/{fd}".encode()
    failed = _libc.faccessat(_AT_FDCWD, name, os.W_OK | os.X_OK, _AT_EACCESS)
    return ctypes.get_errno() if failed else 0


def _server_is_local(row: MountRow) -> bool:
    """Whether the server's address is one of this machine, by the kernel's tables of local addresses."""
    address = row.option("addr") or ""
    return row.type in _NETWORK_SERVERS and bool(address) and addresses.is_own(address)


def _behind_loop(devices: tuple[BlockDevice, ...], depth: int) -> PathFacts | None:
    """Return the facts of the one file behind the chain's loop devices; None where it can't be told from here.

    It is never looked for by the name that the kernel gives a removed file: another may have that name.
    """
    files = {device.backing_file for device in devices if device.name.startswith("loop") and not device.below}
    if depth == 0 or len(files) != 1 or any(not file or file.endswith(" (deleted)") for file in files):
        return None
    try:
        facts = _examine(files.pop(), depth - 1)
    except StorageFault:
        return None
    return None if facts.missing else facts
