"""A real Slurm cluster with a real GlusterFS on one machine.

Real munged, slurmctld and one slurmd per node; a real two-brick GlusterFS volume. Every node is a `Machine`: its own
mounts, process ids, host name, boot id, /local and /dev/shm, and its own network address and its own FUSE client for
/shared, so that losing a node, its network or its mount touches no other. The network is a bridge that leads nowhere
else, and /run, /etc/slurm and GlusterFS's own folders are replaced: two rigs on one machine do not meet.

What it is not: the nodes share one kernel, one clock and one root disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from tests.support.machine import ENVIRONMENT, SHARED_TYPE, Machine
from tests.support.mountpoints import blocked_point, claim_points, empty_points, release_points
from tests.support.node import RigNode
from tests.support.processes import RigError, RigTimeoutError, run_bounded, send_signal, tail, wait_for

_NETWORK = "10.77.0"  # on the rig's own bridge; no packet leaves it
_VOLUME = f"{_NETWORK}.1:/ckpt"
_COMMANDS = (
    *("unshare", "nsenter", "mount", "umount", "ip", "findmnt"),
    *("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel"),
    *("glusterd", "gluster", "mount.glusterfs"),
)

SETTINGS: dict[str, str] = {
    "ClusterName": "rig",
    "SlurmctldHost": f"ctl({_NETWORK}.1)",
    "SlurmUser": "root",
    "AuthType": "auth/munge",
    "AuthInfo": "socket=/run/munge/munge.socket.2",
    "StateSaveLocation": "/run/slurm/state",
    "SlurmdSpoolDir": "/run/slurm/spool-%n",
    "SlurmctldPidFile": "/run/slurm/slurmctld.pid",
    "SlurmdPidFile": "/run/slurm/slurmd-%n.pid",
    "SlurmctldDebug": "debug",
    "SlurmdDebug": "debug",
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/none",
    "JobAcctGatherType": "jobacct_gather/none",
    "AccountingStorageType": "accounting_storage/none",
    "JobCompType": "jobcomp/none",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CPU",
    "MpiDefault": "none",
    "SwitchType": "switch/none",
    "PropagateResourceLimits": "NONE",
    "SlurmdParameters": "config_overrides",  # a node claims more processors than this machine has
    "SchedulerType": "sched/backfill",
    "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1",
    "ReturnToService": "2",
    "JobRequeue": "1",
    "MinJobAge": "300",
    "SlurmdTimeout": "10",
    "SlurmctldTimeout": "10",
    "MessageTimeout": "5",
    "KillWait": "5",
    "InactiveLimit": "0",
}


class Cluster:
    """The running rig; use as a context manager: `with Cluster.start(base) as cluster`.

    `shared` is the volume as the test process itself sees it, a mount of its own; jobs see it at /shared.
    """

    def __init__(self, base: Path, nodes: int, without_mount: Collection[str], settings: Mapping[str, str]) -> None:
        self.base = base.resolve()
        self.shared = self.base / "mnt"
        self.jobs = self.base / "jobs"
        self.logs = self.base / "log"
        for folder in (self.shared, self.jobs, self.logs, *(self.base / "etc" / name for name in ("", "slurm"))):
            folder.mkdir(parents=True, exist_ok=True)
        addresses = {f"n{number}": f"{_NETWORK}.{10 + number}" for number in range(1, nodes + 1)}
        self._points: list[int] = []
        self._write_configuration(addresses, {**SETTINGS, **settings})
        self._ctl = Machine("ctl", f"{_NETWORK}.1", self._ctl_setup(), self.logs / "boot-ctl.log")
        self._login = Machine("login", f"{_NETWORK}.2", [], self.logs / "boot-login.log", inside=self._ctl, volume=_VOLUME)
        self.nodes = {
            name: RigNode(name, address, self.base, self._ctl, None if name in without_mount else _VOLUME)
            for name, address in addresses.items()
        }

    @staticmethod
    def unavailable_reason() -> str | None:
        """Why this machine cannot run the rig, naming what is missing; None when it can."""
        if os.geteuid() != 0:
            return "the rig needs root (namespaces, mounts)"
        missing = [name for name in _COMMANDS if shutil.which(name, path=ENVIRONMENT["PATH"]) is None]
        if missing:
            return f"the rig needs {', '.join(missing)} (Debian: slurmctld slurmd slurm-client munge glusterfs-server)"
        if not Path("/dev/fuse").exists():
            return "the rig needs FUSE (/dev/fuse)"
        blocked = blocked_point()
        if blocked is not None:
            return f"the rig needs {blocked} for itself, and it is in use"
        probe = run_bounded(["unshare", "--mount", "--net", "--pid", "--fork", "true"], 10, env=ENVIRONMENT)
        return f"the rig may not make namespaces: {probe.stderr.strip()}" if probe.returncode else None

    @classmethod
    def start(
        cls,
        base: Path,
        nodes: int = 6,
        without_mount: Collection[str] = ("n6",),
        settings: Mapping[str, str] | None = None,
    ) -> Cluster:
        """Bring up the whole rig with its state under `base`, all nodes IDLE; on failure nothing is left running.

        `settings` adds to or replaces lines of slurm.conf (see `SETTINGS`).
        """
        cluster = cls(base, nodes, without_mount, settings or {})
        try:
            cluster._start()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    # --- start and stop ------------------------------------------------------------------------------------------

    def _write_configuration(self, addresses: Mapping[str, str], settings: Mapping[str, str]) -> None:
        etc = self.base / "etc"
        lines = [f"{key}={value}" for key, value in settings.items()]
        lines.append(f"SlurmctldLogFile={self.logs / 'slurmctld.log'}")
        lines += [
            f"NodeName={name} NodeAddr={address} CPUs=4 RealMemory=8000 State=UNKNOWN" for name, address in addresses.items()
        ]
        lines.append(f"PartitionName=main Nodes={','.join(addresses)} Default=YES MaxTime=INFINITE State=UP")
        (etc / "slurm" / "slurm.conf").write_text("\n".join(lines) + "\n")
        hosts = {"localhost": "127.0.0.1", "ctl": f"{_NETWORK}.1", "login": f"{_NETWORK}.2", **addresses}
        (etc / "hosts").write_text("".join(f"{address} {name}\n" for name, address in hosts.items()))
        key = etc / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))

    def _ctl_setup(self) -> list[str]:
        etc = self.base / "etc"
        for folder in ("gluster", "brick1", "brick2"):
            (self.base / folder).mkdir(exist_ok=True)
        return [
            "mkdir -p /run/munge /run/gluster /run/lock /run/slurm/state",
            f"cp --preserve=mode {etc}/munge.key /run/munge/munge.key",
            f"mount --bind {etc}/slurm /etc/slurm",
            f"mount --bind {etc}/hosts /etc/hosts",
            f"mount --bind {self.base}/gluster /var/lib/glusterd",
            f"mount --bind {self.logs} /var/log/glusterfs",
        ]

    def _start(self) -> None:
        _detach_dead_mounts()
        self._points = claim_points()
        self._ctl.boot()
        machines: list[Machine] = [self._login, *self.nodes.values()]
        with ThreadPoolExecutor() as pool:
            storage = pool.submit(self._start_storage)
            controller = pool.submit(self._start_controller)
            list(pool.map(lambda machine: machine.boot(), machines))
            storage.result()
            list(pool.map(Machine.mount_shared, [machine for machine in machines if machine.volume]))
            controller.result()
            list(pool.map(RigNode.start_slurmd, self.nodes.values()))
        self._wait_idle(20)

    def _start_storage(self) -> None:
        self._ctl.daemon(["glusterd", "--log-file", self.logs / "glusterd.log"], self.logs / "glusterd.log")
        bricks = [f"{_NETWORK}.1:{self.base}/{name}" for name in ("brick1", "brick2")]
        for command in (["create", "ckpt", *bricks, "force"], ["start", "ckpt"]):
            self._ctl.exec(["gluster", "--mode=script", "volume", *command], 60, check=True)
        # In the rig's network and process namespaces, so that it ends with the rig, but in our own mounts.
        options = ["-t", "glusterfs", "-o", f"log-file={self.logs}/gluster-test.log"]
        mount = ["mount", *options, _VOLUME, str(self.shared)]
        done = run_bounded([*self._ctl.enter(mount=False), *mount], 30, env=ENVIRONMENT)
        if done.returncode != 0:
            raise RigError(f"no mount at {self.shared}: {done.stderr}\n{tail(self.logs / 'gluster-test.log')}")

    def _start_controller(self) -> None:
        munge = ["--key-file=/run/munge/munge.key", f"--log-file={self.logs}/munged.log", "--seed-file=/run/munge/seed"]
        # Forced: the folders above a test's temporary folder are private, which munged refuses for its log.
        self._ctl.daemon(["munged", "--force", *munge], self.logs / "munged.out")
        self._ctl.daemon(["slurmctld", "-i"], self.logs / "slurmctld.out")
        wait_for(
            "slurmctld answers scontrol ping",
            lambda: "is UP" in self._ctl.exec(["scontrol", "ping"]).stdout,
            20,
            log=self.slurmctld_log,
        )

    def stop(self) -> None:
        """End every process of the rig, and verify it; detach its mount; give the mount points back."""
        with contextlib.ExitStack() as last_first:  # each step is made even when another one fails
            points, self._points = self._points, []
            if points:
                last_first.callback(release_points, points)
            last_first.callback(self._unmount)
            for machine in (*self.nodes.values(), self._login, self._ctl):
                last_first.callback(machine.power_off)

    def _unmount(self) -> None:
        # Not ismount(): it calls stat, and a FUSE mount whose client has ended answers that with ENOTCONN.
        if self.shared in _rig_mounts():
            _detach(self.shared)

    # --- commands ------------------------------------------------------------------------------------------------

    def node(self, name: str) -> RigNode:
        """The node of that name."""
        return self.nodes[name]

    def run(
        self,
        argv: Sequence[str | Path],
        timeout: float = 30,
        *,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run any command on the login machine: Slurm's clients, or one that works under /shared."""
        return self._login.exec(argv, timeout, env=env, stdin=stdin, check=check)

    def sbatch(self, script: str | Path, *options: str, env: Mapping[str, str] | None = None) -> int:
        """Submit a batch script (its text, or a file) and return the job id.

        Output goes to `job_output(id)` and is appended to when the job runs again, unless `options` say otherwise.
        The job's environment is a minimal one plus `env`, never the test process's.
        """
        text = script.read_text() if isinstance(script, Path) else script
        if not text.startswith("#!"):
            text = f"#!/bin/bash\n{text}"
        defaults = [f"--chdir={self.jobs}", f"--output={self.jobs}/%j.out", "--open-mode=append"]
        done = self.run(["sbatch", "--parsable", *defaults, *options], env=env, stdin=text, check=True)
        return int(done.stdout.split(";")[0])

    def job_output(self, job_id: int) -> str:
        """What the job has written so far; empty before it starts."""
        path = self.jobs / f"{job_id}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def job(self, job_id: int) -> dict[str, str]:
        """The fields of `scontrol -o show job`."""
        return _fields(self.run(["scontrol", "-o", "show", "job", str(job_id)], check=True).stdout)

    def wait_state(self, job_id: int, states: str | Collection[str], deadline_s: float = 30) -> dict[str, str]:
        """Wait until JobState is one of `states`; returns the job's fields at that moment."""
        wanted = {states} if isinstance(states, str) else set(states)
        seen: list[str] = []

        def probe() -> dict[str, str] | None:
            job = self.job(job_id)
            if not seen or seen[-1] != job["JobState"]:
                seen.append(job["JobState"])
            return job if job["JobState"] in wanted else None

        def log() -> str:
            return f"states seen: {seen}\n{self.job_output(job_id)[-2000:]}\n{self.slurmctld_log()}"

        return wait_for(f"job {job_id} in {sorted(wanted)}", probe, deadline_s, log=log, poll_s=0.1)

    def release(self, job_id: int, deadline_s: float = 30) -> None:
        """Let a requeued job start now rather than after Slurm's 121 s, once it has left COMPLETING."""
        self.wait_state(job_id, "PENDING", deadline_s)
        argv = ["scontrol", "update", f"jobid={job_id}", "StartTime=now"]
        wait_for(
            f"job {job_id} accepts StartTime=now",
            lambda: self.run(argv).returncode == 0,
            deadline_s,
            log=self.slurmctld_log,
            poll_s=0.2,
        )

    def node_state(self, node: str) -> str:
        """The node's State as `scontrol` writes it: IDLE, MIXED+NOT_RESPONDING, DOWN+NOT_RESPONDING, IDLE+DRAIN, …"""
        return self._show_nodes()[node]["State"]

    def _show_nodes(self) -> dict[str, dict[str, str]]:
        lines = self.run(["scontrol", "-o", "show", "node"], check=True).stdout.splitlines()
        return {fields["NodeName"]: fields for fields in map(_fields, lines) if "NodeName" in fields}

    def slurmctld_log(self) -> str:
        """The tail of the controller's log."""
        return tail(self.logs / "slurmctld.log", 40)

    # --- between tests -------------------------------------------------------------------------------------------

    def restore(self, deadline_s: float = 60) -> bool:
        """No job, no leftover process, every node up with its mount and IDLE: the state after `start`.

        Files on the volume and in /local stay. Files that fell through to the root disk are removed, unless another
        rig runs on this machine, which then falls through to the same folder; returns whether they were.
        """
        end = time.monotonic() + deadline_s
        self._cancel_all()
        for machine in (self._login, *self.nodes.values()):
            self._repair(machine)
        with contextlib.suppress(RigTimeoutError):
            self._wait_idle(8)
            return empty_points(self._points)
        # Slurm still believes in something that is gone; a node that it is told is down forgets its jobs.
        for name, fields in self._show_nodes().items():
            if fields["State"] != "IDLE":
                self.nodes[name].kill()
                self.run(["scontrol", "update", f"nodename={name}", "state=down", "reason=rig"], check=True)
                self.nodes[name].start_slurmd()
        self._cancel_all()
        self._wait_idle(max(5, end - time.monotonic()))
        return empty_points(self._points)

    def _cancel_all(self) -> None:
        jobs = self.run(["squeue", "--noheader", "--format=%A"], check=True).stdout.split()
        if jobs:
            self.run(["scancel", *sorted(set(jobs))])

    def _repair(self, machine: Machine) -> None:
        if machine.is_up:
            machine.plug()
            for process in machine.processes():
                if process.name not in {"slurmd", "slurmstepd"}:
                    send_signal(process.pid, signal.SIGKILL)
            if machine.volume is not None and machine.has_mount:
                try:
                    whole = machine.exec(["stat", "--file-system", "/shared"], 5).returncode == 0
                except RigTimeoutError:
                    whole = False
                if not whole:
                    machine.unmount_shared()
        if isinstance(machine, RigNode):
            machine.start_slurmd()
        if machine.volume is not None:
            machine.mount_shared()

    def _wait_idle(self, deadline_s: float) -> None:
        def probe() -> bool:
            states = {name: fields["State"] for name, fields in self._show_nodes().items()}
            lost = {name for name, state in states.items() if "NOT_RESPONDING" in state}
            bad = [name for name, state in states.items() if re.search("DOWN|DRAIN|FAIL", state) and name not in lost]
            if bad:
                self.run(["scontrol", "update", f"nodename={','.join(bad)}", "state=resume"])
            busy = self.run(["squeue", "--noheader", "--format=%A"], check=True).stdout.split()
            return not busy and all(state == "IDLE" for state in states.values())

        def log() -> str:
            return "\n".join([self.run(["scontrol", "-o", "show", "node"]).stdout, self.slurmctld_log()])

        wait_for("all nodes IDLE and no job", probe, deadline_s, log=log, poll_s=0.1)

    def tails(self) -> dict[str, str]:
        """The ends of all logs and job outputs, by title, for the report of a failed test."""
        files = [self.logs / "slurmctld.log", *(node.log_file for node in self.nodes.values())]
        files += sorted(self.jobs.glob("*.out"), key=lambda path: path.stat().st_mtime)[-3:]
        return {path.name: tail(path) for path in files}


def _fields(line: str) -> dict[str, str]:
    """Split scontrol's one-line form; a value may hold spaces, a key starts with a capital and has none."""
    return {key: value.strip() for key, value in re.findall(r"(?:^|\s)([A-Z][\w/:]*)=(.*?)(?=\s[A-Z][\w/:]*=|$)", line)}


def _rig_mounts() -> list[Path]:
    """Where volumes of rigs, this one or others, are mounted in the test process's own namespace."""
    rows = [line.partition(" - ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [Path(left.split()[4]) for left, _, right in rows if right.split()[:2] == [SHARED_TYPE, _VOLUME]]


def _detach(mount: Path) -> None:
    done = run_bounded(["umount", "--lazy", mount], 20, env=ENVIRONMENT)
    if done.returncode != 0:
        raise RigError(f"cannot unmount {mount}: {done.stderr}")


def _detach_dead_mounts() -> None:
    """Clear what a test process that was killed could not: its processes ended with it, its mount did not."""
    for mount in _rig_mounts():
        try:
            os.statvfs(mount)  # stat() would be answered from the kernel's cache for a second
        except OSError as error:
            if error.errno in {errno.ENOTCONN, errno.ECONNABORTED}:
                _detach(mount)
