"""`check` itself: the chain as a graph, stages beside a path, the site's word, and what a test at the path shows."""

from __future__ import annotations

import json

import pytest

from ckptctl.actions import check as action
from ckptctl.actions.check import CheckResult, graph, with_tiers
from ckptctl.checks import tools
from ckptctl.model.mount import BlockDevice, PathFacts
from ckptctl.model.report import Finding, Report, Severity
from ckptctl.model.verdict import Placement
from ckptctl.policy.placement import judge
from ckptctl.policy.site import Artifact, Durability, ExpectedMount, SitePolicy
from ckptctl.storage.mounts import parse_row

LUSTRE, EXT4 = 0x0BD00BD0, 0xEF53


def seen(row: str, magic: int, path: str, devices: tuple[BlockDevice, ...] = (), backing: PathFacts | None = None) -> PathFacts:
    """Facts of a path that is there and has room."""
    found = parse_row(row.encode())
    return PathFacts(path, path, path, "", found, magic, 0, 0, 1 << 40, 1 << 39, 100, 50, devices, backing)


ON_LUSTRE = seen("36 1 0:60 / /lustre rw - lustre s:/scratch rw,flock", LUSTRE, "/lustre/x")


def result(facts: PathFacts, *found: Finding, code: int | None = None, site: SitePolicy | None = None) -> CheckResult:
    """The result of a check of these facts, with more findings."""
    verdict = judge(facts, job_ids=(), single_machine=False, accept=frozenset(), site=site or SitePolicy())
    return CheckResult(verdict, Report(facts.asked, found), facts, verdict.exit_code if code is None else code)


def test_the_chain_of_a_shared_file_system_is_an_empty_graph() -> None:
    found = graph(result(ON_LUSTRE))
    assert found is not None
    assert (found["nodes"], found["edges"], found["fabric_attached"]) == ({}, [], "yes")
    assert found["shared"].startswith("by its type")


def test_the_chain_of_a_striped_volume_is_a_graph_with_what_is_known_of_each_device() -> None:
    devices = (
        BlockDevice("dm-0", below=("nvme0n1", "nvme1n1")),
        BlockDevice("nvme0n1", "pcie", model="Samsung"),
        BlockDevice("nvme1n1", "tcp"),
    )
    found = graph(result(seen("36 1 253:0 / /data rw - ext4 /dev/mapper/v rw", EXT4, "/data/x", devices)))
    assert found is not None
    assert list(found["nodes"]) == ["dm-0", "nvme0n1", "nvme1n1"]
    assert found["nodes"]["nvme0n1"] == {"transport": "pcie", "model": "Samsung"}
    assert found["edges"] == [("dm-0", "nvme0n1"), ("dm-0", "nvme1n1")]
    assert (found["fabric_attached"], found["shared"]) == ("no", "no")
    json.dumps(found)


def test_an_image_on_a_shared_file_system_is_followed_into_it_and_is_not_shared() -> None:
    loop = (BlockDevice("loop3", backing_file="/lustre/images/a.ext4"),)
    found = graph(result(seen("40 1 7:3 / /mnt rw - ext4 /dev/loop3 rw", EXT4, "/mnt/x", loop, ON_LUSTRE)))
    assert found is not None
    assert found["edges"] == [("loop3", "/lustre/images/a.ext4")]
    assert found["nodes"]["/lustre/images/a.ext4"]["mount"]["type"] == "lustre"
    assert found["shared"] == "no"


def test_an_image_on_a_local_disk_is_followed_to_that_disk() -> None:
    disk = seen("36 1 259:0 / / rw - ext4 /dev/nvme0n1 rw", EXT4, "/a.ext4", (BlockDevice("nvme0n1", "pcie"),))
    loop = (BlockDevice("loop3", backing_file="/a.ext4"),)
    found = graph(result(seen("40 1 7:3 / /mnt rw - ext4 /dev/loop3 rw", EXT4, "/mnt/x", loop, disk)))
    assert found is not None
    assert found["edges"] == [("loop3", "/a.ext4"), ("/a.ext4", "nvme0n1")]


FULL = Finding("space", Severity.ERROR, "too little room")
STAGE = Finding("tier", Severity.INFO, "a stage")
NOWHERE = Finding("tier-without-target", Severity.ERROR, "a stage that is flushed nowhere")


@pytest.mark.parametrize(
    ("own", "code", "tiers", "is_stage", "wanted"),
    [
        ((), 0, (), False, 0),
        ((), 0, (STAGE,), False, 0),
        ((), 0, (NOWHERE,), False, 10),
        ((FULL,), 14, (STAGE,), False, 14),
        ((), 10, (STAGE,), True, 0),
        ((Finding("no-rename", Severity.ERROR, "rename is refused"),), 10, (STAGE,), True, 14),
    ],
)
def test_stages_beside_a_path_hide_nothing_that_is_wrong_with_it(
    own: tuple[Finding, ...], code: int, tiers: tuple[Finding, ...], is_stage: bool, wanted: int
) -> None:
    found = with_tiers(result(ON_LUSTRE, *own, code=code), tiers, is_stage=is_stage)
    assert found.exit_code == wanted
    assert found.report.findings == (*own, *tiers)


@pytest.mark.parametrize("kind", [Artifact.CHECKPOINT, Artifact.DATASET_CACHE])
def test_scratch_and_purge_are_told_of_what_is_to_be_kept(kind: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action, "look", lambda path, deadline_s: ON_LUSTRE)
    monkeypatch.setattr(tools, "output", lambda *words, **more: None)
    site = SitePolicy(mounts=(ExpectedMount("/lustre", purge_days=30, durability=Durability.SCRATCH),))
    found = {one.name: one for one in action.check("/lustre/x", site=site, artifact=kind).report.findings}
    assert ("scratch" in found, "purged" in found) == (kind.durable, kind.durable)


def test_a_cache_of_the_client_that_a_test_has_found_refuses_what_looked_good(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Finding("kept-on-this-node", Severity.ERROR, "released state: attached")
    monkeypatch.setattr(action, "look", lambda path, deadline_s: ON_LUSTRE)
    monkeypatch.setattr(tools, "output", lambda *words, **more: None)
    monkeypatch.setattr(action, "_probe", lambda facts, verdict, left_s: (kept,))
    assert action.check("/lustre/x").exit_code == 0
    found = action.check("/lustre/x", probe=True)
    assert (found.exit_code, found.verdict.placement, found.verdict.allowed) == (10, Placement.SHARED_WRITEBACK, False)
    assert "PCC" in found.verdict.reason
