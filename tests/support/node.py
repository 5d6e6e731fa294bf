"""A compute node of the rig: a machine with a slurmd, and the ways in which it can be lost."""

from __future__ import annotations

import signal
import uuid
from pathlib import Path

from tests.support.machine import Machine
from tests.support.processes import Process, tail, wait_for


class RigNode(Machine):
    """One compute node. Switched off by `kill`, back by `start_slurmd`, then with a new boot id."""

    def __init__(self, name: str, address: str, base: Path, inside: Machine, volume: str | None) -> None:
        self.local = base / "local" / name
        self._boot_id = base / "boot_id" / name
        self.log_file = base / "log" / f"slurmd-{name}.log"
        self.local.mkdir(parents=True)
        setup = [
            f"mount --bind {self._boot_id} /proc/sys/kernel/random/boot_id",
            f"mount --bind {self.local} /local",
            "mount -t tmpfs -o mode=1777 tmpfs /dev/shm",
            f"mkdir -p /run/slurm/spool-{name}",
        ]
        super().__init__(name, address, setup, base / "log" / f"boot-{name}.log", inside=inside, volume=volume)

    def boot(self, deadline_s: float = 10) -> None:
        """Power it on, with a fresh boot id."""
        self._boot_id.parent.mkdir(exist_ok=True)
        self._boot_id.write_text(f"{uuid.uuid4()}\n")
        super().boot(deadline_s)

    @property
    def boot_id(self) -> str:
        """What /proc/sys/kernel/random/boot_id says on this node since its last boot."""
        return self._boot_id.read_text().strip()

    def _slurmd(self) -> Process | None:
        # The daemon itself is a child of init; slurmd also forks short-lived copies of its own name.
        return next((p for p in self.processes() if p.name == "slurmd" and p.parent == self._init), None)

    @property
    def slurmd_pid(self) -> int | None:
        """The node daemon's process id as the test process sees it; None when it does not run."""
        found = self._slurmd() if self.is_up else None
        return found.pid if found else None

    def start_slurmd(self) -> None:
        """Bring the node back: power it on and mount /shared if it was off, then start slurmd unless it runs.

        A mount that a test took away from a running node is not repaired here: see `mount_shared`.
        """
        if not self.is_up:
            self.boot()
            if self.volume is not None:
                self.mount_shared()
        if self._slurmd() is None:
            self.daemon(["slurmd", "-N", self.name, "-L", self.log_file], self.log_file)

    def kill(self) -> None:
        """Lose the node as when the power goes: everything on it ends at once, and its peers hear nothing.

        Its network is cut first. Without that the kernel closed the dead processes' connections, and srun sometimes
        ended the job for "Connection reset by peer" before Slurm noticed the loss, as it never does on real machines.
        """
        if self.is_up:
            self.unplug()
            self.power_off()

    def kill_slurmd(self) -> None:
        """Partition the node: SIGKILL its slurmd only; slurmstepd, the batch script and the ranks live on."""
        self.signal(lambda process: process.name == "slurmd", signal.SIGKILL)
        wait_for(f"end of slurmd on {self.name}", lambda: self._slurmd() is None, 5)

    def log(self) -> str:
        """The tail of the slurmd log."""
        return tail(self.log_file)
