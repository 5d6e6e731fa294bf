"""One row of the mount table, and everything that was seen of one path."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckptctl.model.manifest import FilesystemIdentity

_NO_WRITES = frozenset({"ro", "emergency_ro", "shutdown"})


@dataclass(frozen=True)
class MountRow:
    """One row of `/proc/self/mountinfo`, all names unescaped.

    `root` is the folder of the file system that is mounted (not `/` for a bind mount or a subvolume); `tags` are the
    propagation fields; `type` holds the subtype too (`fuse.glusterfs`); `source` may be empty. Bytes that are no UTF-8
    are kept as surrogates, as `os.fsdecode` makes them. Field by field: proc_pid_mountinfo(5).
    """

    id: int
    parent: int
    major: int
    minor: int
    root: str
    mount_point: str
    options: tuple[str, ...]
    tags: tuple[str, ...]
    type: str
    source: str
    super_options: tuple[str, ...]

    @property
    def read_only(self) -> bool:
        """Whether the mount or its file system is read-only: each has its own option field, either is enough.

        Also where ext4 has stopped after an error: since Linux 6.15 it stays `rw` then, and adds a word of its own.
        """
        return "ro" in self.options or not _NO_WRITES.isdisjoint(self.super_options)

    @property
    def deleted(self) -> bool:
        """Whether the mounted folder has been removed; writes then give ENOENT."""
        return self.root.endswith("//deleted")

    def option(self, name: str) -> str | None:
        """Return the value of a file system option: "" for one without a value, None when it is not set."""
        for option in self.super_options:
            key, _, value = option.partition("=")
            if key == name:
                return value
        return None

    def identity_fields(self) -> dict[str, str]:
        """Return what identifies the volume. Bytes that are no UTF-8 become `\\xNN`, so that any JSON can hold it."""
        return {"type": _plain(self.type), "source": _plain(self.source), "root": _plain(self.root)}

    @property
    def identity(self) -> FilesystemIdentity:
        """What a manifest says of the volume."""
        from ckptctl.model.manifest import FilesystemIdentity  # here: it brings msgspec, and `check` does without

        return FilesystemIdentity(**self.identity_fields())


@dataclass(frozen=True)
class BlockDevice:
    """One device of a backing chain, as sysfs describes it.

    `transport` is `pcie`, `rdma`, `tcp`, `fc` or `loop` for NVMe, `iscsi`, `fc`, `sas`, `ata`, `usb`, `virtio`,
    `hypervisor` or `nvdimm` for other disks, "" where sysfs does not tell. Several transports of one namespace are joined by
    `+`, one that is not told is `unknown`, and `-local` is appended when the target has an address of this machine. `below`
    names the devices it is made of, and `kind` says how: `partition`, `lvm`, `crypt`, `multipath`, or the level of an md array.
    `nsid` is the number of an NVMe namespace, 0 where there is none.
    """

    name: str
    transport: str = ""
    model: str = ""
    backing_file: str = ""
    below: tuple[str, ...] = ()
    kind: str = ""
    nsid: int = 0


@dataclass(frozen=True)
class PathFacts:
    """What was seen of one path, by one process, at one moment.

    `asked` is the path as given, `real` has its symlinks resolved, `existing` is `real` or, where that is missing, its
    nearest existing ancestor; all else is about `existing`. `dangling_link` is the symlink through which `asked`
    points at something missing. `magic` is statfs's f_type. `writable_errno` is 0 when new files can be created as far
    as permissions say. Bytes are those of an unprivileged user, from f_frsize; inodes are None where the file system
    does not count them. `devices` is the backing chain, the device of the mount first; `backing` are the facts of the
    file behind a loop device. `server_is_local` says that the server of a network mount has an address of this machine.
    """

    asked: str
    real: str
    existing: str
    dangling_link: str
    mount: MountRow
    magic: int
    uid: int
    writable_errno: int
    total_bytes: int
    free_bytes: int
    total_inodes: int | None
    free_inodes: int | None
    devices: tuple[BlockDevice, ...] = ()
    backing: PathFacts | None = None
    server_is_local: bool = False

    @property
    def missing(self) -> bool:
        """Whether the path itself does not exist yet."""
        return self.existing != self.real

    @property
    def writable(self) -> bool:
        """Whether this user may create files there, as far as permissions and mount options say."""
        return self.writable_errno == 0

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> PathFacts:
        """Rebuild facts from `dataclasses.asdict` of them, also after a way through JSON."""
        fields = dict(data)
        fields["mount"] = MountRow(**_tuples(fields["mount"]))
        fields["devices"] = tuple(BlockDevice(**_tuples(device)) for device in fields["devices"])
        fields["backing"] = None if fields["backing"] is None else PathFacts.from_dict(fields["backing"])
        return PathFacts(**fields)


def _tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def _plain(name: str) -> str:
    return os.fsencode(name).decode("utf-8", "backslashreplace")
