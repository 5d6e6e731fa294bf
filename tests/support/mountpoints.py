"""The mount points /shared and /local on the root disk: the one thing that all rigs of a machine have in common.

They must be ordinary folders of the root file system, because a node without the mount has to fall through to it. A rig
marks the folders that it uses, and only ever empties or removes marked ones while no other rig holds them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from tests.support.processes import RigError

POINTS = (Path("/shared"), Path("/local"))
_MARK = "user.test-rig"


def blocked_point() -> Path | None:
    """A mount point that is somebody else's: it is a mount, or has content that no rig made; None when all are free."""
    for point in POINTS:
        if os.path.ismount(point):
            return point
        if point.exists() and _MARK not in os.listxattr(point) and os.listdir(point):
            return point
    return None


def claim_points() -> list[int]:
    """Make the mount points if need be, and lock them against removal; returns the locks, for `release_points`."""
    blocked = blocked_point()
    if blocked is not None:
        raise RigError(f"{blocked} is in use by something that is not a test rig")
    return [_claim(point) for point in POINTS]


def empty_points(locks: list[int]) -> bool:
    """Remove what fell through to the root disk; False, with nothing done, when another rig may own these files."""
    emptied = True
    for point, lock in zip(POINTS, locks, strict=True):
        if _alone(lock):
            for entry in list(os.scandir(point)):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)
        else:
            emptied = False
        fcntl.flock(lock, fcntl.LOCK_SH)
    return emptied


def release_points(locks: list[int]) -> None:
    """Give the locks back, and remove the mount points if no other rig runs."""
    for point, lock in zip(POINTS, locks, strict=True):
        if _alone(lock):  # else removing the folder would detach what the other rig has mounted on it
            shutil.rmtree(point)
        os.close(lock)


def _claim(point: Path) -> int:
    while True:
        point.mkdir(exist_ok=True)
        lock = os.open(point, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_SH)
        # Another rig may have removed the folder between our open and our lock.
        if point.exists() and os.fstat(lock).st_ino == point.stat().st_ino:
            os.setxattr(lock, _MARK, b"1")
            return lock
        os.close(lock)


def _alone(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
