"""Where the disks of a file system keep their bytes: in this node's memory, in this node, or beyond it. Pure.

The worst disk decides. A disk counts as a network volume only where that is certain; what nobody knows counts as a disk of
this node, which is lost with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ckptctl.model.mount import BlockDevice
from ckptctl.model.verdict import Placement

_MEMORY = re.compile(r"(zram|ram)\d+")
_NETWORK = re.compile(r"(rbd|drbd)\d+")  # a DRBD device with a disk of its own is no leaf: that disk is
_SERVED = re.compile(r"(nbd|ublkb)\d+")  # by a process, which may keep the bytes in a file of this node
_PERSISTENT_MEMORY = re.compile(r"pmem\d+.*")
_NETWORK_TRANSPORTS = frozenset({"rdma", "tcp", "fc", "iscsi"})
_LOCAL_TRANSPORTS = frozenset({"pcie", "sas", "ata", "usb", "loop", "nvdimm", "tcp-local", "rdma-local", "iscsi-local"})
_VIRTUAL_TRANSPORTS = frozenset({"virtio", "hypervisor"})
_VIRTUAL_MODELS = re.compile(r"\b(QEMU|VMware|VBOX|Msft Virtual)\b")
_VOLUMES = frozenset(  # cloud volumes look like a disk of this node but for their model; with the transport they come by
    {
        ("Amazon Elastic Block Store", "pcie"),
        ("nvme_card-pd", "pcie"),
        ("Google PersistentDisk", "virtio"),
        ("Alibaba Cloud Elastic Block Storage", "pcie"),
    }
)
_AZURE_VOLUME = "MSFT NVMe Accelerator v1.0"  # namespace 1 is the OS disk, kept or not; data disks follow
_GOOGLE_LOCAL = "Google EphemeralDisk"  # by virtio, like a volume


def leaves(devices: Iterable[BlockDevice]) -> tuple[BlockDevice, ...]:
    """Return the disks of a chain: what is made of no other device."""
    return tuple(device for device in devices if not device.below)


def placement(devices: Iterable[BlockDevice]) -> Placement:
    """Return the class of a file system on these devices, as bad as its worst disk; NODE_LOCAL where no disk is seen."""
    disks = leaves(devices)
    if any(_MEMORY.fullmatch(disk.name) for disk in disks):
        return Placement.VOLATILE
    if disks and all(beyond(disk) == "yes" for disk in disks):
        return Placement.NODE_ATTACHED_NETWORK_BLOCK
    return Placement.NODE_LOCAL


def beyond(disk: BlockDevice) -> str:
    """Return whether a disk keeps its bytes beyond this node: `yes` and `no` where that is certain, else `unknown`."""
    transports = set(disk.transport.split("+")) - {""}
    if _MEMORY.fullmatch(disk.name) or disk.model == _GOOGLE_LOCAL:
        return "no"
    if disk.model == _AZURE_VOLUME and disk.transport == "pcie":
        return "yes" if disk.nsid >= 2 else "unknown"
    if _NETWORK.fullmatch(disk.name) or (disk.model, disk.transport) in _VOLUMES:
        return "yes"
    if transports and transports <= _NETWORK_TRANSPORTS:
        return "yes"
    if _VIRTUAL_MODELS.search(disk.model):
        return "unknown"
    if transports & _LOCAL_TRANSPORTS or (_PERSISTENT_MEMORY.fullmatch(disk.name) and not transports):
        return "no"
    return "unknown"


def notes(devices: Iterable[BlockDevice]) -> tuple[str, ...]:
    """Return what can't be known of the disks, one sentence for each reason."""
    devices = tuple(devices)
    disks = leaves(devices)
    unknown = [disk for disk in disks if beyond(disk) == "unknown"]
    found = [] if disks else ["its devices can't be seen from here"]
    if any(disk.transport in _VIRTUAL_TRANSPORTS or _VIRTUAL_MODELS.search(disk.model) for disk in unknown):
        found.append("a virtual disk: where the hypervisor keeps it can't be seen from here")
    if any(disk.model == _AZURE_VOLUME for disk in unknown):
        found.append("an OS disk of Azure: one that is kept and one that is not look the same")
    if any(_SERVED.fullmatch(disk.name) for disk in unknown):
        found.append("a disk that a process serves: where that keeps the bytes can't be seen from here")
    if any("-local" in disk.transport for disk in disks):
        found.append("a network disk whose target has an address of this node")
    if any(_NETWORK.fullmatch(device.name) and device.below for device in devices):
        found.append("a mirror over the network: whether its peer has the bytes can't be seen from here")
    return tuple(found)


def tree(devices: Iterable[BlockDevice]) -> tuple[str, ...]:
    """Return a chain as an indented tree, the mounted device first; a device on several paths is shown on each.

    Names are as the system gave them: nothing is escaped.
    """
    by_name = {device.name: device for device in devices}
    shown: set[str] = set()

    def lines(device: BlockDevice, depth: int) -> list[str]:
        shown.add(device.name)
        found = [f"{'  ' * depth}{_described(device)}"]
        for name in device.below:
            found += lines(by_name[name], depth + 1) if name in by_name and depth < len(by_name) else []
        return found

    return tuple(line for device in by_name.values() if device.name not in shown for line in lines(device, 0))


def _described(device: BlockDevice) -> str:
    words = [word for word in (device.kind, device.transport, device.model) if word]
    words += [f"file {device.backing_file}"] if device.backing_file else []
    if device.below and (not words or len(device.below) > 1):
        words.append(f"made of {len(device.below)}")
    return f"{device.name}: {'; '.join(words) or 'nothing more is known'}"
