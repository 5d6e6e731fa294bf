"""A folder that looks like /sys as far as block devices go."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ckptctl.model.mount import BlockDevice
from ckptctl.storage.devices import backing_chain
from ckptctl.storage.mounts import parse_row


class Sysfs:
    """Built folder by folder, as the kernel lays them out. All places are below `devices`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, where: str, files: Mapping[str, str] | None = None) -> Path:
        """Make a folder with files: a controller, a subsystem, a SCSI device."""
        folder = self.root / "devices" / where
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in (files or {}).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text + "\n")
        return folder

    def disk(
        self,
        where: str,
        numbers: str,
        files: Mapping[str, str] | None = None,
        *,
        below: tuple[str, ...] = (),
        device: str = "",
    ) -> None:
        """Make a block device: `below` are the places of what it is made of, `device` where its link of that name leads."""
        folder = self.folder(where, files)
        if device:
            self._link(folder / "device", self.root / "devices" / device)
        for other in below:
            self._link(folder / "slaves" / Path(other).name, self.root / "devices" / other)
        self._link(self.root / "dev" / "block" / numbers, folder)
        self._link(self.root / "class" / "block" / folder.name, folder)

    def link(self, at: str, where: str) -> None:
        """Make a link anywhere below the root to a place below `devices`."""
        self._link(self.root / at, self.root / "devices" / where)

    def chain(
        self, numbers: str, fs_type: str = "ext4", source: str = "/dev/x", options: str = "rw"
    ) -> tuple[BlockDevice, ...]:
        """Return what is below a mount of these numbers, type, source and options."""
        line = f"1 0 {numbers} / /mnt rw - {fs_type} {source} {options}"
        return backing_chain(parse_row(line.encode()), str(self.root))

    @staticmethod
    def _link(at: Path, to: Path) -> None:
        at.parent.mkdir(parents=True, exist_ok=True)
        at.symlink_to(os.path.relpath(to, at.parent.resolve()))
