"""Mounts in a mount namespace of their own, which ends with the test's process, and what `check` says of paths there."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ckptctl.actions.check import check
from tests.support.processes import run_bounded

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 30
_ONE_BY_ONE = """
import json, sys
from dataclasses import asdict
from ckptctl.actions.check import check, probe_node
from ckptctl.model.verdict import Placement
options = json.loads(sys.argv[1])
accept = frozenset({Placement.CONTAINER_EPHEMERAL})
for path in sys.argv[2:]:
    result = check(path, single_machine=True, accept=accept, **options)
    print(json.dumps({**asdict(result), "node": probe_node(path), "strict": check(path).exit_code}))
"""
_CANNOT, _FAILED = 77, 78


@functools.cache
def unavailable() -> str:
    """Return why this machine makes no mount namespaces, an empty string where it does."""
    if os.geteuid() != 0:
        return "needs root (mounts)"
    for command in ("unshare", "mount", "bash"):
        if shutil.which(command) is None:
            return f"needs {command}"
    done = subprocess.run(["unshare", "-m", "true"], capture_output=True, text=True)
    return f"may not make mount namespaces: {done.stderr.strip()}" if done.returncode else ""


def need(*commands: str, kernel: str = "") -> None:
    """Skip the test, naming what is missing, where a command or one of the kernel's file systems (`xfs fuse`) is."""
    missing = [command for command in commands if shutil.which(command) is None]
    missing += [f"{name} in the kernel" for name in kernel.split() if not _in_kernel(name)]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


def need_loop_devices() -> None:
    """Skip the test where image files can't be mounted."""
    need("losetup", "mkfs.ext4", kernel="ext4")
    done = subprocess.run(["losetup", "-f"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs loop devices: {done.stderr.strip()}")


@functools.cache
def _in_kernel(name: str) -> bool:
    for _ in range(2):
        if name in Path("/proc/filesystems").read_text().split():
            return True
        if shutil.which("modprobe") is None:
            break
        subprocess.run(["modprobe", "-q", name], capture_output=True)
    return False


def inside(folder: Path, setup: str, code: str, *arguments: str, sure: bool = False, processes: bool = False) -> str:
    """Run `setup` (bash) and then Python code in a new mount namespace; return what the code printed.

    A setup that fails skips the test; with `sure`, which says that all it needs was looked for before, it fails it, unless it
    ended with `exit 77`. With `processes` there are a process and a network namespace too, so that daemons of the setup end
    with the code.
    """
    script = f'cd "$1"; bash -ec "$2" >&2; made=$?; [ $made = 0 ] || exit $((made == {_CANNOT} ? {_CANNOT} : {_FAILED}))\n'
    script += 'shift 2; exec "$@"'
    command = ["unshare", "-m", "--propagation", "private"]
    command += ["-n", "-p", "--fork", "--kill-child", "--mount-proc"] if processes else []
    done = run_bounded(
        [*command, "bash", "-c", script, "bash", folder, setup, sys.executable, "-c", code, *arguments],
        LIMIT_S,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    if done.returncode == _CANNOT or (done.returncode == _FAILED and not sure):
        pytest.skip(f"this machine can't make the mounts: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout


def looked(
    folder: Path, setup: str, *paths: str, probe: bool = False, sure: bool = False, processes: bool = False
) -> list[dict[str, Any]]:
    """Return what `check` says of each path after the setup, on a single machine; `strict` is its exit code elsewhere."""
    options = json.dumps({"probe": probe})
    out = inside(folder, setup, _ONE_BY_ONE, options, *paths, sure=sure, processes=processes)
    return [json.loads(line) for line in out.splitlines()]


def placement(result: dict[str, Any]) -> str:
    """Return the class that a result of `looked` has."""
    return str(result["verdict"]["placement"])


def names(result: dict[str, Any]) -> set[str]:
    """Return the names of what was found."""
    return {finding["name"] for finding in result["report"]["findings"]}


def disk_class(folder: Path) -> str:
    """Return the class of a folder of the test itself, which depends on the machine."""
    return check(str(folder)).verdict.placement.value


def image_class(folder: Path) -> str:
    """Return the class of an image file in a folder: its own, and never that of a network volume."""
    found = disk_class(folder)
    return "NODE_LOCAL" if found == "NODE_ATTACHED_NETWORK_BLOCK" else found
