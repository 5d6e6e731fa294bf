"""The type table, row by row: type in the mount table, magic in statfs, class without anybody's word.

Written from linux/magic.h and the clients' own headers, not from the code: a type that is added there needs its row here.
"""

from __future__ import annotations

import pytest

from ckptctl.model.mount import MountRow, PathFacts
from ckptctl.model.verdict import Placement
from ckptctl.policy.filesystems import FILE_SYSTEMS
from ckptctl.policy.placement import SHARED, judge

FUSE = "65735546"
ROWS = f"""
lustre 0BD00BD0 SHARED_PARALLEL
gpfs 47504653 SHARED_PARALLEL
beegfs 19830326 SHARED_PARALLEL
fhgfs 19830326 SHARED_PARALLEL
wekafs 18031977 SHARED_PARALLEL
ceph 00C36400 SHARED_PARALLEL
panfs AAD7AAEA SHARED_PARALLEL
pvfs2 20030528 SHARED_PARALLEL
scatefs 53544653 SHARED_PARALLEL
fuse.ceph-fuse {FUSE} SHARED_PARALLEL
fuse.ceph {FUSE} SHARED_PARALLEL
nfs 6969 SHARED_SERVER
nfs4 6969 SHARED_SERVER
cifs FF534D42 SHARED_SERVER
smb3 FE534D42 SHARED_SERVER
smbfs 517B SHARED_SERVER
afs 5346414F SHARED_SERVER
afs 6B414653 SHARED_SERVER
fuse.glusterfs {FUSE} SHARED_SERVER
fuse.moosefs {FUSE} SHARED_SERVER
fuse.mfs {FUSE} SHARED_SERVER
fuse.lizardfs {FUSE} SHARED_SERVER
fuse.saunafs {FUSE} SHARED_SERVER
fuse.quobyte {FUSE} SHARED_SERVER
fuse.juicefs {FUSE} SHARED_WRITEBACK
fuse.daos {FUSE} SHARED_WRITEBACK
fuse.dfuse {FUSE} SHARED_WRITEBACK
fuse.alluxio {FUSE} SHARED_WRITEBACK
fuse.alluxio-fuse {FUSE} SHARED_WRITEBACK
fuse.sshfs {FUSE} SHARED_WRITEBACK
fuse.s3fs {FUSE} SHARED_OBJECT
fuse.goofys {FUSE} SHARED_OBJECT
fuse.geesefs {FUSE} SHARED_OBJECT
fuse.mountpoint-s3 {FUSE} SHARED_OBJECT
fuse.gcsfuse {FUSE} SHARED_OBJECT
fuse.blobfuse {FUSE} SHARED_OBJECT
fuse.blobfuse2 {FUSE} SHARED_OBJECT
fuse.rclone {FUSE} SHARED_OBJECT
fuse.ossfs {FUSE} SHARED_OBJECT
fuse.ossfs2 {FUSE} SHARED_OBJECT
fuse.cosfs {FUSE} SHARED_OBJECT
fuse.obsfs {FUSE} SHARED_OBJECT
fuse.tosfs {FUSE} SHARED_OBJECT
ext2 EF53 NODE_LOCAL
ext3 EF53 NODE_LOCAL
ext4 EF53 NODE_LOCAL
xfs 58465342 NODE_LOCAL
btrfs 9123683E NODE_LOCAL
zfs 2FC12FC1 NODE_LOCAL
f2fs F2F52010 NODE_LOCAL
bcachefs CA451A4E NODE_LOCAL
jfs 3153464A NODE_LOCAL
reiserfs 52654973 NODE_LOCAL
nilfs2 3434 NODE_LOCAL
ntfs3 7366746E NODE_LOCAL
exfat 2011BAB0 NODE_LOCAL
vfat 4D44 NODE_LOCAL
tmpfs 01021994 VOLATILE
ramfs 858458F6 VOLATILE
rootfs 01021994 VOLATILE
rootfs 858458F6 VOLATILE
devtmpfs 01021994 VOLATILE
devtmpfs 858458F6 VOLATILE
hugetlbfs 958458F6 VOLATILE
overlay 794C7630 CONTAINER_EPHEMERAL
aufs 61756673 CONTAINER_EPHEMERAL
unionfs F15F083D CONTAINER_EPHEMERAL
fuse.fuse-overlayfs {FUSE} CONTAINER_EPHEMERAL
fuse.mergerfs {FUSE} CONTAINER_EPHEMERAL
fuse.unionfs {FUSE} CONTAINER_EPHEMERAL
fuse.unionfs-fuse {FUSE} CONTAINER_EPHEMERAL
squashfs 73717368 READ_ONLY
erofs E0F5E1E2 READ_ONLY
iso9660 9660 READ_ONLY
cramfs 28CD3D45 READ_ONLY
fuse.squashfuse {FUSE} READ_ONLY
fuse.squashfuse_ll {FUSE} READ_ONLY
autofs 0187 AUTOFS_PENDING
gfs2 01161970 UNKNOWN
ocfs2 7461636F UNKNOWN
vxfs A501FCF5 UNKNOWN
snfs BEEFDEAD UNKNOWN
cvfs BEEFDEAD UNKNOWN
acfs 61636673 UNKNOWN
ibrix 013111A8 UNKNOWN
9p 01021997 UNKNOWN
virtiofs {FUSE} UNKNOWN
vboxsf 786F4256 UNKNOWN
vmhgfs BACBACBC UNKNOWN
prl_fs 7C7C6673 UNKNOWN
fuse.vmhgfs-fuse {FUSE} UNKNOWN
fuse.prl_fsd {FUSE} UNKNOWN
fuse {FUSE} UNKNOWN
fuseblk {FUSE} UNKNOWN
"""
TABLE = [tuple(line.split()) for line in ROWS.split("\n") if line]


@pytest.mark.parametrize(("kind", "magic", "expected"), TABLE, ids=[" ".join(row[:2]) for row in TABLE])
def test_a_row(kind: str, magic: str, expected: str) -> None:
    row = MountRow(90, 27, 0, 60, "/", "/m", ("rw",), (), kind, "source", ("rw",))
    seen = PathFacts("/m/x", "/m/x", "/m/x", "", row, int(magic, 16), 0, 0, 1 << 40, 1 << 39, None, None)
    found = judge(seen, job_ids=(), single_machine=False, accept=frozenset())
    assert found.placement is Placement(expected)
    assert found.allowed is (found.placement in SHARED)


def test_every_type_and_magic_of_the_code_has_its_row() -> None:
    known = {(name, magic) for name, system in FILE_SYSTEMS.items() for magic in system.magics}
    rows = {(kind, int(magic, 16)) for kind, magic, _ in TABLE}
    smb = {(name, magic) for name in ("cifs", "smb3", "smbfs") for magic in (0xFF534D42, 0xFE534D42, 0x517B)}
    assert rows | smb == known
