"""What a file system's quota says of one user, group, project or fileset."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Quota:
    """One quota. Limits are None where there is none; `name` says whose it is (`user 1000`, `fileset scratch`).

    Beyond a soft limit writing goes on until its grace has passed; `grace` is what the tool prints of that, empty when the soft
    limit is kept. At a hard limit writing fails with EDQUOT.
    """

    name: str
    used_bytes: int
    soft_bytes: int | None
    hard_bytes: int | None
    used_inodes: int
    soft_inodes: int | None
    hard_inodes: int | None
    grace: str = ""

    @property
    def limit_bytes(self) -> int | None:
        """The bytes at which writing fails sooner or later: the hard limit, or a soft one that has no hard one above it."""
        return self.hard_bytes or self.soft_bytes

    @property
    def limit_inodes(self) -> int | None:
        """The same of files and folders."""
        return self.hard_inodes or self.soft_inodes

    @property
    def limited(self) -> bool:
        """Whether anything is limited at all."""
        return bool(self.limit_bytes or self.limit_inodes)


@dataclass(frozen=True)
class Component:
    """One part of a Lustre file layout: from byte `start` to `end` (None: to the end of the file), on `stripes` OSTs.

    -1 stripes are all OSTs.
    """

    start: int
    end: int | None
    stripes: int
