"""The file systems that ckptctl knows: the type in the mount table, the magic it must report, the class it gives.

Magic numbers: linux/magic.h, and for out-of-tree clients their own headers or ROMIO's ad_fstype.c. A type that is not
here is UNKNOWN, and so is one whose magic disagrees: new names are refused until somebody has looked at them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ckptctl.model.verdict import Placement


@dataclass(frozen=True)
class FileSystem:
    """One type: its class before mount options and devices are looked at, its magics, and what to know about it."""

    placement: Placement
    magics: frozenset[int]
    note: str = ""


_FUSE = 0x65735546
_TMPFS = 0x01021994
_RAMFS = 0x858458F6
_SMB = (0xFF534D42, 0xFE534D42, 0x517B)  # which one depends on the dialect, not on the type's name


def _all(placement: Placement, table: dict[str, tuple[int, ...]], note: str = "") -> dict[str, FileSystem]:
    return {name: FileSystem(placement, frozenset(magics), note) for name, magics in table.items()}


def _fuse(placement: Placement, names: str, note: str = "") -> dict[str, FileSystem]:
    return _all(placement, {f"fuse.{name}": (_FUSE,) for name in names.split()}, note)


FILE_SYSTEMS: dict[str, FileSystem] = {
    # Parallel: every node mounts the same storage, and fsync reaches it.
    **_all(
        Placement.SHARED_PARALLEL,
        {
            "lustre": (0x0BD00BD0,),
            "gpfs": (0x47504653,),
            "beegfs": (0x19830326,),
            "fhgfs": (0x19830326,),
            "wekafs": (0x18031977,),
            "ceph": (0x00C36400,),
            "panfs": (0xAAD7AAEA,),
            "pvfs2": (0x20030528,),
            "scatefs": (0x53544653,),
        },
    ),
    **_fuse(Placement.SHARED_PARALLEL, "ceph-fuse ceph"),
    # One server or a set of servers behind one protocol.
    **_all(Placement.SHARED_SERVER, {"nfs": (0x6969,), "nfs4": (0x6969,)}),
    **_all(
        Placement.SHARED_SERVER,
        {"cifs": _SMB, "smb3": _SMB, "smbfs": _SMB},
        "SMB can't rename over a file that another node has open",
    ),
    **_all(
        Placement.SHARED_SERVER,
        {"afs": (0x5346414F, 0x6B414653)},
        "AFS writes when a file is closed, and refuses when the job's token has expired",
    ),
    **_fuse(Placement.SHARED_SERVER, "glusterfs moosefs mfs lizardfs saunafs quobyte"),
    # Visible everywhere before it is safe.
    **_fuse(
        Placement.SHARED_WRITEBACK,
        "juicefs",
        "with --writeback, which the mount table does not show, bytes stay on this node's disk until they are uploaded",
    ),
    **_fuse(
        Placement.SHARED_WRITEBACK,
        "daos dfuse",
        "dfuse caches writes on this node unless its container says otherwise, which the mount table does not show",
    ),
    **_fuse(
        Placement.SHARED_WRITEBACK,
        "alluxio alluxio-fuse",
        "Alluxio may hold written files only in the memory of its workers until they are persisted",
    ),
    **_fuse(Placement.SHARED_WRITEBACK, "sshfs", "sshfs does not promise that fsync has reached the disk of its server"),
    # Object stores behind a folder: no atomic rename, and not every fsync makes an object.
    **_fuse(
        Placement.SHARED_OBJECT,
        "s3fs goofys geesefs mountpoint-s3 gcsfuse blobfuse blobfuse2 rclone ossfs ossfs2 cosfs obsfs tosfs",
        "an object store behind a folder: it renames by copying, so a save can't become complete in one step",
    ),
    # Disks; the devices below decide between NODE_LOCAL, NODE_ATTACHED_NETWORK_BLOCK and VOLATILE.
    **_all(
        Placement.NODE_LOCAL,
        {
            "ext2": (0xEF53,),
            "ext3": (0xEF53,),
            "ext4": (0xEF53,),
            "xfs": (0x58465342,),
            "btrfs": (0x9123683E,),
            "zfs": (0x2FC12FC1,),
            "f2fs": (0xF2F52010,),
            "bcachefs": (0xCA451A4E,),
            "jfs": (0x3153464A,),
            "reiserfs": (0x52654973,),
            "nilfs2": (0x3434,),
            "ntfs3": (0x7366746E,),
            "exfat": (0x2011BAB0,),
            "vfat": (0x4D44,),
        },
    ),
    # Memory.
    **_all(
        Placement.VOLATILE,
        {
            "tmpfs": (_TMPFS,),
            "ramfs": (_RAMFS,),
            "rootfs": (_TMPFS, _RAMFS),
            "devtmpfs": (_TMPFS, _RAMFS),
            "hugetlbfs": (0x958458F6,),
        },
    ),
    # A layer over other folders.
    **_all(Placement.CONTAINER_EPHEMERAL, {"overlay": (0x794C7630,), "aufs": (0x61756673,), "unionfs": (0xF15F083D,)}),
    **_fuse(Placement.CONTAINER_EPHEMERAL, "fuse-overlayfs mergerfs unionfs unionfs-fuse"),
    # Images that can't be written.
    **_all(
        Placement.READ_ONLY,
        {"squashfs": (0x73717368,), "erofs": (0xE0F5E1E2,), "iso9660": (0x9660,), "cramfs": (0x28CD3D45,)},
    ),
    **_fuse(Placement.READ_ONLY, "squashfuse squashfuse_ll"),
    **_all(Placement.AUTOFS_PENDING, {"autofs": (0x0187,)}),
    # Shared or not, by how they were set up: only a proof across nodes tells.
    **_all(
        Placement.UNKNOWN,
        {
            "gfs2": (0x01161970,),
            "ocfs2": (0x7461636F,),
            "vxfs": (0xA501FCF5,),
            "snfs": (0xBEEFDEAD,),
            "cvfs": (0xBEEFDEAD,),
            "acfs": (0x61636673,),
            "ibrix": (0x013111A8,),
        },
        "a cluster file system that can also be used by one node alone",
    ),
    **_all(
        Placement.UNKNOWN,
        {
            "9p": (0x01021997,),
            "virtiofs": (_FUSE,),
            "vboxsf": (0x786F4256,),
            "vmhgfs": (0xBACBACBC,),
            "prl_fs": (0x7C7C6673,),
        },
        "a folder of the host, and the host's storage can't be seen from here",
    ),
    **_fuse(Placement.UNKNOWN, "vmhgfs-fuse prl_fsd", "a folder of the host, and the host's storage can't be seen from here"),
    **_all(Placement.UNKNOWN, {"fuse": (_FUSE,), "fuseblk": (_FUSE,)}, "a FUSE file system that does not say which"),
}

WRITEBACK_OPTIONS = {
    "cifs": "nostrictsync",
    "smb3": "nostrictsync",
}
"""By type, an option with which fsync returns before the bytes are with the server."""

OBJECT_SOURCES = ("mountpoint-s3", "gcsfuse", "blobfuse", "s3fs", "rclone", "goofys")
"""How object stores that mount as plain `fuse` begin their source."""

KERNEL_TYPES = frozenset(
    {
        *(
            "proc",
            "sysfs",
            "cgroup",
            "cgroup2",
            "devpts",
            "mqueue",
            "debugfs",
            "tracefs",
            "securityfs",
            "configfs",
            "bpf",
        ),
        *("pstore", "efivarfs", "nsfs", "fusectl", "binfmt_misc", "rpc_pipefs", "selinuxfs", "nfsd"),
    }
)
"""Interfaces of the kernel, where files can't be kept."""

