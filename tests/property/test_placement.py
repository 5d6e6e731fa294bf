"""The classifier never passes what it does not know: whatever a path looks like, an allowed one is a row of the table."""

from __future__ import annotations

import os

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ckptctl.model.mount import BlockDevice, MountRow, PathFacts
from ckptctl.model.verdict import Confidence, Placement
from ckptctl.policy.filesystems import FILE_SYSTEMS, KERNEL_TYPES
from ckptctl.policy.placement import ACCEPTABLE, SHARED, SINGLE_MACHINE, chain, fabric_attached, judge

MAGICS = sorted({magic for known in FILE_SYSTEMS.values() for magic in known.magics})
JOBS = ("4711", "4711_3", "4711\n", "4711+0")
PARTS = ("4711", "job-4711", "4711\n", "nnf", "mnt", "enroot", "data", "pyxis_7.0", "scratch", "tmp", "a\x1b[1mb", "..", "")

anything = st.binary(max_size=12).map(os.fsdecode) | st.text(max_size=8)
paths = st.lists(st.sampled_from(PARTS) | anything, max_size=4).map(lambda parts: "/" + "/".join(parts))
known_types = st.sampled_from(sorted(FILE_SYSTEMS))
classes = {
    known.placement: [name for name in sorted(FILE_SYSTEMS) if FILE_SYSTEMS[name].placement is known.placement]
    for known in FILE_SYSTEMS.values()
}
writable_types = st.sampled_from(
    [classes[one] for one in sorted(SHARED | ACCEPTABLE | SINGLE_MACHINE) if one in classes]
).flatmap(st.sampled_from)
strange_types = st.sampled_from(sorted(KERNEL_TYPES)) | anything | anything.map("fuse.{}".format)
sources = st.sampled_from(["", "none", "s:/x", "beegfs_nodev", "beeond_nodev", "mountpoint-s3", "rclone", "/dev/sda"])
options = st.lists(
    st.sampled_from(["rw", "flock", "nostrictsync", "upperdir=/u\nx", "cfg=/ondemand", "hard", "soft"])
    | st.sampled_from(["addr=10.0.0.5", "addr=127.0.0.1", "addr=127.0.0.1\nx", "addr=::1", "addr=10.0.0.5\n"])
    | anything,
    max_size=3,
).map(tuple)
read_only = st.sampled_from([("rw",)] * 12 + [("ro",), ("shutdown",)])

names = st.sampled_from(
    ["nvme0n1", "nvme1n1", "sda", "vda", "zram0", "ram0", "rbd0", "nbd0", "drbd0", "ublkb0", "pmem0", "loop0"]
)
models = st.sampled_from(
    ["", "Amazon Elastic Block Store", "nvme_card-pd", "Google PersistentDisk", "MSFT NVMe Accelerator v1.0"]
)
transports = st.sampled_from(
    ["", "pcie", "rdma", "tcp", "fc", "loop", "pcie+tcp", "rdma+tcp", "tcp+unknown", "tcp-local", "iscsi", "sas", "virtio"]
)
device_lists = st.lists(
    st.builds(
        BlockDevice,
        name=names | anything,
        transport=transports | anything,
        model=models | anything,
        backing_file=st.just("") | paths,
        below=st.lists(names | anything, max_size=2).map(tuple),
        kind=st.sampled_from(["", "lvm", "partition", "raid1"]) | anything,
        nsid=st.integers(0, 3),
    ),
    max_size=4,
).map(tuple)


@st.composite
def mounted(draw: st.DrawFn) -> tuple[MountRow, int]:
    """A row and a magic: mostly of a type that is known with a magic of its own, else no verdict but UNKNOWN would be tried."""
    kind = draw(st.sampled_from([known_types, *[writable_types] * 6, strange_types]).flatmap(lambda one: one))
    own = st.sampled_from(sorted(FILE_SYSTEMS[kind].magics) if kind in FILE_SYSTEMS else MAGICS)
    magic = draw(st.sampled_from([own] * 4 + [st.sampled_from(MAGICS), st.integers(0, 2**32 - 1)]).flatmap(lambda one: one))
    row = MountRow(
        id=draw(st.integers(0, 99)),
        parent=1,
        major=draw(st.sampled_from([0, 7, 8, 259])),
        minor=0,
        root=draw(st.sampled_from(["/"] * 9 + ["/a//deleted"]) | paths),
        mount_point=draw(paths),
        options=draw(options),
        tags=(),
        type=kind,
        source=draw(sources | anything),
        super_options=draw(read_only) + draw(options),
    )
    return row, magic


@st.composite
def facts(draw: st.DrawFn, depth: int = 2) -> PathFacts:
    row, magic = draw(mounted())
    real = draw(paths)
    return PathFacts(
        asked=draw(st.just(real) | paths),
        real=real,
        existing=draw(st.just(real) | paths),
        dangling_link="",
        mount=row,
        magic=magic,
        uid=0,
        writable_errno=draw(st.sampled_from([0] * 12 + [13, 30])),
        total_bytes=10,
        free_bytes=10,
        total_inodes=None,
        free_inodes=None,
        devices=draw(device_lists),
        backing=draw(st.none() | facts(depth - 1)) if depth else None,
        server_is_local=draw(st.booleans()),
    )


def plain(source: str, kind: str, magic: int, device: str = "sda", mount_point: str = "/mnt") -> PathFacts:
    row = MountRow(1, 0, 0, 1, "/", mount_point, ("rw",), (), kind, source, ("rw",))
    return PathFacts("/mnt", "/mnt", "/mnt", "", row, magic, 0, 0, 10, 10, None, None, (BlockDevice(device),))


@settings(max_examples=300, deadline=None)
@given(
    seen=facts(),
    job_ids=st.lists(st.sampled_from(JOBS) | anything, max_size=3),
    single_machine=st.booleans(),
    accept=st.frozensets(st.sampled_from(Placement)),
    temporary_dirs=st.lists(paths, max_size=2).map(tuple),
)
@example(plain("s", "fuse.new\nfs", 0x65735546), [], False, frozenset(), ())
@example(plain("s", "nfs4", 0x6969), [], False, frozenset(), ())
@example(plain("/dev/sda", "ext4", 0xEF53), [], True, frozenset(), ())
@example(plain("s", "fuse.juicefs", 0x65735546), [], False, frozenset({Placement.SHARED_WRITEBACK}), ())
@example(plain("s", "lustre", 0x0BD00BD0, mount_point="/x/4711\n"), ["4711\n"], False, frozenset(), ())
def test_an_unknown_combination_is_never_passed(
    seen: PathFacts,
    job_ids: list[str],
    single_machine: bool,
    accept: frozenset[Placement],
    temporary_dirs: tuple[str, ...],
) -> None:
    found = judge(seen, job_ids=job_ids, single_machine=single_machine, accept=accept, temporary_dirs=temporary_dirs)
    if found.allowed:
        known = FILE_SYSTEMS[seen.mount.type]
        assert seen.magic in known.magics
        if found.placement in SHARED:
            assert (known.placement, found.confidence) == (found.placement, Confidence.STATIC)
        else:
            said = SINGLE_MACHINE if single_machine else frozenset()
            named = accept & (ACCEPTABLE if single_machine else ACCEPTABLE - {Placement.CONTAINER_EPHEMERAL})
            assert found.placement in said | named
            assert found.confidence is Confidence.DECLARED
            assert found.reason.startswith("declared: ")
    for line in (found.reason, found.remedy, *found.evidence, *chain(seen)):
        assert line.isprintable(), line
    assert fabric_attached(seen) in ("yes", "no", "unknown")
