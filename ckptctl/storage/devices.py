"""The block devices below a mount, down to the disks, as sysfs shows them. Linux only; looks, and changes nothing.

It says what sysfs says, and `unknown` or nothing where sysfs does not say it: what that makes of a path is for
`ckptctl.policy.devices` to decide.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ckptctl.model.mount import BlockDevice, MountRow
from ckptctl.storage import addresses

_MAPPED = {"LVM": "lvm", "CRYPT": "crypt", "mpath": "multipath"}  # who made a device-mapper volume, by its UUID's prefix
_CONTROLLER = re.compile(r"nvme\d+")
_SESSION = re.compile(r".*/session\d+(?=/)")
_ATTACHED = (  # a part of a disk's path in sysfs -> transport; the first that fits
    (_SESSION, "iscsi"),
    (re.compile(r"/rport-"), "fc"),
    (re.compile(r"/end_device-"), "sas"),
    (re.compile(r"/ata\d+/"), "ata"),
    (re.compile(r"/usb\d+/"), "usb"),
    (re.compile(r"/virtio\d+/"), "virtio"),
    (re.compile(r"/vmbus|/VMBUS|/MSFT1000:|/vbd-"), "hypervisor"),  # the ACPI name of Hyper-V's bus differs by version
    (re.compile(r"/ndbus\d+/"), "nvdimm"),
)


def backing_chain(row: MountRow, sys_root: str = "/sys") -> tuple[BlockDevice, ...]:
    """Return the block devices below a mount, the mounted ones first, down to the disks; () where they can't be told.

    Of a file system over several devices (btrfs, bcachefs, XFS with a log of its own) all are there or none. One that the
    mount table names and sysfs does not show is there by its name, and nothing else is known of it.
    """
    chain: dict[str, BlockDevice] = {}
    todo = _mounted(row, os.path.realpath(sys_root))
    while todo:
        folder = todo.pop(0)
        name = os.path.basename(folder)
        if name in chain:
            continue
        below = _below(folder)
        todo += below
        names = tuple(os.path.basename(entry) for entry in below)
        kind = _kind(folder)
        chain[name] = BlockDevice(name, below=names, kind=kind) if below else _disk(folder, name, kind, sys_root)
    return tuple(chain.values())


def _mounted(row: MountRow, sys_root: str) -> list[str]:
    """Return the folders of the devices that a file system lies on, without those below them."""
    if row.type == "btrfs":
        return _btrfs_members(_named(row.source, sys_root), sys_root)
    named: list[str] = []
    if row.type == "bcachefs":
        named = row.source.split(":")  # its device number is that of one member only
    if row.type == "xfs":
        named = [device for option in ("logdev", "rtdev") if (device := row.option(option))]
    members = [_named(device, sys_root) for device in named]
    if row.major == 0:
        return members
    top = f"{sys_root}/dev/block/{row.major}:{row.minor}"
    return [os.path.realpath(top), *members] if os.path.exists(top) else []


def _named(source: str, sys_root: str) -> str:
    """Return the folder of a device by its name in /dev: one that is not there when sysfs does not know that name."""
    real = os.path.realpath(source) if source.startswith("/dev/") else ""
    name = real.removeprefix("/dev/") if real.startswith("/dev/") else f"/{source}"
    return os.path.realpath(f"{sys_root}/class/block/{name.replace('/', '!')}")


def _btrfs_members(first: str, sys_root: str) -> list[str]:
    """Return the folders of all devices of a btrfs by one of them: its mount row shows one, and a device number of none."""
    for folder in sorted(Path(sys_root, "fs", "btrfs").glob("*/devices")):
        members = [os.path.realpath(entry) for entry in sorted(folder.glob("*"))]
        if first in members:
            return [first, *members]
    return []


def _below(folder: str) -> list[str]:
    if os.path.exists(f"{folder}/partition"):
        return [os.path.dirname(folder)]
    return [os.path.realpath(entry) for entry in sorted(Path(folder, "slaves").glob("*"))]


def _kind(folder: str) -> str:
    maker = _word(f"{folder}/dm/uuid").partition("-")[0]
    if os.path.exists(f"{folder}/partition") or re.fullmatch(r"part\d+", maker):
        return "partition"
    return _word(f"{folder}/md/level") or _MAPPED.get(maker, "")


def _disk(folder: str, name: str, kind: str, sys_root: str) -> BlockDevice:
    device = f"{folder}/device"
    model = _word(f"{device}/model")
    nsid = _word(f"{folder}/nsid")
    return BlockDevice(
        name=name,
        transport=_nvme_transport(device) if name.startswith("nvme") else _attachment(folder, sys_root),
        model=f"{_word(f'{device}/vendor')} {model}".strip() if model else "",
        backing_file=_read(f"{folder}/loop/backing_file").removesuffix("\n"),
        kind=kind,
        nsid=int(nsid) if nsid.isdecimal() else 0,
    )


def _nvme_transport(device: str) -> str:
    """Return the transport of a namespace's controller, or those of all controllers of its subsystem.

    With native multipath `device` is the folder of the subsystem, where each controller has a link. Which of them leads to
    this namespace is not asked: one that does not today may do so after a rescan.
    """
    legs = [device] if os.path.exists(f"{device}/transport") else [str(entry) for entry in Path(device).glob("nvme*")]
    return "+".join(sorted({_leg(leg) for leg in legs if leg == device or _CONTROLLER.fullmatch(os.path.basename(leg))}))


def _leg(controller: str) -> str:
    transport = _word(f"{controller}/transport") or "unknown"
    target = re.search(r"(?:^|,)traddr=([^,]*)", _word(f"{controller}/address"))
    return f"{transport}-local" if target and addresses.is_own(target[1]) else transport


def _attachment(folder: str, sys_root: str) -> str:
    path = folder.removeprefix(os.path.realpath(sys_root)) + "/"
    found = next((transport for part, transport in _ATTACHED if part.search(path)), "")
    session = _SESSION.match(folder + "/")
    if found == "iscsi" and session:
        targets = Path(session[0]).glob("connection*/iscsi_connection/*/address")
        return "iscsi-local" if any(addresses.is_own(_word(str(target))) for target in targets) else found
    return found


def _word(path: str) -> str:
    return _read(path).strip()


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return os.fsdecode(file.read())
    except OSError:
        return ""
