"""Every shape of what a local file system can lie on, from a sysfs of our own.

Of each: the devices in order, the class that the policy makes of them, and whether the bytes are beyond the node.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from ckptctl.model.mount import BlockDevice, PathFacts
from ckptctl.model.verdict import Placement
from ckptctl.policy.placement import chain, fabric_attached, judge
from ckptctl.storage.mounts import parse_row
from tests.support.sysfs import Sysfs

LOCAL, NETWORK, VOLATILE = Placement.NODE_LOCAL, Placement.NODE_ATTACHED_NETWORK_BLOCK, Placement.VOLATILE
MAGIC = {"ext4": 0xEF53, "xfs": 0x58465342, "btrfs": 0x9123683E, "bcachefs": 0xCA451A4E, "zfs": 0x2FC12FC1}
SSD = "Samsung SSD 990 PRO"
FAR = "192.0.2.77"  # an address for documentation: never one of this machine
FABRICS = "virtual/nvme-fabrics/ctl"
SUBSYSTEM = "virtual/nvme-subsystem/nvme-subsys0"


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path / "sys")


# --- the parts, as the kernel lays them out ---------------------------------------------------------------------------


def nvme(
    sysfs: Sysfs,
    name: str = "nvme0n1",
    numbers: str = "259:0",
    transport: str = "pcie",
    model: str = SSD,
    nsid: int = 1,
    address: str = f"traddr={FAR},trsvcid=4420",
) -> str:
    """One controller with one namespace below it."""
    controller = name[: name.rindex("n")]
    where = f"pci0000:00/0000:00:04.0/nvme/{controller}" if transport == "pcie" else f"{FABRICS}/{controller}"
    address = "0000:00:04.0" if transport == "pcie" else address
    sysfs.folder(where, {"transport": transport, "model": f"{model:40}", "address": address})
    sysfs.disk(f"{where}/{name}", numbers, {"nsid": str(nsid)}, device=where)
    return f"{where}/{name}"


def multipath_nvme(sysfs: Sysfs, **legs: str) -> str:
    """A namespace below its subsystem, whose number is none of its controllers'; the paths to it are hidden."""
    sysfs.folder(SUBSYSTEM, {"model": f"{'Linux':40}", "subsystype": "nvm"})
    for controller, transport in legs.items():
        where = f"pci0000:00/nvme/{controller}" if transport == "pcie" else f"{FABRICS}/{controller}"
        sysfs.folder(where, {"transport": transport, "model": "Linux", "address": f"traddr={FAR}"} if transport else {})
        sysfs.folder(f"{where}/nvme0c{controller.removeprefix('nvme')}n1", {"hidden": "1", "nsid": "1"})
        sysfs.link(f"devices/{SUBSYSTEM}/{controller}", where)
    sysfs.disk(f"{SUBSYSTEM}/nvme0n1", "259:0", {"nsid": "1"}, device=SUBSYSTEM)
    for controller in legs:  # since Linux 6.15
        sysfs.link(f"devices/{SUBSYSTEM}/nvme0n1/multipath/nvme0c{controller[4:]}n1", f"{FABRICS}/{controller}")
    return f"{SUBSYSTEM}/nvme0n1"


def scsi(sysfs: Sysfs, above: str, name: str = "sda", numbers: str = "8:0", vendor: str = "ATA", model: str = "") -> str:
    device = f"{above}/target2:0:0/2:0:0:{int(numbers.partition(':')[2]) // 16}"
    sysfs.folder(device, {"vendor": f"{vendor:8}", "model": f"{model:16}"} if model else {})
    sysfs.disk(f"{device}/block/{name}", numbers, device=device)
    return f"{device}/block/{name}"


def iscsi(sysfs: Sysfs, name: str = "sda", numbers: str = "8:0", address: str = FAR, session: int = 1) -> str:
    above = f"platform/host2/session{session}"
    connection = f"connection{session}:0"
    sysfs.folder(f"{above}/{connection}/iscsi_connection/{connection}", {"address": address, "port": "3260"})
    return scsi(sysfs, above, name, numbers, "IET", "VIRTUAL-DISK")


