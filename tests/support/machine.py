"""One machine of the rig: a set of Linux namespaces that lives as long as its init process.

Killing that init is pulling the plug: the kernel kills every process of the machine with it and frees its mounts, so
nothing can be left over, whatever state a rank was in. Should the test process itself die, the pipe it holds closes,
init ends, and the machine goes the same way.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.support.processes import (
    Process,
    RigError,
    RigTimeoutError,
    all_pids,
    only_descendant,
    pid_namespace,
    read_process,
    run_bounded,
    send_signal,
    tail,
    wait_for,
)

# Reaps orphans (daemons double-fork, ranks outlive their slurmstepd) and ends when the test process does.
_INIT = """
import os, signal
def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
signal.signal(signal.SIGCHLD, reap)
reap()
os.read(0, 1)
"""

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/root",
    "USER": "root",
    "SHELL": "/bin/sh",
}

SHARED_TYPE = "fuse.glusterfs"


class Machine:
    """A set of mount, pid, uts, ipc and network namespaces.

    The first machine, `ctl`, sets up the bridge `rig0`; the others are made inside it and plugged into that bridge.
    """

    def __init__(
        self,
        name: str,
        address: str,
        setup: Sequence[str],
        log: Path,
        *,
        inside: Machine | None = None,
        volume: str | None = None,
    ) -> None:
        self.name = name
        self.address = address
        self.volume = volume
        self._setup = list(setup)
        self._log = log
        self._inside = inside
        self._launcher: subprocess.Popen[bytes] | None = None
        self._init = 0
        self._namespace: str | None = None
        self._boots = 0

    @property
    def is_up(self) -> bool:
        """Whether its init process lives."""
        return self._launcher is not None and self._launcher.poll() is None

    def enter(self, *, mount: bool = True) -> list[str]:
        """The argv prefix that runs a command on this machine; `mount=False` keeps the caller's own mounts."""
        if not self.is_up:
            raise RigError(f"machine {self.name} is powered off; start it first")
        return ["nsenter", "-t", str(self._init), "-n", "-u", "-i", "-p", *(["-m"] if mount else []), "--"]

    def boot(self, deadline_s: float = 10) -> None:
        """Make the namespaces, run the set-up lines in them, and leave init running."""
        share = ["unshare", "--mount", "--propagation", "private", "--uts", "--ipc", "--net", "--pid", "--fork"]
        argv = [*(self._inside.enter() if self._inside else []), *share, "--mount-proc"]
        self._boots += 1
        start = f"exec {shlex.quote(sys.executable)} -I -S -c {shlex.quote(_INIT)}"
        script = "\n".join(
            ["set -e", f"hostname {self.name}", "ip link set lo up", *self._wire(), *self._setup, "echo ready", start]
        )
        with self._log.open("ab") as errors:
            launcher = subprocess.Popen(
                [*argv, "sh", "-c", script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=ENVIRONMENT,
                start_new_session=True,
            )
        self._launcher = launcher
        assert launcher.stdout is not None
        readable, _, _ = select.select([launcher.stdout], [], [], deadline_s)
        word = os.read(launcher.stdout.fileno(), 64) if readable else b""
        launcher.stdout.close()
        if word != b"ready\n":
            self.power_off()
            kind = RigError if readable else RigTimeoutError
            raise kind(f"machine {self.name} did not boot\n{tail(self._log)}")
        init = only_descendant(launcher.pid)
        if init is None:
            raise RigError(f"machine {self.name}: its init is not among the processes")
        self._init = init
        self._namespace = pid_namespace(init)

    @property
    def _cable(self) -> str:
        # A new name for each boot: the kernel takes the old pair away only some time after its machine has ended.
        return f"{self.name}-{self._boots}"

    def _wire(self) -> list[str]:
        if self._inside is None:
            return [
                "ip link add rig0 type bridge",
                f"ip address add {self.address}/24 dev rig0",
                "ip link set rig0 up",
                "mount -t tmpfs -o mode=755 tmpfs /run",
                "mkdir /run/netns",
                "touch /run/netns/ctl",
                "mount --bind /proc/self/ns/net /run/netns/ctl",
            ]
        return [
            f"ip link add eth0 type veth peer name {self._cable} netns ctl",
            f"ip address add {self.address}/24 dev eth0",
            "ip link set eth0 up",
            f"nsenter --net=/run/netns/ctl ip link set {self._cable} master rig0 up",
        ]

    def unplug(self) -> None:
        """Cut the network: whatever the machine sends or is sent from now on vanishes, without an error to anyone."""
        self._link("down")

    def plug(self) -> None:
        """Undo `unplug`."""
        self._link("up")

    def _link(self, state: str) -> None:
        if self._inside is None:
            raise RigError(f"{self.name} has no cable")
        self._inside.exec(["ip", "link", "set", self._cable, state], check=True)

    def power_off(self) -> None:
        """Kill everything on the machine at once and wait until nothing is left; harmless when it is off."""
        launcher, self._launcher = self._launcher, None
        if launcher is None:
            return
        if self._init and launcher.poll() is None:  # else its number may be somebody else's by now
            send_signal(self._init, signal.SIGKILL)
        assert launcher.stdin is not None
        launcher.stdin.close()
        try:
            launcher.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(launcher.pid, signal.SIGKILL)
            launcher.wait()
        if self._namespace:
            wait_for(f"end of all processes of {self.name}", lambda: not self._members(), 10)
        self._init, self._namespace = 0, None

    def _members(self) -> list[int]:
        return [pid for pid in all_pids() if self._namespace is not None and pid_namespace(pid) == self._namespace]

    def processes(self) -> list[Process]:
        """What runs on it now, without its init and the FUSE client of its mount; empty when it is off."""
        found = (read_process(pid) for pid in self._members() if pid != self._init)
        return [p for p in found if p is not None and p.name not in {"glusterfs", "glusterfsd", "glusterd"}]

    def pids(self) -> list[int]:
        """Their process ids, as the test process sees them."""
        return [process.pid for process in self.processes()]

    def outer_pid(self, inner_pid: int) -> int:
        """The test process's number for a process that calls itself `inner_pid` on this machine."""
        for process in self.processes():
            if process.inner_pid == inner_pid:
                return process.pid
        raise RigError(f"no process {inner_pid} on {self.name}")

    def signal(self, target: int | Callable[[Process], bool], number: int) -> list[int]:
        """Signal one process (by the test process's number) or all that match; returns the ones that were hit.

        A pid that is not on this machine is refused, so that a stale number can never hit a stranger.
        """
        chosen = [p.pid for p in self.processes() if (target(p) if callable(target) else p.pid == target)]
        if not chosen:
            raise RigError(f"no process on {self.name} matches {target!r}; it runs {self.processes()}")
        return [pid for pid in chosen if send_signal(pid, number)]

    def exec(
        self,
        argv: Sequence[str | Path],
        timeout_s: float = 30,
        *,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the machine, with a minimal environment plus `env`, and capture its text output."""
        done = run_bounded([*self.enter(), *argv], timeout_s, env={**ENVIRONMENT, **(env or {})}, stdin=stdin)
        if check and done.returncode != 0:
            command = " ".join(map(str, argv))
            raise RigError(f"exit code {done.returncode} on {self.name}: {command}\n{done.stdout}{done.stderr}")
        return done

    def daemon(self, argv: Sequence[str | Path], log: Path, timeout_s: float = 20) -> None:
        """Start a program that puts itself into the background; its early output goes to `log`."""
        # Not captured: a daemon that keeps its standard output open would hold the reader for ever.
        line = f"exec {shlex.join(map(str, argv))} >>{shlex.quote(str(log))} 2>&1"
        done = run_bounded([*self.enter(), "sh", "-c", line], timeout_s, env=ENVIRONMENT)
        if done.returncode != 0:
            raise RigError(f"exit code {done.returncode} on {self.name}: {' '.join(map(str, argv))}\n{tail(log)}")

    @property
    def has_mount(self) -> bool:
        """Whether the shared file system is mounted at /shared, by the machine's own mount table."""
        for line in Path(f"/proc/{self._init}/mountinfo").read_text().splitlines():
            fields, _, rest = line.partition(" - ")
            if fields.split()[4] == "/shared" and rest.split()[0] == SHARED_TYPE:
                return True
        return False

    def mount_shared(self) -> None:
        """Mount the volume at /shared with a client process of this machine's own; nothing to do when mounted."""
        if self.volume is None:
            raise RigError(f"{self.name} is the machine without the mount")
        if not self.has_mount:
            log = self._log.with_name(f"gluster-{self.name}.log")
            self.exec(["mount", "-t", "glusterfs", "-o", f"log-file={log}", self.volume, "/shared"], check=True)

    def unmount_shared(self) -> None:
        """Detach /shared on this machine only, as a lazy unmount: open files stay, the path falls through."""
        self.exec(["umount", "--lazy", "/shared"], check=True)
