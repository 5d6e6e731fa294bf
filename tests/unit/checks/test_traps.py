"""Traps that a look at a path must not fall into: given this mount, the answer is that. One test each, from reported losses.

Those that need a real mount are in tests/integration/checks, those of many nodes in tests/unit/policy and tests/e2e.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ckptctl.checks.path import findings
from ckptctl.model.mount import BlockDevice, PathFacts
from ckptctl.model.report import Severity
from ckptctl.model.verdict import Confidence, Placement
from ckptctl.policy.placement import PlacementVerdict, judge
from ckptctl.policy.site import ExpectedMount, SitePolicy
from ckptctl.storage.mounts import find_row, parse_row

P = Placement
FUSE, NFS, LUSTRE, BEEGFS, EXT, XFS, GPFS, GFS2 = (
    *(0x65735546, 0x6969, 0x0BD00BD0, 0x19830326, 0xEF53, 0x58465342, 0x47504653, 0x01161970),
)
OVERLAY, TMPFS = 0x794C7630, 0x01021994


def facts(line: str, magic: int, path: str, **changes: Any) -> PathFacts:
    """Return facts of a path on the mount of a row."""
    seen = PathFacts(path, path, path, "", parse_row(line.encode()), magic, 1000, 0, 10**12, 10**12, None, None)
    return replace(seen, **changes)


def verdict(seen: PathFacts, job: str | None = None, site: SitePolicy | None = None, **more: Any) -> PlacementVerdict:
    """Judge without anybody's word."""
    return judge(
        seen, job_ids=(job,) if job else (), single_machine=False, accept=frozenset(), site=site or SitePolicy(), **more
    )


ROOT_DISK = "27 1 259:1 / / rw,relatime - ext4 /dev/nvme0n1p2 rw"


def test_a_mount_point_that_nothing_is_mounted_on_is_the_root_disk() -> None:
    seen = facts(ROOT_DISK, EXT, "/lustre/run", devices=(BlockDevice("nvme0n1", "pcie"),))
    alone = verdict(seen)
    assert (alone.placement, alone.allowed) == (P.NODE_LOCAL, False)
    assert any("nothing is mounted between / and the path" in line for line in alone.evidence)
    told = verdict(seen, site=SitePolicy(mounts=(ExpectedMount("/lustre", "lustre", "*:/scratch"),)))
    assert (told.placement, told.exit_code) == (P.MISSING_MOUNT, 14)
    assert "expected lustre" in told.reason
    assert "/dev/nvme0n1p2" in told.reason


def test_the_hidden_one_of_stacked_mounts_is_not_taken() -> None:
    table = b"25 1 0:21 / /dev/shm rw - tmpfs a rw\n30 25 0:27 / /dev/shm rw - tmpfs b rw\n"
    found = find_row(table, 30)
    assert found is not None
    assert found.source == "b"


def test_an_overlay_names_the_folder_that_new_files_go_to() -> None:
    line = "70 1 0:45 / / rw - overlay overlay rw,lowerdir=/l,upperdir=/run/c/7/diff,workdir=/w"
    found = verdict(facts(line, OVERLAY, "/ckpt/run"))  # a container's path that nobody bound in
    assert (found.placement, found.allowed) == (P.CONTAINER_EPHEMERAL, False)
    assert "/run/c/7/diff" in " ".join(found.evidence)


def test_a_part_of_lustre_bound_into_a_container_is_lustre() -> None:
    found = verdict(facts("91 9 0:50 /team/a /ckpt rw - lustre 10.0.0.1@o2ib:/s rw", LUSTRE, "/ckpt/run"))
    assert (found.placement, found.allowed) == (P.SHARED_PARALLEL, True)
    assert "folder /team/a of it is mounted at /ckpt" in " ".join(found.evidence)


def test_an_automount_that_did_not_come_is_a_fault_of_the_node() -> None:
    found = verdict(facts("44 1 0:40 / /net rw - autofs /etc/auto.net rw", 0x0187, "/net/s/x", existing="/net"))
    assert (found.placement, found.exit_code) == (P.AUTOFS_PENDING, 14)


def test_a_link_to_a_local_disk_is_that_disk_and_both_names_are_shown() -> None:
    seen = facts("44 1 259:1 / /local rw - xfs /dev/nvme0n1 rw", XFS, "/local/nvme", asked="/home/me/ckpt")
    found = verdict(seen)
    assert found.placement is P.NODE_LOCAL
    assert "/home/me/ckpt is /local/nvme" in found.evidence


def test_a_missing_folder_is_judged_by_its_parent_and_said_to_be_made() -> None:
    seen = facts("44 1 0:60 / /gpfs rw - gpfs gpfs0 rw", GPFS, "/gpfs/run", existing="/gpfs")
    assert verdict(seen).placement is P.SHARED_PARALLEL
    (missing,) = [finding for finding in findings(seen) if finding.name == "missing-folder"]
    assert "created there at the first save" in missing.remedy


