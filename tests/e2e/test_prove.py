"""`ckptctl prove` and `check --on` on the rig: who shares the folder, and who does not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.cluster import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]
CKPTCTL = [sys.executable, "-m", "ckptctl.cli.main"]


def on(cluster: Cluster, nodes: str, *words: str, timeout: float = 60) -> tuple[int, str, str]:
    """Run ckptctl on the first of some nodes, inside a job of all of them."""
    inner = ["srun", "--overlap", "-N1", "-n1", *CKPTCTL, *words]
    count = str(len(nodes.split(",")))
    command = ["salloc", "-Q", "-N", count, "-w", nodes, "--ntasks-per-node=1", *inner]
    done = cluster.run(command, timeout, env={"CKPTCTL_VISIBLE_S": "8"})
    return done.returncode, done.stdout, done.stderr


def test_nodes_that_share_the_folder_are_proved_and_nothing_is_left(cluster: Cluster) -> None:
    code, out, err = on(cluster, "n1,n2,n3,n4,n5", "prove", "/shared/new/run1", "--json")
    assert code == 0, out + err
    seen = json.loads(out)
    assert seen["verdict"]["proof"] == "PROVED"
    assert seen["verdict"]["reason"] == "5/5 nodes share it"
    assert seen["visible_max_s"] < 30
    assert not [path for path in cluster.shared.iterdir() if path.name.startswith((".ckptctl-proof", "new"))]


def test_a_missing_mount_and_another_volume_are_found_in_one_call(cluster: Cluster) -> None:
    other = cluster.node("n5")
    other.exec(["mount", "-t", "tmpfs", "elsewhere", "/shared"], check=True)
    try:
        code, out, _ = on(cluster, "n2,n3,n4,n5,n6", "prove", "/shared", "--json")
        text = on(cluster, "n2,n3,n4,n5,n6", "prove", "/shared")[1]
    finally:
        other.exec(["umount", "/shared"], check=True)
    assert code == 11
    seen = json.loads(out)
    assert set(seen["verdict"]["blamed"]) == {"n5", "n6"}
    assert "tmpfs from elsewhere" in seen["verdict"]["blamed"]["n5"]
    assert "ext4" in seen["verdict"]["blamed"]["n6"] or "overlay" in seen["verdict"]["blamed"]["n6"]
    assert seen["exclude"] == "n[5-6]"
    assert "SPLIT: 3/5 nodes share it" in text
    assert "submit with --exclude=n[5-6]" in text
    assert not [path for path in Path("/shared").iterdir() if path.name.startswith(".ckptctl-proof")]


def test_one_node_alone_proves_nothing(cluster: Cluster) -> None:
    code, out, _ = on(cluster, "n1", "prove", "/shared")
    assert code == 12
    assert "UNPROVED_SINGLE_NODE: one node alone proves nothing" in out


def test_a_login_node_has_the_question_answered_by_compute_nodes(cluster: Cluster) -> None:
    done = cluster.run([*CKPTCTL, "check", "/local/x", "--on", "main"], 60)
    assert done.returncode == 10, done.stdout + done.stderr
    assert "NODE_LOCAL" in done.stdout
    done = cluster.run([*CKPTCTL, "prove", "/shared", "--on", "main", "--nodes", "3"], 60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PROVED: 3/3 nodes share it" in done.stdout


def test_outside_a_job_there_is_advice(cluster: Cluster) -> None:
    done = cluster.run([*CKPTCTL, "prove", "/shared"], 60)
    assert done.returncode == 2
    assert "--on PARTITION" in done.stderr