def part(sysfs: Sysfs, disk: str, numbers: str, number: int = 1) -> str:
    name = Path(disk).name
    where = f"{disk}/{name}{'p' if name[-1].isdigit() else ''}{number}"
    sysfs.disk(where, numbers, {"partition": str(number)})
    return where


def mapped(sysfs: Sysfs, name: str, numbers: str, uuid: str, *below: str) -> str:
    sysfs.disk(f"virtual/block/{name}", numbers, {"dm/uuid": uuid, "dm/name": "x"}, below=below)
    return f"virtual/block/{name}"


def md(sysfs: Sysfs, name: str, numbers: str, level: str, *below: str) -> str:
    sysfs.disk(f"virtual/block/{name}", numbers, {"md/level": level}, below=below)
    return f"virtual/block/{name}"


def virtual(sysfs: Sysfs, name: str, numbers: str, **files: str) -> str:
    sysfs.disk(f"virtual/block/{name}", numbers, files)
    return f"virtual/block/{name}"


def virtio_disk(sysfs: Sysfs) -> None:
    sysfs.folder("pci0000:00/0000:00:02.0/virtio1", {"vendor": "0x1af4", "device": "0x0002"})
    sysfs.disk("pci0000:00/0000:00:02.0/virtio1/block/vda", "8:0", device="pci0000:00/0000:00:02.0/virtio1")


def hyper_v(sysfs: Sysfs, bus: str) -> None:
    above = f"LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/{bus}:00/f8b3781a-1e82-4818-a1c3-63d806ec15bb/host2"
    scsi(sysfs, above, vendor="Msft", model="Virtual Disk")


def san_multipath(sysfs: Sysfs, *above: str) -> str:
    names = [("sda", "8:0"), ("sdb", "8:16")]
    disks = [scsi(sysfs, where, *one, "NETAPP", "LUN C-Mode") for where, one in zip(above, names, strict=True)]
    return mapped(sysfs, "dm-0", "253:0", "mpath-3600a098", *disks)


def over_sessions(sysfs: Sysfs, *addresses: str) -> None:
    disks = [
        iscsi(sysfs, f"sd{'ab'[number]}", f"8:{16 * number}", address, number + 1) for number, address in enumerate(addresses)
    ]
    mapped(sysfs, "dm-0", "253:0", "mpath-3600a098", *disks)


def btrfs(sysfs: Sysfs, *disks: str) -> None:
    for disk in disks:
        sysfs.link(f"fs/btrfs/0f9c/devices/{Path(disk).name}", disk)


def deep_stack(sysfs: Sysfs) -> None:
    disks = [scsi(sysfs, f"pci0/ata{number + 1}/host{number}", f"sd{'ab'[number]}", f"8:{16 * number}") for number in (0, 1)]
    parts = [part(sysfs, disk, f"8:{16 * number + 1}") for number, disk in enumerate(disks)]
    array = md(sysfs, "md0", "9:0", "raid1", *parts)
    volume = mapped(sysfs, "dm-0", "253:0", "LVM-x", array)
    mapped(sysfs, "dm-1", "253:1", "CRYPT-LUKS2-x-home", volume)


# --- the shapes -------------------------------------------------------------------------------------------------------

_NVME = BlockDevice("nvme0n1", "pcie", SSD, nsid=1)
_FAR_NVME = BlockDevice("nvme1n1", "tcp", "Linux", nsid=1)
_ISCSI = BlockDevice("sda", "iscsi", "IET VIRTUAL-DISK")
_CLOUD_PART = BlockDevice("nvme0n1p1", below=("nvme0n1",), kind="partition")