def test_a_bind_whose_folder_was_removed_fails_before_the_save() -> None:
    found = verdict(facts("67 63 0:50 /a//deleted /ckpt rw - lustre s:/x rw", LUSTRE, "/ckpt"))
    assert (found.placement, found.allowed) == (P.CONTAINER_EPHEMERAL, False)


@pytest.mark.parametrize(
    ("line", "magic", "path", "job", "expected"),
    [
        ("44 1 0:60 / /mnt/odfs/4711 rw - beegfs beegfs_nodev rw", BEEGFS, "/mnt/odfs/4711/x", "4711", P.SHARED_EPHEMERAL),
        (
            "44 1 0:60 / /mnt/beeond rw - beegfs beegfs_nodev rw,cfgFile=/tmp/beeond.tmp/c.conf",
            *(BEEGFS, "/mnt/beeond/x", None, P.SHARED_EPHEMERAL),
        ),
        ("44 1 0:60 / /mnt/nnf/ab-0 rw - lustre s:/x rw", LUSTRE, "/mnt/nnf/ab-0/x", None, P.SHARED_EPHEMERAL),
        ("44 1 253:3 / /mnt/nnf/ab-0 rw - gfs2 /dev/vg/lv rw", GFS2, "/mnt/nnf/ab-0/x", None, P.UNKNOWN),
        ("44 1 253:3 / /mnt/nnf/ab-0 rw - xfs /dev/vg/lv rw", XFS, "/mnt/nnf/ab-0/x", None, P.NODE_LOCAL),
        (
            "44 1 0:60 / /var/opt/cray/dws/mounts/batch/7_striped_scratch/ss rw - lustre s:/x rw",
            *(LUSTRE, "/var/opt/cray/dws/mounts/batch/7_striped_scratch/ss/x", None, P.SHARED_EPHEMERAL),
        ),
        ("44 1 0:60 / /scratch rw - beegfs b rw", BEEGFS, "/scratch/4711/ckpt", "4711", P.SHARED_EPHEMERAL),
        ("44 1 0:60 /jobtmp/n1/4711/.4711 /tmp rw - nfs4 s:/x rw", NFS, "/tmp/ckpt", "4711", P.SHARED_EPHEMERAL),
        ("44 1 8:1 /storage/7/.7 /tmp rw - ext4 /dev/sda1 rw", EXT, "/tmp/ckpt", "7", P.NODE_LOCAL),
    ],
    ids=[
        *("beeond by its mount point", "beeond by its configuration", "rabbit lustre", "rabbit gfs2", "rabbit xfs", "datawarp"),
        *("a folder per job", "a private tmp on shared storage", "a private tmp"),
    ],
)
def test_what_goes_with_the_job(line: str, magic: int, path: str, job: str | None, expected: Placement) -> None:
    found = verdict(facts(line, magic, path), job)
    assert (found.placement, found.allowed) == (expected, False)


def test_what_a_burst_buffer_made_for_the_job_is_known_by_its_variable() -> None:
    seen = facts("44 1 0:60 / /b rw - lustre s:/x rw", LUSTRE, "/b/run")
    assert verdict(seen).allowed
    assert verdict(seen, temporary_dirs=("/b",)).placement is P.SHARED_EPHEMERAL


def test_what_the_site_cleans_is_ephemeral_whatever_it_is() -> None:
    seen = facts("44 1 0:60 / /scratch rw - lustre s:/x rw", LUSTRE, "/scratch/tmp/run")
    found = verdict(seen, site=SitePolicy(ephemeral_globs=("/scratch/tmp*",)))
    assert (found.placement, found.allowed) == (P.SHARED_EPHEMERAL, False)


@pytest.mark.parametrize(("address", "local"), [("10.0.0.7", True), ("127.0.0.1", False)])
def test_nfs_from_this_very_node(address: str, local: bool) -> None:
    seen = facts(f"44 1 0:60 / /n rw - nfs4 s:/x rw,addr={address}", NFS, "/n/x", server_is_local=local)
    found = verdict(seen)
    assert (found.placement, found.allowed, found.provable) == (P.UNKNOWN, False, False)


@pytest.mark.parametrize("inner", ["lustre s:/x", "nfs4 s:/x"])
def test_an_image_file_on_shared_storage_is_for_one_node(inner: str) -> None:
    magic = LUSTRE if inner.startswith("lustre") else NFS
    image = facts(f"44 1 0:60 / /l rw - {inner} rw", magic, "/l/disk.img")
    device = BlockDevice("loop0", backing_file="/l/disk.img")
    found = verdict(facts("75 1 7:0 / /m rw - ext4 /dev/loop0 rw", EXT, "/m/x", devices=(device,), backing=image))
    assert (found.placement, found.allowed) == (P.NODE_LOCAL, False)
    assert "one node at a time" in found.reason


