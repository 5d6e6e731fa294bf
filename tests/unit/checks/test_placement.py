"""The class of a path, from facts: every class, every trap of the type table, and what may overrule it."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

import pytest

from ckptctl.model.mount import BlockDevice, PathFacts
from ckptctl.model.verdict import Confidence, Placement
from ckptctl.policy.filesystems import FILE_SYSTEMS
from ckptctl.policy.placement import (
    ACCEPTABLE,
    SHARED,
    PlacementVerdict,
    chain,
    fabric_attached,
    judge,
    option_findings,
    shared,
    speed_findings,
    without_facts,
)
from ckptctl.storage.mounts import parse_row

P = Placement
FUSE, NFS, LUSTRE, BEEGFS, EXT, TMPFS, XFS = 0x65735546, 0x6969, 0x0BD00BD0, 0x19830326, 0xEF53, 0x01021994, 0x58465342

LUSTRE_ROW = "78 27 0:50 / /lustre rw,noatime - lustre 10.0.0.1@o2ib:/scratch rw,flock"
NFS_ROW = "79 27 0:51 / /data rw - nfs4 10.0.0.5:/export rw,vers=4.2,hard,local_lock=none,addr=10.0.0.5"
EXT_ROW = "27 1 259:1 / / rw,relatime - ext4 /dev/nvme0n1p1 rw"
LOOP_ROW = "75 63 7:0 / /mnt/img rw - ext4 /dev/loop0 rw"
TMPFS_ROW = "30 25 0:27 / /dev/shm rw - tmpfs tmpfs rw,size=1g"
OVERLAY_ROW = "70 63 0:43 / / rw - overlay overlay rw,lowerdir=/l,upperdir=/run/containers/7/diff,workdir=/w"
OVERLAY = 0x794C7630


def facts(line: str, magic: int, path: str = "", *, devices: tuple[BlockDevice, ...] = (), **changes: Any) -> PathFacts:
    row = parse_row(line.encode())
    path = path or (row.mount_point.rstrip("/") + "/run")
    return PathFacts(
        asked=path,
        real=path,
        existing=path,
        dangling_link="",
        mount=row,
        magic=magic,
        uid=1000,
        writable_errno=0,
        total_bytes=10**12,
        free_bytes=10**12,
        total_inodes=None,
        free_inodes=None,
        devices=devices,
        **changes,
    )


def verdict(
    seen: PathFacts,
    *,
    job_ids: tuple[str, ...] = (),
    single_machine: bool = False,
    accept: frozenset[Placement] = frozenset(),
    temporary_dirs: tuple[str, ...] = (),
) -> PlacementVerdict:
    return judge(seen, job_ids=job_ids, single_machine=single_machine, accept=accept, temporary_dirs=temporary_dirs)


def mounted(fs_type: str, source: str = "s", options: str = "rw", at: str = "/mnt/x") -> str:
    return f"90 27 0:60 / {at} rw - {fs_type} {source} {options}"


TABLE = [
    # what, row, magic, class
    ("lustre", LUSTRE_ROW, LUSTRE, P.SHARED_PARALLEL),
    ("gpfs", mounted("gpfs", "gpfs0"), 0x47504653, P.SHARED_PARALLEL),
    ("beegfs", mounted("beegfs", "beegfs_nodev"), BEEGFS, P.SHARED_PARALLEL),
    ("weka", mounted("wekafs", "10.0.0.1/fs"), 0x18031977, P.SHARED_PARALLEL),
    ("ceph", mounted("ceph", "10.0.0.1:6789:/"), 0x00C36400, P.SHARED_PARALLEL),
    ("ceph-fuse", mounted("fuse.ceph-fuse", "ceph-fuse"), FUSE, P.SHARED_PARALLEL),
    ("panfs", mounted("panfs"), 0xAAD7AAEA, P.SHARED_PARALLEL),
    ("a bind of lustre into a container", "91 9 0:50 /u/me /ckpt rw - lustre x:/s rw", LUSTRE, P.SHARED_PARALLEL),
    ("nfs", NFS_ROW, NFS, P.SHARED_SERVER),
    ("glusterfs", mounted("fuse.glusterfs", "gs1:/ckpt"), FUSE, P.SHARED_SERVER),
    ("smb with the magic of its dialect", mounted("cifs", "//s/x"), 0xFE534D42, P.SHARED_SERVER),
    ("moosefs", mounted("fuse.mfs", "mfs#m:9421"), FUSE, P.SHARED_SERVER),
    ("juicefs", mounted("fuse.juicefs", "JuiceFS:v"), FUSE, P.SHARED_WRITEBACK),
    ("daos", mounted("fuse.daos", "dfuse"), FUSE, P.SHARED_WRITEBACK),
    ("sshfs", mounted("fuse.sshfs", "me@s:/d"), FUSE, P.SHARED_WRITEBACK),
    ("smb without flush", mounted("cifs", "//s/x", "rw,nostrictsync"), 0xFF534D42, P.SHARED_WRITEBACK),
    ("gcsfuse", mounted("fuse.gcsfuse", "bucket"), FUSE, P.SHARED_OBJECT),
    ("rclone", mounted("fuse.rclone", "s3:b"), FUSE, P.SHARED_OBJECT),
    ("mountpoint-s3, which has no subtype", mounted("fuse", "mountpoint-s3"), FUSE, P.SHARED_OBJECT),
    ("beeond", mounted("beegfs", "beeond_nodev", at="/mnt/odfs"), BEEGFS, P.SHARED_EPHEMERAL),
    ("rabbit", mounted("lustre", at="/mnt/nnf/7ad-0"), LUSTRE, P.SHARED_EPHEMERAL),
    ("ext4", EXT_ROW, EXT, P.NODE_LOCAL),
    ("zfs", mounted("zfs", "tank/data"), 0x2FC12FC1, P.NODE_LOCAL),
    ("overlay", OVERLAY_ROW, OVERLAY, P.CONTAINER_EPHEMERAL),
    ("fuse-overlayfs", mounted("fuse.fuse-overlayfs"), FUSE, P.CONTAINER_EPHEMERAL),
    ("deleted", "67 63 0:39 /a//deleted /mnt/x rw - ext4 /dev/sda rw", EXT, P.CONTAINER_EPHEMERAL),
    ("deleted on lustre", "67 63 0:39 /a//deleted /mnt/x rw - lustre x:/s rw", LUSTRE, P.CONTAINER_EPHEMERAL),
    ("pyxis root on nfs", "9 1 0:5 /e/pyxis_77.0 / rw - nfs s:/e rw,addr=10.0.0.1", NFS, P.CONTAINER_EPHEMERAL),
    ("enroot root on nfs", "9 1 0:5 / / rw - nfs s:/x/enroot/data/py rw", NFS, P.CONTAINER_EPHEMERAL),
    ("tmpfs", TMPFS_ROW, TMPFS, P.VOLATILE),
    ("ramfs", mounted("ramfs"), 0x858458F6, P.VOLATILE),
    ("hugetlbfs", mounted("hugetlbfs"), 0x958458F6, P.VOLATILE),
    ("read-only mount", "1 0 0:50 / /l ro - lustre x:/s rw", LUSTRE, P.READ_ONLY),
    ("read-only file system", "1 0 0:50 / /l rw - lustre x:/s ro", LUSTRE, P.READ_ONLY),
    ("squashfs", mounted("squashfs", "/dev/loop3", "ro"), 0x73717368, P.READ_ONLY),
    ("squashfs, whatever it says", mounted("squashfs", "/dev/loop3"), 0x73717368, P.READ_ONLY),
    ("autofs", mounted("autofs", "/etc/auto.data"), 0x0187, P.AUTOFS_PENDING),
    ("autofs, even where it is read-only", mounted("autofs", "m", "ro"), 0x0187, P.AUTOFS_PENDING),
    ("autofs by magic", LUSTRE_ROW, 0x0187, P.AUTOFS_PENDING),
    ("type and magic disagree", LUSTRE_ROW, NFS, P.UNKNOWN),
    ("a shared name over a local magic", mounted("gpfs"), EXT, P.UNKNOWN),
    ("a local name over a shared magic", EXT_ROW, LUSTRE, P.UNKNOWN),
    ("tmpfs with another magic", TMPFS_ROW, LUSTRE, P.UNKNOWN),
    ("a type that nobody has heard of", mounted("newfs"), 0x1234, P.UNKNOWN),
    ("a fuse subtype that nobody has heard of", mounted("fuse.newfs"), FUSE, P.UNKNOWN),
    ("fuse without a subtype", mounted("fuse", "x"), FUSE, P.UNKNOWN),
    ("ntfs-3g", mounted("fuseblk", "/dev/sdb1"), FUSE, P.UNKNOWN),
    ("virtiofs", mounted("virtiofs", "jail"), FUSE, P.UNKNOWN),
    ("9p", mounted("9p", "kataShared"), 0x01021997, P.UNKNOWN),
    ("gfs2, which Rabbit mounts once per node", mounted("gfs2", "/dev/vg/lv"), 0x01161970, P.UNKNOWN),
    ("proc", mounted("proc"), 0x9FA0, P.UNKNOWN),
    ("nfs from loopback", mounted("nfs4", "127.0.0.1:/", "rw,addr=127.0.0.1"), NFS, P.UNKNOWN),
    ("nfs from loopback 6", mounted("nfs4", "[::1]:/", "rw,addr=::1"), NFS, P.UNKNOWN),
]


@pytest.mark.parametrize(("line", "magic", "expected"), [case[1:] for case in TABLE], ids=[case[0] for case in TABLE])
def test_the_class_and_whether_it_is_allowed(line: str, magic: int, expected: Placement) -> None:
    found = verdict(facts(line, magic))
    assert found.placement is expected
    assert found.allowed is (expected in (P.SHARED_PARALLEL, P.SHARED_SERVER))
    assert found.confidence is Confidence.STATIC
    faults = (P.READ_ONLY, P.AUTOFS_PENDING)
    assert found.exit_code == (0 if found.allowed else 14 if expected in faults else 10)
    assert bool(found.remedy) is not found.allowed
    assert "\n" not in found.reason + "".join(found.evidence)


def test_every_class_is_in_these_tests() -> None:
    made_elsewhere = {P.NODE_ATTACHED_NETWORK_BLOCK, P.UNREACHABLE, P.MISSING_MOUNT}  # below
    assert {case[3] for case in TABLE} | made_elsewhere == set(Placement)


@pytest.mark.parametrize("placement", [P.UNREACHABLE, P.MISSING_MOUNT, P.UNKNOWN])
def test_what_could_not_be_looked_at_is_refused(placement: Placement) -> None:
    found = without_facts(placement, "no answer\nwithin 10 s")
    assert (found.allowed, found.reason) == (False, "no answer\\nwithin 10 s")
    assert found.exit_code == (10 if placement is P.UNKNOWN else 14)
    assert found.remedy


@pytest.mark.parametrize("name", sorted(FILE_SYSTEMS))
def test_no_type_passes_with_a_magic_that_is_not_its_own(name: str) -> None:
    for other in {magic for known in FILE_SYSTEMS.values() for magic in known.magics} - FILE_SYSTEMS[name].magics:
        found = verdict(facts(mounted(name), other), single_machine=True, accept=frozenset(Placement), job_ids=())
        if name != "autofs" and other != 0x0187:
            assert (found.placement, found.allowed) == (P.UNKNOWN, False)
        assert not found.allowed


@pytest.mark.parametrize("name", sorted(FILE_SYSTEMS))
def test_what_a_type_gives_without_anybodys_word(name: str) -> None:
    known = FILE_SYSTEMS[name]
    for magic in known.magics:
        found = verdict(facts(mounted(name), magic))
        assert found.placement is known.placement
        assert found.allowed is (known.placement in SHARED)


# --- read-only, deleted, permissions ---


def test_erofs_is_read_only_even_where_the_options_do_not_say_so() -> None:
    assert verdict(replace(facts(LUSTRE_ROW, LUSTRE), writable_errno=errno.EROFS)).placement is P.READ_ONLY


def test_a_deleted_folder_is_never_accepted() -> None:
    seen = facts("67 63 0:39 /a//deleted /mnt/x rw - ext4 /dev/sda rw", EXT)
    found = verdict(seen, single_machine=True, accept=frozenset(Placement))
    assert not found.allowed
    assert "ENOENT" in found.reason


# --- a single machine, and classes accepted by name ---


def test_a_single_machine_is_declared_and_says_so() -> None:
    found = verdict(facts(EXT_ROW, EXT), single_machine=True)
    assert (found.placement, found.allowed, found.confidence) == (P.NODE_LOCAL, True, Confidence.DECLARED)
    assert "declared: single machine" in found.reason
    assert found.remedy == ""


def test_a_shared_path_needs_no_declaration() -> None:
    found = verdict(facts(LUSTRE_ROW, LUSTRE), single_machine=True)
    assert (found.allowed, found.confidence) == (True, Confidence.STATIC)
    assert "declared" not in found.reason


@pytest.mark.parametrize("accept", [frozenset(), frozenset(Placement)])
def test_memory_is_refused_on_a_single_machine_too(accept: frozenset[Placement]) -> None:
    found = verdict(facts(TMPFS_ROW, TMPFS), single_machine=True, accept=accept)
    assert (found.placement, found.allowed, found.exit_code) == (P.VOLATILE, False, 10)


@pytest.mark.parametrize(
    ("single_machine", "accept", "allowed"),
    [
        (False, frozenset(), False),
        (True, frozenset(), False),
        (False, frozenset({P.CONTAINER_EPHEMERAL}), False),
        (True, frozenset({P.CONTAINER_EPHEMERAL}), True),
        (True, frozenset({P.VOLATILE}), False),
    ],
)
def test_a_containers_own_layer_needs_its_name_and_a_single_machine(
    single_machine: bool, accept: frozenset[Placement], allowed: bool
) -> None:
    found = verdict(facts(OVERLAY_ROW, OVERLAY), single_machine=single_machine, accept=accept)
    assert found.allowed is allowed
    assert "/run/containers/7/diff" in " ".join(found.evidence)
    if allowed:
        assert found.confidence is Confidence.DECLARED
        assert "CONTAINER_EPHEMERAL is accepted" in found.reason


@pytest.mark.parametrize(("line", "magic"), [case[1:3] for case in TABLE], ids=[case[0] for case in TABLE])
@pytest.mark.parametrize("single_machine", [True, False])
def test_accepting_everything_passes_only_what_can_be_accepted(line: str, magic: int, single_machine: bool) -> None:
    found = verdict(facts(line, magic), single_machine=single_machine, accept=frozenset(Placement))
    local = {P.NODE_LOCAL, P.NODE_ATTACHED_NETWORK_BLOCK, P.CONTAINER_EPHEMERAL} if single_machine else set()
    if found.allowed:
        assert found.placement in SHARED | (ACCEPTABLE - {P.CONTAINER_EPHEMERAL}) | local
    else:
        assert "accepted by name, which does not help" in found.evidence[0]


def test_juicefs_can_be_accepted_by_who_knows_how_it_is_mounted() -> None:
    found = verdict(facts(mounted("fuse.juicefs"), FUSE), accept=frozenset({P.SHARED_WRITEBACK}))
    assert (found.allowed, found.confidence) == (True, Confidence.DECLARED)


# --- folders that go with the job ---


@pytest.mark.parametrize("part", ["4711", "job-4711", "job_4711", "slurm.4711", "tmp4711", "slurm-job-4711", ".4711"])
def test_a_folder_of_the_job_on_shared_storage(part: str) -> None:
    seen = facts(LUSTRE_ROW, LUSTRE, f"/lustre/scratch/{part}/ckpt")
    found = verdict(seen, job_ids=("4711",))
    assert (found.placement, found.allowed) == (P.SHARED_EPHEMERAL, False)
    assert part in found.reason
    assert verdict(seen, job_ids=("4711",), accept=frozenset({P.SHARED_EPHEMERAL})).allowed
    assert verdict(seen, job_ids=("471",)).allowed
    assert verdict(seen).allowed


@pytest.mark.parametrize("part", ["14711", "47110", "gpt-4711", "4711b"])
def test_a_name_that_only_holds_the_digits_is_not_the_job(part: str) -> None:
    assert verdict(facts(LUSTRE_ROW, LUSTRE, f"/lustre/{part}/ckpt"), job_ids=("4711",)).allowed


def test_an_array_task_has_three_names() -> None:
    for part in ("4711", "4711_3", "4714"):
        seen = facts(LUSTRE_ROW, LUSTRE, f"/lustre/{part}/ckpt")
        assert verdict(seen, job_ids=("4711_3", "4714")).placement is P.SHARED_EPHEMERAL
    assert verdict(facts(LUSTRE_ROW, LUSTRE, "/lustre/4715/ckpt"), job_ids=("4711_3", "4714", "")).allowed


@pytest.mark.parametrize(
    "line",
    [
        "9 1 0:5 / /mnt/odfs/4711 rw - beegfs beegfs_nodev rw",
        "9 1 0:5 /scratch/4711 /scratch rw - beegfs beegfs_nodev rw",
    ],
)
def test_a_mount_made_for_the_job_is_not_accepted(line: str) -> None:
    found = verdict(facts(line, BEEGFS), job_ids=("4711",), accept=frozenset(Placement))
    assert (found.placement, found.allowed) == (P.SHARED_EPHEMERAL, False)


def test_a_temporary_folder_on_shared_storage() -> None:
    seen = facts(LUSTRE_ROW, LUSTRE, "/lustre/tmp/me/ckpt")
    assert verdict(seen, temporary_dirs=("/lustre/tmp/me/",)).placement is P.SHARED_EPHEMERAL
    assert verdict(seen, temporary_dirs=("/lustre/tm", "/", "")).allowed


# --- devices ---


def on(*devices: BlockDevice, line: str = EXT_ROW, **changes: Any) -> PathFacts:
    return facts(line, EXT, devices=devices, **changes)


NVME = BlockDevice("nvme0n1", "pcie", "Samsung SSD 990 PRO")
PART = BlockDevice("nvme0n1p1", below=("nvme0n1",))
FABRIC = BlockDevice("nvme1n1", "rdma+tcp", "Linux")
LVM = BlockDevice("dm-0", below=("nvme0n1", "nvme1n1"))

DEVICES = [
    ("local nvme", (PART, NVME), P.NODE_LOCAL),
    ("nothing is seen", (), P.NODE_LOCAL),
    ("nvme over fabrics", (FABRIC,), P.NODE_ATTACHED_NETWORK_BLOCK),
    ("nvme over fabrics with one local leg", (BlockDevice("nvme1n1", "pcie+tcp"),), P.NODE_LOCAL),
    ("nvme loop target", (BlockDevice("nvme1n1", "loop"),), P.NODE_LOCAL),
    ("a cloud volume", (PART, replace(NVME, model="Amazon Elastic Block Store")), P.NODE_ATTACHED_NETWORK_BLOCK),
    ("a cloud's own disk", (PART, replace(NVME, model="Amazon EC2 NVMe Instance Storage")), P.NODE_LOCAL),
    ("google volume", (BlockDevice("sda", "virtio", "Google PersistentDisk"),), P.NODE_ATTACHED_NETWORK_BLOCK),
    ("google local", (replace(NVME, model="nvme_card0"),), P.NODE_LOCAL),
    ("iscsi", (BlockDevice("sda", "iscsi"),), P.NODE_ATTACHED_NETWORK_BLOCK),
    ("ceph rbd", (BlockDevice("rbd0"),), P.NODE_ATTACHED_NETWORK_BLOCK),
    ("virtio", (BlockDevice("vda", "virtio"),), P.NODE_LOCAL),
    ("a volume over a local and a network disk", (LVM, NVME, FABRIC), P.NODE_LOCAL),
    ("zram", (BlockDevice("zram0"),), P.VOLATILE),
    (
        "a mirror with one leg in memory",
        (BlockDevice("md0", below=("ram0", "sda")), BlockDevice("ram0"), NVME),
        P.VOLATILE,
    ),
    ("an image that can't be found", (BlockDevice("loop0", backing_file="/x.img"),), P.UNKNOWN),
]


@pytest.mark.parametrize(("devices", "expected"), [case[1:] for case in DEVICES], ids=[case[0] for case in DEVICES])
def test_the_worst_device_decides_and_none_makes_it_shared(devices: tuple[BlockDevice, ...], expected: Placement) -> None:
    found = verdict(on(*devices))
    assert (found.placement, found.allowed, found.exit_code) == (expected, False, 10)
    for device in devices:
        assert any(line.strip().startswith(f"{device.name}: ") for line in chain(on(*devices)))
    declared = verdict(on(*devices), single_machine=True)
    assert declared.allowed is (expected in (P.NODE_LOCAL, P.NODE_ATTACHED_NETWORK_BLOCK))


def test_the_chain_is_shown_as_a_tree() -> None:
    tree = chain(on(LVM, *(replace(NVME, name=name) for name in LVM.below)))
    assert not tree[0].startswith(" ")
    assert all(line.startswith("  ") and not line.startswith("   ") for line in tree[1:])
    assert len(tree) == 1 + len(LVM.below)


@pytest.mark.parametrize(
    ("seen", "attached"),
    [
        (on(PART, NVME), "no"),
        (on(FABRIC), "yes"),
        (on(LVM, NVME, FABRIC), "no"),
        (on(BlockDevice("vda", "virtio")), "unknown"),
        (facts(LUSTRE_ROW, LUSTRE), "yes"),
    ],
)
def test_that_bytes_lie_beyond_the_node_is_not_that_they_are_shared(seen: PathFacts, attached: str) -> None:
    assert fabric_attached(seen) == attached
    found = verdict(seen)
    assert shared(found) == ("by its type; only `prove` shows it" if found.placement is P.SHARED_PARALLEL else "no")


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        (facts(LUSTRE_ROW, LUSTRE), P.NODE_LOCAL),
        (facts(NFS_ROW, NFS), P.NODE_LOCAL),
        (on(PART, NVME), P.NODE_LOCAL),
        (facts(TMPFS_ROW, TMPFS), P.VOLATILE),
        (facts(OVERLAY_ROW, OVERLAY), P.CONTAINER_EPHEMERAL),
        (facts(mounted("virtiofs"), FUSE), P.UNKNOWN),
        (facts(mounted("fuse.juicefs"), FUSE), P.UNKNOWN),
        (on(BlockDevice("loop1", backing_file="/y.img")), P.UNKNOWN),
    ],
)
def test_an_image_file_is_never_shared_wherever_it_lies(inner: PathFacts, expected: Placement) -> None:
    seen = on(BlockDevice("loop0", backing_file="/x.img"), line=LOOP_ROW, backing=inner)
    assert verdict(seen).placement is expected
    assert not verdict(seen).allowed
    assert verdict(seen, single_machine=True).allowed is (expected is P.NODE_LOCAL)


def test_the_root_disk_under_a_path_hints_at_a_missing_mount() -> None:
    assert any("it is missing" in line for line in verdict(facts(EXT_ROW, EXT, "/lustre/run")).evidence)


# --- network servers and options ---


def test_a_server_that_is_this_node_can_be_lost_with_it() -> None:
    found = verdict(replace(facts(NFS_ROW, NFS), server_is_local=True), single_machine=True)
    assert (found.placement, found.allowed) == (P.UNKNOWN, False)
    assert "this node itself" in found.reason


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (NFS_ROW, []),
        (LUSTRE_ROW, []),
        (mounted("nfs4", "s:/x", "rw,soft,local_lock=none"), ["`soft`"]),
        (mounted("nfs", "s:/x", "rw,hard,nolock,local_lock=all,nocto"), ["`nolock`", "`local_lock=all`", "`nocto`"]),
        (mounted("lustre", "s:/x", "rw,localflock"), ["`localflock`"]),
        (mounted("lustre", "s:/x", "rw,noflock"), ["`noflock`"]),
        (mounted("smb3", "//s/x", "rw,cache=loose,nobrl"), ["`nobrl`", "`cache=loose`", "rename"]),
        (mounted("nfs4", "s:/x", at="/"), ["container"]),
        (EXT_ROW, []),
        (mounted("newfs", "s", "rw,soft"), []),
    ],
)
def test_options_that_weaken_shared_storage_are_warned_about(line: str, words: list[str]) -> None:
    found = option_findings(parse_row(line.encode()))
    assert len(found) == len(words)
    for finding, word in zip(found, words, strict=True):
        assert word in finding.message
        assert finding.severity.value == "warning"


# --- words ---


def test_both_names_of_a_symlink_and_a_missing_leaf_are_in_the_evidence() -> None:
    seen = replace(facts(LUSTRE_ROW, LUSTRE), asked="/home/me/ckpt", existing="/lustre")
    text = "\n".join(verdict(seen).evidence)
    assert "/home/me/ckpt is /lustre/run" in text
    assert "does not exist; judged by /lustre" in text


def test_a_name_from_outside_can_not_forge_a_line() -> None:
    line = r"9 1 0:5 / /mnt/a\012declared: rw - newfs so\012urce rw"
    found = verdict(facts(line, 1))
    assert "\n" not in found.reason + "".join(found.evidence)
    assert r"so\nurce" in found.reason


@pytest.mark.parametrize(
    ("options", "slow"),
    [("proto=tcp", True), ("proto=tcp,nconnect=1", True), ("proto=tcp,nconnect=8", False), ("proto=rdma", False)],
)
def test_nfs_over_one_connection_is_slow_and_no_fault(options: str, slow: bool) -> None:
    row = replace(facts(NFS_ROW, NFS).mount, super_options=tuple(f"rw,{options}".split(",")))
    found = {finding.name: finding.severity.value for finding in speed_findings(row)}
    assert ("nfs-one-connection" in found) is slow
    assert found.get("nfs-one-connection", "info") == "info"
