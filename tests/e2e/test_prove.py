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
    pairs = {(reader, writer) for reader, times in seen["visible_s"].items() for writer in times}
    assert pairs == {(reader, writer) for reader in seen["nodes"] for writer in seen["nodes"] if reader != writer}
    assert max(seconds for times in seen["visible_s"].values() for seconds in times.values()) == seen["visible_max_s"]
    assert not [path for path in cluster.shared.iterdir() if path.name.startswith((".ckptctl-proof", "new"))]


def test_a_proof_holds_for_its_job_until_it_is_asked_for_anew(cluster: Cluster, tmp_path: Path) -> None:
    prove = " ".join([*CKPTCTL, "prove", "/shared", "--json"])
    script = f"export HOME={tmp_path}; set -e; for more in '' '' --fresh; do {prove} $more; done"
    inner = ["srun", "--overlap", "-N1", "-n1", "bash", "-c", script]
    salloc = ["salloc", "-Q", "-N3", "-w", "n1,n2,n3", "--ntasks-per-node=1"]
    ages = []
    for _ in range(2):  # the second job knows nothing of the first
        text = cluster.run([*salloc, *inner], 90, check=True).stdout
        while text.strip():
            seen, end = json.JSONDecoder().raw_decode(text.lstrip())
            text = text.lstrip()[end:]
            assert (seen["verdict"]["proof"], seen["exit_code"]) == ("PROVED", 0)
            ages.append(seen["age_s"] is not None)
    assert ages == [False, True, False] * 2


def test_an_image_on_the_shared_volume_is_a_disk_of_the_node_that_mounts_it(cluster: Cluster, tmp_path: Path) -> None:
    if not Path("/dev/loop-control").exists():
        pytest.skip("needs /dev/loop-control")
    image, place, node = "/shared/image.ext4", tmp_path / "inside", cluster.node("n2")
    place.mkdir()
    try:
        node.exec(["truncate", "-s", "64M", image], check=True)
        node.exec(["mkfs.ext4", "-q", image], check=True)
        mounted = node.exec(["mount", "-o", "loop", image, place])
        if mounted.returncode:
            pytest.skip(f"no loop device can be mounted here: {mounted.stderr.strip()}")
        try:
            done = node.exec([*CKPTCTL, "check", place, "--json"])
        finally:
            node.exec(["umount", place], check=True)
    finally:
        node.exec(["rm", "-f", image], check=True)
    found = json.loads(done.stdout)
    assert (done.returncode, found["verdict"]["placement"], found["verdict"]["allowed"]) == (10, "NODE_LOCAL", False)
    [[loop, below]] = found["chain"]["edges"]
    assert (loop[:4], below) == ("loop", image)
    assert found["chain"]["nodes"][below]["mount"]["type"] == "fuse.glusterfs"


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
