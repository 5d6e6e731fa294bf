"""What GPUDirect Storage could do at a path: never a claim, always with the reasons."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ckptctl.checks import gds
from ckptctl.model.mount import BlockDevice, MountRow, PathFacts
from ckptctl.policy.gds import GdsHost, lane

READY = GdsHost(driver="NVRM version: 570", nvidia_fs="version: 2.25", udev=True, allow_compat=False)
NVME = (BlockDevice("nvme0n1", "pcie", "Samsung"),)


def facts(kind: str, options: tuple[str, ...] = ("rw",), devices: tuple[BlockDevice, ...] = ()) -> PathFacts:
    """Return facts of a path on a file system of a kind."""
    row = MountRow(1, 0, 0, 1, "/", "/m", ("rw",), (), kind, "source", options)
    return PathFacts("/m", "/m", "/m", "", row, 0, 0, 0, 10, 10, None, None, devices)


@pytest.mark.parametrize(
    ("seen", "possible", "word"),
    [
        (facts("lustre"), True, ""),
        (facts("gpfs"), True, ""),
        (facts("wekafs"), True, "rdma_write_support"),
        (facts("nfs4", ("rw", "proto=rdma")), True, ""),
        (facts("nfs4", ("rw", "proto=tcp")), False, "over TCP"),
        (facts("ext4", ("rw", "data=ordered"), NVME), True, ""),
        (facts("ext4", ("rw",), NVME), True, "data=ordered"),
        (facts("ext4", ("rw", "data=journal"), NVME), False, "data=ordered"),
        (facts("xfs", ("rw",), NVME), True, ""),
        (facts("xfs", ("rw",), (BlockDevice("dm-0", below=("nvme0n1",)), *NVME)), False, "device-mapper"),
        (facts("xfs", ("rw",), (BlockDevice("vda", "virtio"),)), False, "vda is no NVMe disk"),
        (facts("xfs"), False, "can't be seen"),
        (facts("tmpfs"), False, "tmpfs is not supported"),
        (facts("overlay"), False, "overlay is not supported"),
        (facts("fuse.glusterfs"), False, "fuse.glusterfs is not supported"),
        (facts("zfs"), False, "zfs is not supported"),
    ],
)
def test_what_the_storage_allows(seen: PathFacts, possible: bool, word: str) -> None:
    found = lane(seen, READY)
    assert found.facts["possible"] is possible
    assert word in found.message
    assert found.severity.value == "info"
    if not possible:
        assert found.message.startswith("no GPUDirect Storage here")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"driver": ""}, "no NVIDIA driver"),
        ({"nvidia_fs": ""}, "nvidia-fs is not loaded"),
        ({"udev": False}, "/run/udev"),
        ({"config": "/etc/cufile.json", "config_problem": "it is not JSON"}, "/etc/cufile.json: it is not JSON"),
    ],
)
def test_what_the_node_lacks(change: dict[str, object], word: str) -> None:
    found = lane(facts("lustre"), replace(READY, **change))  # type: ignore[arg-type]
    assert not found.facts["possible"]
    assert word in found.message


def test_silent_fallback_is_said() -> None:
    assert "in silence" in lane(facts("lustre"), replace(READY, allow_compat=None)).message
    assert "in silence" in lane(facts("lustre"), replace(READY, allow_compat=True)).message


def test_a_node_without_anything(tmp_path: Path) -> None:
    assert gds.host({}, str(tmp_path)) == GdsHost()


def test_a_node_with_everything(tmp_path: Path) -> None:
    for path, text in {
        "proc/driver/nvidia/version": "NVRM version: x\nGCC",
        "proc/driver/nvidia-fs/version": "version: 2.25.7\n",
        "etc/cufile.json": '{ // a comment\n "properties": { "allow_compat_mode": false, "url": "a//b" } // end\n}',
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "run/udev").mkdir(parents=True)
    found = gds.host({}, str(tmp_path))
    assert (found.driver, found.nvidia_fs, found.udev, found.allow_compat) == (
        "NVRM version: x",
        "version: 2.25.7",
        True,
        False,
    )
    assert found.config.endswith("etc/cufile.json")
    other = tmp_path / "mine.json"
    other.write_text("{")
    found = gds.host({"CUFILE_ENV_PATH_JSON": str(other)}, str(tmp_path))
    assert "not JSON" in found.config_problem
    other.write_text(json.dumps({"properties": {"allow_compat_mode": "yes"}}))
    assert gds.host({"CUFILE_ENV_PATH_JSON": str(other)}, str(tmp_path)).allow_compat is None
