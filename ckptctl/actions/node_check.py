"""`node-check`: are the mounts that the site promises there on this node, and do they answer? For health checks of nodes."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ckptctl.actions.check import check
from ckptctl.model.verdict import Placement
from ckptctl.policy.placement import FAULTS
from ckptctl.policy.site import SitePolicy

_LEAST_S = 0.5


@dataclass(frozen=True)
class MountState:
    """One promised mount: whether it is well, and why not."""

    path: str
    placement: Placement
    well: bool
    reason: str


@dataclass(frozen=True)
class NodeState:
    """This node's promised mounts. `reason` is one line for a drain reason, empty when all are well."""

    mounts: tuple[MountState, ...]

    @property
    def well(self) -> bool:
        """Whether the node may run jobs, as far as storage is concerned."""
        return all(mount.well for mount in self.mounts)

    @property
    def reason(self) -> str:
        """A short line that names what is wrong; the same check clears it."""
        wrong = [f"{mount.path} {mount.placement.value}" for mount in self.mounts if not mount.well]
        return f"ckptctl: {'; '.join(wrong)}" if wrong else ""

    @property
    def exit_code(self) -> int:
        """0, or 14."""
        return 0 if self.well else 14


def node_check(site: SitePolicy, *, deadline_s: float) -> NodeState:
    """Look at every mount that the site promises, as this user; returns by the deadline also when one of them hangs.

    Only faults of the node count: a promised mount that is missing, another one, hung, or read-only. What a user may keep there
    is no question here.
    """
    end = time.monotonic() + deadline_s
    found = []
    for number, mount in enumerate(site.mounts):
        share_s = (end - time.monotonic()) / (len(site.mounts) - number)
        verdict = check(mount.path, site=site, deadline_s=max(_LEAST_S, share_s)).verdict
        found.append(MountState(mount.path, verdict.placement, verdict.placement not in FAULTS, verdict.reason))
    return NodeState(tuple(found))