@pytest.mark.parametrize(
    ("model", "expected"),
    [("Amazon Elastic Block Store", P.NODE_ATTACHED_NETWORK_BLOCK), ("Amazon EC2 NVMe Instance Storage", P.NODE_LOCAL)],
)
def test_two_cloud_disks_that_look_alike(model: str, expected: Placement) -> None:
    device = BlockDevice("nvme1n1", "pcie", model)
    found = verdict(facts("44 1 259:1 / /d rw - xfs /dev/nvme1n1 rw", XFS, "/d/x", devices=(device,)))
    assert (found.placement, found.allowed) == (expected, False)


def test_of_a_volume_over_a_local_and_a_network_disk_the_worse_counts() -> None:
    chain = (
        BlockDevice("dm-0", below=("nvme0n1", "nvme1n1")),
        BlockDevice("nvme0n1", "pcie"),
        BlockDevice("nvme1n1", "rdma"),
    )
    assert verdict(facts("44 1 253:0 / /d rw - xfs /dev/vg/lv rw", XFS, "/d/x", devices=chain)).placement is P.NODE_LOCAL


def test_no_inodes_at_all_is_not_counted_and_not_full() -> None:
    seen = facts("44 1 0:60 / /b rw - beegfs b rw", BEEGFS, "/b/x", total_inodes=None, free_inodes=None)
    assert not [finding for finding in findings(seen) if "inodes" in finding.name]
    full = replace(seen, total_inodes=100, free_inodes=0)
    assert [finding.name for finding in findings(full)] == ["no-inodes"]


@pytest.mark.parametrize("line", ["fuse.juicefs JuiceFS:v", "fuse.daos dfuse", "fuse.rclone s3:b", "fuse.gcsfuse b"])
def test_what_is_visible_before_it_is_safe_is_refused(line: str) -> None:
    found = verdict(facts(f"44 1 0:60 / /j rw - {line} rw", FUSE, "/j/x"))
    assert found.placement in (P.SHARED_WRITEBACK, P.SHARED_OBJECT)
    assert not found.allowed


@pytest.mark.parametrize("source", ["nfs:/x/enroot/data/py", "nfs:/e/pyxis_77.0"])
def test_the_root_of_a_container_on_nfs_is_the_containers(source: str) -> None:
    assert verdict(facts(f"9 1 0:5 / / rw - nfs4 {source} rw", NFS, "/ckpt")).placement is P.CONTAINER_EPHEMERAL


def test_a_guest_can_not_know_what_the_host_shares_and_the_site_can() -> None:
    seen = facts("44 1 0:60 / /jail rw - virtiofs jail rw", FUSE, "/jail/x")
    assert (verdict(seen).placement, verdict(seen).provable) == (P.UNKNOWN, True)
    told = verdict(seen, site=SitePolicy(mounts=(ExpectedMount("/jail", "virtiofs", declare=P.SHARED_SERVER),)))
    assert (told.placement, told.allowed, told.confidence) == (P.SHARED_SERVER, True, Confidence.DECLARED)


def test_a_read_only_mount_and_a_read_only_file_system() -> None:
    for options in ("ro - lustre s:/x rw", "rw - lustre s:/x ro"):
        found = verdict(facts(f"44 1 0:60 / /l {options}", LUSTRE, "/l/x"))
        assert (found.placement, found.exit_code) == (P.READ_ONLY, 14)


@pytest.mark.parametrize(
    ("kind", "options", "word"),
    [
        *(("nfs4", option, option) for option in ("soft", "softerr", "nolock", "local_lock=all", "local_lock=flock", "nocto")),
        *(("lustre", option, option) for option in ("localflock", "noflock")),
        ("cifs", "nobrl", "nobrl"),
        ("cifs", "cache=loose", "cache=loose"),
    ],
)
def test_options_that_weaken_a_shared_mount_are_named(kind: str, options: str, word: str) -> None:
    seen = facts(f"44 1 0:60 / /n rw - {kind} s:/x rw,{options}", NFS, "/n/x")
    found = [finding.message for finding in findings(seen) if finding.name == "mount-option"]
    assert len(found) == 1
    assert f"`{word}`" in found[0]


@pytest.mark.parametrize(("kind", "option"), [("lustre", "lazystatfs"), ("nfs4", "fsc"), ("nfs", "sync"), ("nfs4", "noac")])
def test_options_that_are_worth_knowing_are_no_warning(kind: str, option: str) -> None:
    for options in (f"rw - {kind} s:/x rw,{option}", f"rw,{option} - {kind} s:/x rw"):
        seen = facts(f"44 1 0:60 / /n {options}", LUSTRE if kind == "lustre" else NFS, "/n/x")
        found = [finding for finding in findings(seen) if finding.name == "mount-option"]
        assert [(one.severity, f"`{option}`" in one.message) for one in found] == [(Severity.INFO, True)]
        assert verdict(seen).allowed
