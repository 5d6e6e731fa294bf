"""What a site says of its storage: which mounts there should be, what is ephemeral, what may hold which artifact. Pure."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from ckptctl.model.mount import MountRow
from ckptctl.model.verdict import Placement


class Mode(str, Enum):
    """How strictly `run` takes a refusal, from lax to strict: record only, tell the user and go on, refuse."""

    AUDIT = "audit"
    WARN = "warn"
    ENFORCE = "enforce"

    @property
    def rank(self) -> int:
        """The position from lax to strict."""
        return list(Mode).index(self)


class Artifact(str, Enum):
    """What is to be kept at a path."""

    CHECKPOINT = "checkpoint"
    OPTIMIZER = "optimizer"
    EVAL_WEIGHTS = "eval-weights"
    DATASET_CACHE = "dataset-cache"
    PREPROCESS_CACHE = "preprocess-cache"
    SCRATCH_LOG = "scratch-log"

    @property
    def durable(self) -> bool:
        """Whether losing it with its node would be a loss."""
        return self in (Artifact.CHECKPOINT, Artifact.OPTIMIZER, Artifact.EVAL_WEIGHTS)


class Durability(str, Enum):
    """What a site promises of the files on a mount, from strong to weak."""

    DURABLE = "durable"
    SCRATCH = "scratch"
    EPHEMERAL = "ephemeral"

    @property
    def rank(self) -> int:
        """The position from strong to weak."""
        return list(Durability).index(self)


_DURABLE = frozenset({Placement.SHARED_PARALLEL, Placement.SHARED_SERVER})
_CACHES = _DURABLE | {
    Placement.SHARED_WRITEBACK,
    Placement.SHARED_OBJECT,
    Placement.SHARED_EPHEMERAL,
    Placement.NODE_ATTACHED_NETWORK_BLOCK,
    Placement.NODE_LOCAL,
    Placement.VOLATILE,
}


@dataclass(frozen=True)
class ExpectedMount:
    """A mount that the site promises at `path` on every node that may run jobs.

    `type` and `source` (a pattern with `*`) are what the mount table must show, empty for anything but the root file system's.
    `durability` is what the site keeps of it: scratch has no backup, what is ephemeral goes with the job or at some time.
    `declare` is the class of storage that can't be classified from here (a virtiofs share, a FUSE client nobody knows).
    Files unused for `purge_days` are removed by the site, 0 for never. `forbid_options` are mount options that refuse a path.
    """

    path: str
    type: str = ""
    source: str = ""
    declare: Placement | None = None
    purge_days: int = 0
    forbid_options: tuple[str, ...] = ()
    durability: Durability = Durability.DURABLE

    def problem(self, row: MountRow) -> str:
        """Return how the mount that is there differs from the one promised, or an empty string."""
        what = f"{row.type} from {row.source or '(no source)'}, mounted at {row.mount_point}"
        if self.type and row.type not in (self.type, f"fuse.{self.type}") and not (self.type == "nfs" and row.type == "nfs4"):
            return f"expected {self.type} at {self.path}, found {what}"
        if self.source and not fnmatch.fnmatchcase(row.source, self.source):
            return f"expected {self.source} at {self.path}, found {what}"
        if not self.type and not self.source and row.mount_point == "/" and self.path != "/":
            return f"expected a mount at {self.path}, found none: {what}"
        return ""


@dataclass(frozen=True)
class SitePolicy:
    """The site's word. The defaults are usable without any.

    `untightened` is the site's word before a user tightened it: what that refuses stays refused, whatever the user's words make
    of the path.
    """

    mode: Mode = Mode.ENFORCE
    mounts: tuple[ExpectedMount, ...] = ()
    ephemeral_globs: tuple[str, ...] = ()
    allow: Mapping[Artifact, frozenset[Placement]] = field(default_factory=dict)
    untightened: SitePolicy | None = None

    def allowed(self, artifact: Artifact) -> frozenset[Placement]:
        """Return the classes that may hold an artifact without anybody's further word."""
        return self.allow.get(artifact, _DURABLE if artifact.durable else _CACHES)

    def expected(self, real: str) -> ExpectedMount | None:
        """Return the promised mount that a path lies on: the one with the longest path."""
        found = [mount for mount in self.mounts if _below(real, mount.path)]
        return max(found, key=lambda mount: len(mount.path), default=None)

    def ephemeral(self, real: str) -> str:
        """Return the pattern by which the site says that a path is removed at some time, or an empty string."""
        parts = real.split("/")
        above = ["/".join(parts[:count]) or "/" for count in range(2, len(parts) + 1)]
        return next((glob for glob in self.ephemeral_globs if any(fnmatch.fnmatchcase(path, glob) for path in above)), "")

    def tightened(self, other: SitePolicy) -> SitePolicy:
        """Return this policy with what a user adds: a stricter mode, fewer classes, more globs and mounts; never a looser word.

        A user's mount at a path that the site has promised counts beside the site's for its forbidden options and a weaker
        durability only, and a user declares no class.
        """
        promised = {mount.path for mount in self.mounts}
        added = tuple(replace(mount, declare=None) for mount in other.mounts if mount.path not in promised)
        theirs = {mount.path: mount for mount in other.mounts}
        kept = tuple(_tighter(mount, theirs[mount.path]) if mount.path in theirs else mount for mount in self.mounts)
        kinds = {*self.allow, *other.allow}
        return SitePolicy(
            mode=max(self.mode, other.mode, key=lambda mode: mode.rank),
            mounts=kept + added,
            ephemeral_globs=tuple(dict.fromkeys((*self.ephemeral_globs, *other.ephemeral_globs))),
            allow={kind: self.allowed(kind) & other.allow.get(kind, self.allowed(kind)) for kind in kinds},
            untightened=self,
        )


def _tighter(mine: ExpectedMount, other: ExpectedMount) -> ExpectedMount:
    options = tuple(dict.fromkeys((*mine.forbid_options, *other.forbid_options)))
    durability = max(mine.durability, other.durability, key=lambda word: word.rank)
    return replace(mine, forbid_options=options, durability=durability)


def _below(path: str, folder: str) -> bool:
    folder = os.path.normpath(folder)
    return folder == "/" or path == folder or path.startswith(folder + "/")
