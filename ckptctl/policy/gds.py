"""What GPUDirect Storage could do at a path, and why not. A finding of possibility, never a claim that it is in use. Pure.

Sources: NVIDIA's file system matrix (MagnumIO, gds-diag, fs_matrix), the GDS release notes, and reports of what was refused
silently (gds-nvidia-fs issues 62, 77, 78; DALI issue 3972).
"""

from __future__ import annotations

from dataclasses import dataclass

from ckptctl.model.mount import PathFacts
from ckptctl.model.report import Finding, Severity

_NATIVE = frozenset({"lustre", "gpfs", "beegfs", "wekafs", "scatefs"})
_DISKS = frozenset({"ext4", "xfs"})


@dataclass(frozen=True)
class GdsHost:
    """What this node has of GDS. Empty texts and None where a thing is not there.

    `driver` is the NVIDIA driver's version line, `nvidia_fs` that of nvidia-fs; `udev` says that `/run/udev` is a folder
    (cuFile looks devices up there); `config` is the path of cufile.json, `allow_compat` what it says of silent fallback.
    """

    driver: str = ""
    nvidia_fs: str = ""
    udev: bool = False
    config: str = ""
    config_problem: str = ""
    allow_compat: bool | None = None


def lane(facts: PathFacts, host: GdsHost) -> Finding:
    """Return what GDS could do for files at this path from this node.

    `possible` in the facts is never a promise: only the counters of a save prove the route.
    """
    storage, node = _storage_reasons(facts), _node_reasons(host)
    numbers = {"possible": not storage and not node, "driver": host.driver, "nvidia_fs": host.nvidia_fs, "config": host.config}
    if storage or node:
        message = f"no GPUDirect Storage here: {'; '.join((*storage, *node))}; bytes take the host route"
        return Finding("gds", Severity.INFO, message, where=facts.existing, facts=numbers)
    notes = _notes(facts, host)
    message = "GPUDirect Storage is possible here" + (f", but {'; '.join(notes)}" if notes else "")
    remedy = "a save's receipt says which route its bytes took"
    return Finding("gds", Severity.INFO, message, where=facts.existing, remedy=remedy, facts=numbers)


def _storage_reasons(facts: PathFacts) -> tuple[str, ...]:
    row = facts.mount
    if row.type in _NATIVE:
        return ()
    if row.type in ("nfs", "nfs4"):
        return () if row.option("proto") == "rdma" else ("NFS is mounted over TCP, and only NFS over RDMA is supported",)
    if row.type not in _DISKS:
        return (f"{row.type} is not supported by nvidia-fs",)
    reasons = []
    if row.type == "ext4" and row.option("data") not in ("ordered", None):
        reasons.append("ext4 is not mounted with data=ordered")
    leaves = [device for device in facts.devices if not device.below]
    if not leaves:
        reasons.append("its devices can't be seen from here")
    if any(device.name.startswith("dm-") for device in facts.devices):
        reasons.append("device-mapper volumes (LVM, crypt) are refused")
    if strange := sorted({device.name for device in leaves if not device.name.startswith("nvme")}):
        reasons.append(f"{', '.join(strange)} is no NVMe disk")
    return tuple(reasons)


def _node_reasons(host: GdsHost) -> tuple[str, ...]:
    if not host.driver:
        return ("this node has no NVIDIA driver",)
    reasons = []
    if not host.nvidia_fs:
        reasons.append("nvidia-fs is not loaded (PCI P2PDMA alone may work on NVMe, and is not judged)")
    if not host.udev:
        reasons.append("/run/udev is not a folder here: mount it into the container")
    if host.config_problem:
        reasons.append(f"{host.config}: {host.config_problem}")
    return tuple(reasons)


def _notes(facts: PathFacts, host: GdsHost) -> tuple[str, ...]:
    notes = []
    if facts.mount.type == "wekafs":
        notes.append("WekaFS writes take the host route unless fs.weka.rdma_write_support is set")
    if facts.mount.type == "ext4" and facts.mount.option("data") is None:
        notes.append("ext4 without an explicit data=ordered was refused by some versions")
    if host.allow_compat is not False:
        notes.append("cuFile falls back to the host route in silence (properties.allow_compat_mode)")
    return tuple(notes)