@dataclass(frozen=True)
class Shape:
    """What there is, and what is to be found: devices, class, whether the bytes are beyond the node, words of the evidence."""

    what: str
    build: Callable[[Sysfs], object]
    numbers: str
    devices: tuple[BlockDevice, ...]
    placement: Placement
    beyond: str
    words: str = ""
    mount: dict[str, str] = field(default_factory=dict)


def cloud(what: str, model: str, placement: Placement, beyond: str, *, nsid: int = 1, words: str = "") -> Shape:
    """A cloud's disk on a partition: all by pcie, and only the model tells."""
    found = (_CLOUD_PART, BlockDevice("nvme0n1", "pcie", model, nsid=nsid))
    return Shape(
        what, lambda sysfs: part(sysfs, nvme(sysfs, model=model, nsid=nsid), "259:1"), "259:1", found, placement, beyond, words
    )


def over(what: str, transport: str, placement: Placement, beyond: str) -> Shape:
    """NVMe over one controller of a transport."""
    found = (BlockDevice("nvme0n1", transport, "Linux", nsid=1),)
    return Shape(what, lambda sysfs: nvme(sysfs, transport=transport, model="Linux"), "259:0", found, placement, beyond)


def paths(what: str, legs: dict[str, str], transport: str, placement: Placement, beyond: str) -> Shape:
    """NVMe with native multipath."""
    found = (BlockDevice("nvme0n1", transport, "Linux", nsid=1),)
    return Shape(what, lambda sysfs: multipath_nvme(sysfs, **legs), "259:0", found, placement, beyond)


def plain(what: str, name: str, placement: Placement, beyond: str, words: str = "") -> Shape:
    """A device that sysfs says nothing of but its name."""
    return Shape(what, lambda sysfs: virtual(sysfs, name, "8:0"), "8:0", (BlockDevice(name),), placement, beyond, words)


def one(
    what: str, above: str, transport: str, placement: Placement, beyond: str, vendor: str, model: str, words: str = ""
) -> Shape:
    """One SCSI disk."""
    found = (BlockDevice("sda", transport, f"{vendor} {model}"),)
    return Shape(what, lambda sysfs: scsi(sysfs, above, vendor=vendor, model=model), "8:0", found, placement, beyond, words)


