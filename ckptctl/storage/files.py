"""Durable file operations: the only place where ckptctl creates, renames, links or fsyncs anything it relies on.

What the promises rest on, and where they end:

- *fsync of a file* makes its bytes and size survive a power loss on ext4, XFS, Lustre, GPFS and GlusterFS as far as the
  servers and disks below keep their own promise; on NFS it is a COMMIT to the server, so an `async` export can still lose it.
- *fsync of a folder* makes the names in it durable on ext4, XFS, Lustre, GPFS; on NFS it does nothing, because the server
  answers each namespace operation synchronously; on GlusterFS it reaches the bricks.
- *rename* is atomic for other clients on all of these; on object-store FUSE mounts it is not, and such mounts are refused
  for checkpoints (`SHARED_OBJECT`). A rename replayed over NFS may report ENOENT after it succeeded.
- *link* fails with EEXIST when the name exists, atomically on all of these. Where hard links are not offered
  (some FUSE file systems) an exclusively created claim file decides instead.

Every operation is announced to the observer before it happens (`observe`), so that a test or a drill can record the list
or end the process at any point of it. Errors of the operating system are turned into ours here, once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator

from ckptctl.errors import CkptctlError, OutOfSpace, StorageFault

Observer = Callable[[str, str], None]

_NO_LINK = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_observer: Observer | None = None


def observe(observer: Observer | None) -> None:
    """Have `observer(operation, path)` called before every durable operation of this process; None ends it.

    Operations are `create` (exclusive), `link`, `rename`, `fsync`, `mkdir`. An exception of the observer prevents the
    operation.
    """
    global _observer
    _observer = observer


def announce(operation: str, path: str) -> None:
    """Tell the observer that `operation` on `path` is next. Engines call it for what they do on descriptors."""
    if _observer is not None:
        _observer(operation, path)


@contextlib.contextmanager
def translated(path: str, doing: str) -> Iterator[None]:
    """Turn an `OSError` inside the block into `OutOfSpace` or `StorageFault`; `FileExistsError` passes through."""
    try:
        yield
    except FileExistsError:
        raise
    except OSError as exc:
        raise as_ours(exc, path, doing) from exc


def as_ours(exc: OSError, path: str, doing: str) -> CkptctlError:
    """Return our error for an `OSError` that happened while `doing` something to `path`."""
    what = f"cannot {doing}: {os.strerror(exc.errno) if exc.errno else exc}"
    if exc.errno in _FULL:
        return OutOfSpace(what, context=path, hint="free space or raise the quota; no complete checkpoint was touched")
    hint = {
        errno.EACCES: "give this user write permission on the checkpoint root",
        errno.EPERM: "give this user write permission on the checkpoint root",
        errno.EROFS: "the file system is mounted read-only here; `ckptctl check` says more",
        errno.ENOENT: "the folder is gone: was it moved, or is the mount missing on this node? see `ckptctl check`",
    }.get(exc.errno or 0, "`ckptctl check` on this node says what the path is; the storage's own log says why")
    return StorageFault(what, context=path, hint=hint)


def fsync_folder(path: str) -> None:
    """Make the names in a folder durable."""
    with translated(path, "fsync the folder"):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            announce("fsync", path)
            os.fsync(fd)
        finally:
            os.close(fd)


def make_folder(path: str, *, exist_ok: bool = False, private: bool = False) -> None:
    """Create one folder and make its name durable.

    The group keeps read and search, setgid and default ACLs are the parent's; a `private` one is its user's alone.
    """
    with translated(path, "create the folder"):
        announce("mkdir", path)
        try:
            os.mkdir(path, 0o700 if private else 0o777)
        except FileExistsError:
            if not exist_ok or not os.path.isdir(path):
                raise
            return
        mode = os.stat(path).st_mode
        if mode & 0o050 != 0o050 and not private:
            os.chmod(path, (mode & 0o7777) | 0o050)  # noqa: S103 - the group keeps read and search
    fsync_folder(os.path.dirname(path) or ".")


def create_in_staging(path: str, data: bytes) -> None:
    """Create a file under its final name inside staging, write and fsync it. The folder is fsynced by the caller, once.

    Staging as a whole is the temporary name, so no rename is spent here. A crash leaves a short file that nobody believes.
    Raises `FileExistsError` when the name is taken.
    """
    with translated(path, "write"):
        announce("create", path)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            _write_and_sync(fd, data, path)
        finally:
            os.close(fd)


def create_once(path: str, data: bytes) -> None:
    """Create `path` with its whole content, durably, unless it exists: of several creators exactly one wins.

    Made by `link()` from a fsynced temporary file in the same folder; the folder is fsynced before this returns. Raises
    `FileExistsError` for the losers. A reader never sees a part of the content.
    """
    folder = os.path.dirname(path)
    temporary = os.path.join(folder, f".{os.path.basename(path)}.{secrets.token_hex(4)}.tmp")
    create_in_staging(temporary, data)
    with translated(path, "create"):
        try:
            announce("link", path)
            os.link(temporary, path)
        except OSError as exc:
            if exc.errno not in _NO_LINK:
                remove_quietly(temporary)
                raise
            _claim_and_rename(temporary, path)
        else:
            remove_quietly(temporary)
    fsync_folder(folder)


def _claim_and_rename(temporary: str, path: str) -> None:
    """The way of `create_once` without hard links: whoever creates the claim may rename. A claim alone blocks the name."""
    claim = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.claim")
    try:
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        announce("create", claim)
        os.close(os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    except OSError:
        remove_quietly(temporary)
        raise
    announce("rename", path)
    os.rename(temporary, path)


def move(source: str, target: str) -> None:
    """Rename a file or folder to a name that nobody else uses, and make both folders' names durable.

    Raises `FileExistsError` when `target` is already there (checked first, and again by the kernel for a folder that is
    not empty), `StorageFault` when `source` is gone.
    """
    with translated(source, f"move to {target}"):
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        announce("rename", target)
        try:
            os.rename(source, target)
        except OSError as exc:
            if exc.errno == errno.ENOENT and os.path.lexists(target) and not os.path.lexists(source):
                pass  # a rename that NFS sent twice: the second found nothing to do
            elif exc.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from exc
            else:
                raise
    fsync_folder(os.path.dirname(target))
    if os.path.dirname(source) != os.path.dirname(target):
        with contextlib.suppress(StorageFault):  # the source's folder may be swept meanwhile; the target is what counts
            fsync_folder(os.path.dirname(source))


def read(path: str) -> bytes:
    """Return a small file's content, opened afresh (close-to-open file systems revalidate on open)."""
    with translated(path, "read"), open(path, "rb") as file:
        return file.read()


def names(folder: str) -> list[str]:
    """Return the names in a folder, sorted; an absent folder has none."""
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise as_ours(exc, folder, "list") from exc


def remove_tree(path: str) -> None:
    """Delete a folder that was first moved out of every reader's sight. What cannot be deleted is left for the next time."""
    shutil.rmtree(path, ignore_errors=True)


def _write_and_sync(fd: int, data: bytes, path: str) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    keep_group_read(fd)
    announce("fsync", path)
    os.fsync(fd)


def keep_group_read(fd: int) -> None:
    """Let the group read an open file of ours, whatever the umask: a team's root works across its users."""
    mode = os.fstat(fd).st_mode
    if not mode & 0o040:
        os.fchmod(fd, (mode & 0o7777) | 0o040)


def remove_quietly(path: str) -> None:
    """Remove a file of ours, if it can be removed."""
    with contextlib.suppress(OSError):
        os.unlink(path)