_NFS_LINTS = (
    ("soft", "a server that is slow for a while gives EIO in the middle of a save: mount it `hard`"),
    ("softerr", "a server that is slow for a while gives an error in the middle of a save: mount it `hard`"),
    ("nolock", "locks hold on this node only"),
    ("local_lock=all", "locks hold on this node only"),
    ("local_lock=flock", "flock holds on this node only"),
    ("local_lock=posix", "fcntl locks hold on this node only"),
    ("nocto", "other nodes may read an old version of a file that was closed here"),
)
_SMB_LINTS = (
    ("nobrl", "locks hold on this node only"),
    ("cache=loose", "other nodes may read an old version of a file: mount it `cache=strict`"),
)
OPTION_LINTS: dict[str, tuple[tuple[str, str], ...]] = {
    "nfs": _NFS_LINTS,
    "nfs4": _NFS_LINTS,
    "cifs": _SMB_LINTS,
    "smb3": _SMB_LINTS,
    "lustre": (
        ("localflock", "locks hold on this node only: mount it `flock`"),
        ("noflock", "flock gives ENOSYS: mount it `flock`"),
    ),
}
"""Mount options that weaken a shared file system: by type, the option as the table shows it, and what follows."""

_NFS_NOTES = (
    ("sync", "every write waits for the server: saves are slow, and no safer than with an fsync"),
    ("noac", "no attribute is cached and every write waits for the server: saves are slow"),
    ("fsc", "what is read is also kept on this node's disk: a cache for reads, saves don't depend on it"),
)
OPTION_NOTES: dict[str, tuple[tuple[str, str], ...]] = {
    "nfs": _NFS_NOTES,
    "nfs4": _NFS_NOTES,
    "lustre": (
        ("lazystatfs", "free space leaves out the servers that don't answer, so a check of capacity may see too little"),
    ),
}
"""Mount options worth knowing that weaken nothing, in the same form (nfs(5), mount.lustre(8))."""