SHAPES = [
    # NVMe
    Shape("an nvme disk", nvme, "259:0", (_NVME,), LOCAL, "no"),
    cloud("a partition of an nvme disk", SSD, LOCAL, "no"),
    over("nvme over rdma", "rdma", NETWORK, "yes"),
    over("nvme over tcp", "tcp", NETWORK, "yes"),
    over("nvme over fc", "fc", NETWORK, "yes"),
    over("nvme from a target in this kernel", "loop", LOCAL, "no"),
    over("nvme over something new", "warp", LOCAL, "unknown"),
    Shape(
        "nvme over tcp from this node itself",
        lambda sysfs: nvme(sysfs, transport="tcp", model="Linux", address="traddr=127.0.0.1,trsvcid=4420,src_addr=127.0.0.1"),
        "259:0",
        (BlockDevice("nvme0n1", "tcp-local", "Linux", nsid=1),),
        LOCAL,
        "no",
        "address of this node",
    ),
    paths("nvme multipath", {"nvme3": "tcp", "nvme4": "rdma"}, "rdma+tcp", NETWORK, "yes"),
    paths("nvme multipath, both legs alike", {"nvme1": "tcp", "nvme0": "tcp"}, "tcp", NETWORK, "yes"),
    paths("nvme multipath with a leg in this node", {"nvme3": "tcp", "nvme4": "pcie"}, "pcie+tcp", LOCAL, "no"),
    paths("nvme multipath on two ports of one disk", {"nvme3": "pcie", "nvme4": "pcie"}, "pcie", LOCAL, "no"),
    paths("nvme multipath with a leg that says nothing", {"nvme3": "tcp", "nvme4": ""}, "tcp+unknown", LOCAL, "unknown"),
    paths("nvme multipath without legs", {}, "", LOCAL, "unknown"),
    # device mapper
    Shape(
        "a logical volume on a local disk",
        lambda sysfs: mapped(sysfs, "dm-0", "253:0", "LVM-x", nvme(sysfs)),
        "253:0",
        (BlockDevice("dm-0", below=("nvme0n1",), kind="lvm"), _NVME),
        LOCAL,
        "no",
    ),
    Shape(
        "a logical volume over a local and a network disk",
        lambda sysfs: mapped(
            sysfs, "dm-0", "253:0", "LVM-x", nvme(sysfs), nvme(sysfs, "nvme1n1", "259:9", transport="tcp", model="Linux")
        ),
        "253:0",
        (BlockDevice("dm-0", below=("nvme0n1", "nvme1n1"), kind="lvm"), _NVME, _FAR_NVME),
        LOCAL,
        "no",
    ),
    Shape(
        "encrypted, on nvme over fabrics",
        lambda sysfs: mapped(
            sysfs, "dm-0", "253:0", "CRYPT-LUKS2-x-data", nvme(sysfs, "nvme1n1", transport="tcp", model="Linux")
        ),
        "253:0",
        (BlockDevice("dm-0", below=("nvme1n1",), kind="crypt"), _FAR_NVME),
        NETWORK,
        "yes",
    ),
    Shape(
        "encrypted, on a logical volume, on a partition",
        lambda sysfs: mapped(
            sysfs,
            "dm-1",
            "253:1",
            "CRYPT-LUKS2-x",
            mapped(sysfs, "dm-0", "253:0", "LVM-x", part(sysfs, nvme(sysfs), "259:1")),
        ),
        "253:1",
        (
            BlockDevice("dm-1", below=("dm-0",), kind="crypt"),
            BlockDevice("dm-0", below=("nvme0n1p1",), kind="lvm"),
            _CLOUD_PART,
            _NVME,
        ),
        LOCAL,
        "no",
    ),
    Shape(
        "multipath over iscsi",
        lambda sysfs: over_sessions(sysfs, FAR, FAR),
        "253:0",
        (
            BlockDevice("dm-0", below=("sda", "sdb"), kind="multipath"),
            _ISCSI,
            BlockDevice("sdb", "iscsi", "IET VIRTUAL-DISK"),
        ),
        NETWORK,
        "yes",
    ),
    Shape(
        "multipath over iscsi, one target on this node",
        lambda sysfs: over_sessions(sysfs, FAR, "127.0.0.1"),
        "253:0",
        (
            BlockDevice("dm-0", below=("sda", "sdb"), kind="multipath"),
            _ISCSI,
            BlockDevice("sdb", "iscsi-local", "IET VIRTUAL-DISK"),
        ),
        LOCAL,
        "no",
        "address of this node",
    ),
    Shape(
        "a partition of multipath over fc",
        lambda sysfs: mapped(
            sysfs,
            "dm-1",
            "253:1",
            "part1-mpath-3600a098",
            san_multipath(sysfs, "pci0/host2/rport-2:0-1", "pci0/host3/rport-3:0-1"),
        ),
        "253:1",
        (
            BlockDevice("dm-1", below=("dm-0",), kind="partition"),
            BlockDevice("dm-0", below=("sda", "sdb"), kind="multipath"),
            BlockDevice("sda", "fc", "NETAPP LUN C-Mode"),
            BlockDevice("sdb", "fc", "NETAPP LUN C-Mode"),
        ),
        NETWORK,
        "yes",
    ),
    Shape(
        "multipath over sas",
        lambda sysfs: san_multipath(sysfs, "pci0/host0/port-0:0/end_device-0:0", "pci0/host1/port-1:0/end_device-1:0"),
        "253:0",
        (
            BlockDevice("dm-0", below=("sda", "sdb"), kind="multipath"),
            BlockDevice("sda", "sas", "NETAPP LUN C-Mode"),
            BlockDevice("sdb", "sas", "NETAPP LUN C-Mode"),
        ),
        LOCAL,
        "no",
    ),
    Shape(
        "a mapped volume of an unknown maker, with nothing below",
        lambda sysfs: mapped(sysfs, "dm-0", "253:0", "NEW-x"),
        "253:0",
        (BlockDevice("dm-0"),),
        LOCAL,
        "unknown",
    ),
    # md, caches
    Shape(
        "a mirror of two local disks",
        lambda sysfs: md(sysfs, "md0", "9:0", "raid1", nvme(sysfs), nvme(sysfs, "nvme1n1", "259:1")),
        "9:0",
        (
            BlockDevice("md0", below=("nvme0n1", "nvme1n1"), kind="raid1"),
            _NVME,
            BlockDevice("nvme1n1", "pcie", SSD, nsid=1),
        ),
        LOCAL,
        "no",
    ),
    Shape(
        "a stripe over two network disks",
        lambda sysfs: md(
            sysfs,
            "md0",
            "9:0",
            "raid0",
            nvme(sysfs, "nvme1n1", "259:1", transport="tcp", model="Linux"),
            nvme(sysfs, "nvme2n1", "259:2", transport="rdma", model="Linux"),
        ),
        "9:0",
        (
            BlockDevice("md0", below=("nvme1n1", "nvme2n1"), kind="raid0"),
            _FAR_NVME,
            BlockDevice("nvme2n1", "rdma", "Linux", nsid=1),
        ),
        NETWORK,
        "yes",
    ),
    Shape(
        "a mirror of a network disk and one in memory",
        lambda sysfs: md(
            sysfs,
            "md0",
            "9:0",
            "raid1",
            nvme(sysfs, "nvme1n1", transport="tcp", model="Linux"),
            virtual(sysfs, "ram0", "1:0"),
        ),
        "9:0",
        (BlockDevice("md0", below=("nvme1n1", "ram0"), kind="raid1"), _FAR_NVME, BlockDevice("ram0")),
        VOLATILE,
        "no",
    ),
    Shape(
        "bcache of a local disk before a network disk",
        lambda sysfs: sysfs.disk("virtual/block/bcache0", "252:0", below=(nvme(sysfs), iscsi(sysfs))),
        "252:0",
        (BlockDevice("bcache0", below=("nvme0n1", "sda")), _NVME, _ISCSI),
        LOCAL,
        "no",
    ),
    Shape(
        "a deep stack",
        deep_stack,
        "253:1",
        (
            BlockDevice("dm-1", below=("dm-0",), kind="crypt"),
            BlockDevice("dm-0", below=("md0",), kind="lvm"),
            BlockDevice("md0", below=("sda1", "sdb1"), kind="raid1"),
            BlockDevice("sda1", below=("sda",), kind="partition"),
            BlockDevice("sdb1", below=("sdb",), kind="partition"),
            BlockDevice("sda", "ata"),
            BlockDevice("sdb", "ata"),
        ),
        LOCAL,
        "no",
    ),
    # loop, memory, network block drivers
    Shape(
        "a loop device",
        lambda sysfs: virtual(sysfs, "loop0", "7:0", **{"loop/backing_file": "/scratch/disk.img "}),
        "7:0",
        (BlockDevice("loop0", backing_file="/scratch/disk.img "),),
        Placement.UNKNOWN,
        "unknown",
    ),
    Shape(
        "a partition of a loop device whose file is gone",
        lambda sysfs: part(
            sysfs, virtual(sysfs, "loop0", "7:0", **{"loop/backing_file": "/scratch/disk.img (deleted)"}), "259:0"
        ),
        "259:0",
        (
            BlockDevice("loop0p1", below=("loop0",), kind="partition"),
            BlockDevice("loop0", backing_file="/scratch/disk.img (deleted)"),
        ),
        Placement.UNKNOWN,
        "unknown",
    ),
    plain("compressed memory", "zram0", VOLATILE, "no"),
    plain("a disk in memory", "ram0", VOLATILE, "no"),
    plain("ceph", "rbd0", NETWORK, "yes"),
    plain("nbd, whose server may be a process of this node", "nbd0", LOCAL, "unknown", "a process serves"),
    plain("ublk", "ublkb0", LOCAL, "unknown", "a process serves"),
    plain("drbd without a disk of its own", "drbd0", NETWORK, "yes"),
    plain("a driver that nobody knows", "xyz0", LOCAL, "unknown"),
    plain("a name that only begins like memory's", "ram0disk", LOCAL, "unknown"),
    Shape(
        "drbd over a local disk",
        lambda sysfs: sysfs.disk("virtual/block/drbd0", "147:0", below=(nvme(sysfs),)),
        "147:0",
        (BlockDevice("drbd0", below=("nvme0n1",)), _NVME),
        LOCAL,
        "no",
        "its peer",
    ),
    Shape(
        "persistent memory",
        lambda sysfs: sysfs.disk("LNXSYSTM:00/LNXSYBUS:00/ACPI0012:00/ndbus0/region0/namespace0.0/block/pmem0", "259:0"),
        "259:0",
        (BlockDevice("pmem0", "nvdimm"),),
        LOCAL,
        "no",
    ),
    Shape(
        "persistent memory that the hypervisor gives",
        lambda sysfs: sysfs.disk("pci0000:00/virtio3/ndbus0/region0/namespace0.0/block/pmem0", "259:0"),
        "259:0",
        (BlockDevice("pmem0", "virtio"),),
        LOCAL,
        "unknown",
        "hypervisor",
    ),
    # SCSI and virtual disks
    Shape("iscsi", iscsi, "8:0", (_ISCSI,), NETWORK, "yes"),
    one("fc", "pci0/host2/rport-2:0-1", "fc", NETWORK, "yes", "DGC", "VRAID"),
    one("sas", "pci0/host0/port-0:0/expander-0:0/port-0:0:1/end_device-0:0:1", "sas", LOCAL, "no", "SEAGATE", "ST8000"),
    one("sata", "pci0/ata1/host0", "ata", LOCAL, "no", "ATA", "INTEL SSDSC2KB96"),
    one("sata that a hypervisor makes up", "pci0/ata1/host0", "ata", LOCAL, "unknown", "ATA", "QEMU HARDDISK", "hypervisor"),
    one("usb", "pci0/usb2/2-1/2-1:1.0/host0", "usb", LOCAL, "no", "SanDisk", "Ultra"),
    one("a raid controller", "pci0/host0", "", LOCAL, "unknown", "DELL", "PERC H755"),
    Shape("virtio-blk", virtio_disk, "8:0", (BlockDevice("vda", "virtio"),), LOCAL, "unknown", "hypervisor"),
    one("virtio-scsi", "pci0/virtio2/host0", "virtio", LOCAL, "unknown", "QEMU", "QEMU HARDDISK", "hypervisor"),
    Shape(
        "xen",
        lambda sysfs: sysfs.disk("vbd-51712/block/xvda", "202:0", device="vbd-51712"),
        "202:0",
        (BlockDevice("xvda", "hypervisor"),),
        LOCAL,
        "unknown",
        "hypervisor",
    ),
    *(
        Shape(
            f"hyper-v, its bus named {bus}",
            lambda sysfs, bus=bus: hyper_v(sysfs, bus),  # type: ignore[misc]
            "8:0",
            (BlockDevice("sda", "hypervisor", "Msft Virtual Disk"),),
            LOCAL,
            "unknown",
            "hypervisor",
        )
        for bus in ("VMBUS", "MSFT1000")
    ),
    # clouds
    cloud("aws volume", "Amazon Elastic Block Store", NETWORK, "yes"),
    cloud("aws instance store", "Amazon EC2 NVMe Instance Storage", LOCAL, "no"),
    cloud("google volume", "nvme_card-pd", NETWORK, "yes"),
    cloud("google local", "nvme_card", LOCAL, "no"),
    cloud("google local, numbered", "nvme_card3", LOCAL, "no"),
    one("google volume by scsi", "pci0/virtio2/host0", "virtio", NETWORK, "yes", "Google", "PersistentDisk"),
    one("google local by scsi", "pci0/virtio2/host0", "virtio", LOCAL, "no", "Google", "EphemeralDisk"),
    one("a usb stick with the name of a volume", "pci0/usb2/2-1/host0", "usb", LOCAL, "no", "Google", "PersistentDisk"),
    cloud("azure data disk", "MSFT NVMe Accelerator v1.0", NETWORK, "yes", nsid=2),
    cloud("azure os disk", "MSFT NVMe Accelerator v1.0", LOCAL, "unknown", nsid=1, words="OS disk of Azure"),
    cloud("azure, a later model that nobody knows", "MSFT NVMe Accelerator v9.0", LOCAL, "no", nsid=2),
    cloud("azure local", "Microsoft NVMe Direct Disk", LOCAL, "no"),
    cloud("azure local, second version", "Microsoft NVMe Direct Disk v2", LOCAL, "no"),
    cloud("alibaba volume", "Alibaba Cloud Elastic Block Storage", NETWORK, "yes"),
    one("oci volume by iscsi", "platform/host2/session1", "iscsi", NETWORK, "yes", "ORACLE", "BlockVolume"),
    # several devices under one file system, or none that can be seen
    Shape(
        "btrfs over a network and a local disk",
        lambda sysfs: btrfs(sysfs, iscsi(sysfs), part(sysfs, nvme(sysfs), "259:1")),
        "0:44",
        (_ISCSI, _CLOUD_PART, _NVME),
        LOCAL,
        "no",
        mount={"fs_type": "btrfs", "source": "/dev/sda"},
    ),
    Shape(
        "btrfs on one network disk",
        lambda sysfs: btrfs(sysfs, iscsi(sysfs)),
        "0:44",
        (_ISCSI,),
        NETWORK,
        "yes",
        mount={"fs_type": "btrfs", "source": "/dev/sda"},
    ),
    Shape(
        "btrfs whose members are not told",
        iscsi,
        "0:44",
        (),
        LOCAL,
        "unknown",
        "can't be seen",
        mount={"fs_type": "btrfs", "source": "/dev/sda"},
    ),
    Shape(
        "bcachefs over a network and a local disk",
        lambda sysfs: (iscsi(sysfs), nvme(sysfs)),
        "8:0",
        (_ISCSI, _NVME),
        LOCAL,
        "no",
        mount={"fs_type": "bcachefs", "source": "/dev/sda:/dev/nvme0n1"},
    ),
    Shape(
        "bcachefs with a member that sysfs does not show",
        iscsi,
        "8:0",
        (_ISCSI, BlockDevice("mapper!far")),
        LOCAL,
        "unknown",
        mount={"fs_type": "bcachefs", "source": "/dev/sda:/dev/mapper/far"},
    ),
    Shape(
        "xfs on a network disk with its log on a local one",
        lambda sysfs: (iscsi(sysfs), nvme(sysfs)),
        "8:0",
        (_ISCSI, _NVME),
        LOCAL,
        "no",
        mount={"fs_type": "xfs", "source": "/dev/sda", "options": "rw,logdev=/dev/nvme0n1"},
    ),
    Shape("zfs", iscsi, "0:44", (), LOCAL, "unknown", "can't be seen", mount={"fs_type": "zfs", "source": "tank/data"}),
    Shape("zfs, its dataset named like a disk", iscsi, "0:44", (), LOCAL, "unknown", mount={"fs_type": "zfs", "source": "sda"}),
    Shape("a device that sysfs does not show", iscsi, "8:64", (), LOCAL, "unknown", "can't be seen"),
    Shape("a device number of none", iscsi, "0:44", (), LOCAL, "unknown", "can't be seen"),
]


def seen(shape: Shape, devices: tuple[BlockDevice, ...]) -> PathFacts:
    mount = {"fs_type": "ext4", "source": "/dev/x", "options": "rw"} | shape.mount
    row = parse_row(f"1 0 {shape.numbers} / /mnt rw - {mount['fs_type']} {mount['source']} {mount['options']}".encode())
    return PathFacts("/mnt/r", "/mnt/r", "/mnt/r", "", row, MAGIC[row.type], 0, 0, 10, 10, None, None, devices)


@pytest.mark.parametrize("shape", SHAPES, ids=[shape.what for shape in SHAPES])
def test_a_shape(sysfs: Sysfs, shape: Shape) -> None:
    shape.build(sysfs)
    devices = sysfs.chain(shape.numbers, **shape.mount)
    assert devices == shape.devices
    facts = seen(shape, devices)
    found = judge(facts, job_ids=(), single_machine=False, accept=frozenset(Placement))
    assert (found.placement, found.allowed, found.exit_code) == (shape.placement, False, 10)
    assert fabric_attached(facts) == shape.beyond
    assert shape.words in " ".join(found.evidence)
    for device in devices:
        assert any(line.strip().startswith(f"{device.name}: ") for line in chain(facts))
        for word in (device.kind, device.transport, device.model):
            assert any(word in line for line in chain(facts) if line.strip().startswith(f"{device.name}: "))
    assert PathFacts.from_dict(json.loads(json.dumps(asdict(facts)))) == facts


def test_every_shape_has_a_name_of_its_own() -> None:
    assert len({shape.what for shape in SHAPES}) == len(SHAPES)


@pytest.mark.parametrize("shape", SHAPES, ids=[shape.what for shape in SHAPES])
def test_a_local_disk_beside_it_is_never_outvoted(sysfs: Sysfs, shape: Shape) -> None:
    shape.build(sysfs)
    beside = (*sysfs.chain(shape.numbers, **shape.mount), BlockDevice("sdz", "ata"))
    facts = seen(shape, beside)
    assert judge(facts, job_ids=(), single_machine=False, accept=frozenset()).placement is not NETWORK
    assert fabric_attached(facts) == "no"


def test_an_image_file_is_as_far_as_the_storage_below_it(sysfs: Sysfs) -> None:
    iscsi(sysfs)
    shape = Shape("", iscsi, "8:0", (), LOCAL, "")
    outer = seen(shape, (BlockDevice("loop0", backing_file="/mnt/r"),))
    for devices, beyond in ((sysfs.chain("8:0"), "yes"), ((_NVME,), "no"), ((), "unknown")):
        inner = seen(shape, devices)
        facts = PathFacts(**{**outer.__dict__, "backing": inner})
        assert fabric_attached(facts) == beyond
        found = judge(facts, job_ids=(), single_machine=False, accept=frozenset())
        assert (found.placement, found.allowed) == (LOCAL, False)


def test_the_tree_says_how_each_device_is_made(sysfs: Sysfs) -> None:
    deep_stack(sysfs)
    shape = next(shape for shape in SHAPES if shape.what == "a deep stack")
    assert chain(seen(shape, sysfs.chain("253:1"))) == (
        "dm-1: crypt",
        "  dm-0: lvm",
        "    md0: raid1; made of 2",
        "      sda1: partition",
        "        sda: ata",
        "      sdb1: partition",
        "        sdb: ata",
    )


def test_a_name_is_looked_up_in_dev_only(sysfs: Sysfs, monkeypatch: pytest.MonkeyPatch) -> None:
    btrfs(sysfs, iscsi(sysfs))
    monkeypatch.chdir("/dev")
    assert sysfs.chain("0:44", fs_type="btrfs", source="sda") == ()


def test_a_folder_above_sysfs_is_not_taken_for_a_part_of_it(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path / "session1" / "usb1" / "sys")
    scsi(sysfs, "pci0/ata1/host0")
    assert [device.transport for device in sysfs.chain("8:0")] == ["ata"]
