"""The rig is what it claims to be; every other end-to-end test rests on this."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.machine import SHARED_TYPE
from tests.support.processes import RigError, RigTimeoutError, all_pids, read_process, wait_for

pytestmark = pytest.mark.e2e


def file_system(cluster: Cluster, name: str) -> str:
    return cluster.node(name).exec(["findmnt", "-n", "-o", "FSTYPE", "-T", "/shared"], check=True).stdout.strip()


def commands_naming(base: Path) -> list[list[str]]:
    running = [process.argv for process in map(read_process, all_pids()) if process is not None]
    return [argv for argv in running if str(base) in " ".join(argv) and argv[0] != sys.executable]


def test_a_job_on_four_nodes_sees_four_machines(cluster: Cluster) -> None:
    script = "srun sh -c 'echo $SLURMD_NODENAME $(hostname) $(cat /proc/sys/kernel/random/boot_id)'"
    job = cluster.sbatch(script, "--nodes=4", "--ntasks-per-node=1")
    cluster.wait_state(job, "COMPLETED")
    rows = sorted(line.split() for line in cluster.job_output(job).splitlines())
    assert [row[:2] for row in rows] == [[name, name] for name in ("n1", "n2", "n3", "n4")]
    assert [row[2] for row in rows] == [cluster.node(row[0]).boot_id for row in rows]
    assert len({row[2] for row in rows}) == 4


def test_every_node_but_n6_has_the_mount(cluster: Cluster) -> None:
    found = {name: file_system(cluster, name) for name in cluster.nodes}
    root = cluster.node("n6").exec(["findmnt", "-n", "-o", "FSTYPE", "/"], check=True).stdout.strip()
    assert found == {**dict.fromkeys(("n1", "n2", "n3", "n4", "n5"), SHARED_TYPE), "n6": root}
    assert root != SHARED_TYPE


def test_a_file_is_seen_on_other_nodes_and_by_the_test(cluster: Cluster) -> None:
    cluster.node("n1").exec(["sh", "-c", "echo from n1 > /shared/seen"], check=True)
    assert cluster.node("n2").exec(["cat", "/shared/seen"], check=True).stdout == "from n1\n"
    assert (cluster.shared / "seen").read_text() == "from n1\n"
    assert cluster.run(["cat", "/shared/seen"], check=True).stdout == "from n1\n"
    assert cluster.node("n6").exec(["test", "-e", "/shared/seen"]).returncode == 1


def test_local_and_shm_belong_to_one_node(cluster: Cluster) -> None:
    cluster.node("n1").exec(["touch", "/local/mine", "/dev/shm/mine"], check=True)
    assert (cluster.node("n1").local / "mine").exists()
    assert cluster.node("n2").exec(["ls", "/local", "/dev/shm"], check=True).stdout.split() == ["/dev/shm:", "/local:"]


def test_direct_io_works_on_the_shared_file_system(cluster: Cluster) -> None:
    write = ["dd", "if=/dev/zero", "of=/shared/direct", "bs=1M", "count=2", "oflag=direct"]
    cluster.node("n1").exec(write, check=True)
    read = ["dd", "if=/shared/direct", "of=/dev/null", "bs=1M", "iflag=direct"]
    cluster.node("n2").exec(read, check=True)
    assert (cluster.shared / "direct").stat().st_size == 2 << 20


def test_a_lost_node_requeues_the_job_and_comes_back(cluster: Cluster) -> None:
    job = cluster.sbatch("echo run ${SLURM_RESTART_COUNT:-0}; srun sleep 300", "--nodes=2", "--ntasks-per-node=1")
    fields = cluster.wait_state(job, "RUNNING")
    assert fields["NodeList"] == "n[1-2]"
    lost = cluster.node("n2")
    wait_for("rank on n2", lambda: any(p.name == "sleep" for p in lost.processes()), 10)
    old_boot_id = lost.boot_id
    lost.kill()
    assert lost.pids() == []
    wait_for("n2 is DOWN", lambda: cluster.node_state("n2").startswith("DOWN"), 40)
    fields = cluster.wait_state(job, "PENDING", 30)
    assert fields["Restarts"] == "1"
    cluster.release(job)
    fields = cluster.wait_state(job, "RUNNING")
    hosts = cluster.run(["scontrol", "show", "hostnames", fields["NodeList"]], check=True).stdout.split()
    assert len(hosts) == 2
    assert "n2" not in hosts
    wait_for("output of the second run", lambda: cluster.job_output(job).endswith("run 1\n"), 10)
    lost.start_slurmd()
    wait_for("n2 is IDLE", lambda: cluster.node_state("n2") == "IDLE", 30)
    assert lost.boot_id != old_boot_id
    assert file_system(cluster, "n2") == SHARED_TYPE


def test_ranks_outlive_the_slurmd_of_a_partitioned_node(cluster: Cluster) -> None:
    job = cluster.sbatch("srun sleep 300", "--nodes=2", "--ntasks-per-node=1")
    cluster.wait_state(job, "RUNNING")
    node = cluster.node("n2")
    wait_for("rank on n2", lambda: any(p.name == "sleep" for p in node.processes()), 10)
    node.kill_slurmd()
    assert node.slurmd_pid is None
    cluster.wait_state(job, "PENDING", 40)
    assert {"slurmstepd", "sleep"} <= {p.name for p in node.processes()}


def test_a_lazy_unmount_falls_through_on_that_node_only(cluster: Cluster) -> None:
    cluster.node("n3").unmount_shared()
    found = {name: file_system(cluster, name) == SHARED_TYPE for name in cluster.nodes}
    assert found == {"n1": True, "n2": True, "n3": False, "n4": True, "n5": True, "n6": False}
    cluster.node("n3").exec(["touch", "/shared/lost"], check=True)
    assert not (cluster.shared / "lost").exists()
    cluster.node("n3").mount_shared()
    assert file_system(cluster, "n3") == SHARED_TYPE


def test_an_unplugged_node_keeps_its_processes_and_hears_nobody(cluster: Cluster) -> None:
    node = cluster.node("n4")
    before = node.pids()
    node.unplug()
    assert node.exec(["timeout", "2", "scontrol", "ping"]).returncode != 0
    assert set(before) <= set(node.pids())
    node.plug()
    wait_for("n4 reaches the controller", lambda: node.exec(["scontrol", "ping"]).returncode == 0, 20)


def test_restore_repairs_everything(cluster: Cluster) -> None:
    stubborn = "trap '' TERM; srun sh -c 'trap \"\" TERM; while :; do sleep 1; done'"
    running = cluster.sbatch(stubborn, "--nodes=4", "--ntasks-per-node=1")
    cluster.sbatch("true", "--nodes=6")
    cluster.wait_state(running, "RUNNING")
    wait_for("rank on n4", lambda: len(cluster.node("n4").pids()) > 2, 10)
    cluster.node("n1").kill_slurmd()
    cluster.node("n2").kill()
    cluster.node("n3").unmount_shared()
    cluster.node("n5").exec(["sh", "-c", "setsid sleep 300 >/dev/null 2>&1 &"], check=True)
    fuse = cluster.node("n4").exec(["pgrep", "-x", "glusterfs"], check=True).stdout.strip()
    cluster.node("n4").exec(["kill", "-9", fuse], check=True)
    cluster.node("n6").exec(["touch", "/shared/fell-through"], check=True)

    emptied = cluster.restore()

    assert {cluster.node_state(name) for name in cluster.nodes} == {"IDLE"}
    assert cluster.run(["squeue", "--noheader"], check=True).stdout == ""
    assert [[p.name for p in node.processes()] for node in cluster.nodes.values()] == [["slurmd"]] * 6
    assert [name for name in cluster.nodes if file_system(cluster, name) != SHARED_TYPE] == ["n6"]
    assert not emptied or cluster.node("n6").exec(["ls", "/shared"], check=True).stdout == ""
    job = cluster.sbatch("srun true", "--nodes=6", "--ntasks-per-node=1")
    cluster.wait_state(job, "COMPLETED")


def test_a_rank_is_signalled_by_its_own_number(cluster: Cluster) -> None:
    job = cluster.sbatch("echo $$ > /shared/pid; sleep 300", "--nodelist=n2")
    cluster.wait_state(job, "RUNNING")
    written = cluster.shared / "pid"
    wait_for("the script's pid", lambda: written.exists() and written.read_text().endswith("\n"), 10)
    node = cluster.node("n2")
    pid = node.outer_pid(int(written.read_text()))
    assert node.signal(pid, signal.SIGKILL) == [pid]
    assert cluster.wait_state(job, "FAILED")["ExitCode"] == "0:9"
    with pytest.raises(RigError, match="no process on n2"):
        node.signal(os.getpid(), signal.SIGKILL)


def test_a_wait_ends_at_its_deadline_and_says_for_what(cluster: Cluster) -> None:
    job = cluster.sbatch("sleep 300")
    began = time.monotonic()
    with pytest.raises(RigTimeoutError, match=rf"not within 1 s: job {job} in \['COMPLETED'\]"):
        cluster.wait_state(job, "COMPLETED", 1)
    with pytest.raises(RigTimeoutError, match="sleep 60"):
        cluster.node("n1").exec(["sleep", "60"], 0.5)
    assert time.monotonic() - began < 10


def test_stop_leaves_nothing_behind(tmp_path: Path, cluster: Cluster) -> None:
    assert file_system(cluster, "n1") == SHARED_TYPE
    base = tmp_path / "second"
    with Cluster.start(base, nodes=1, without_mount=()) as second:
        node = second.node("n1")
        (second.shared / "mine").touch()
        assert not (cluster.shared / "mine").exists()
        assert commands_naming(base)
    assert not node.is_up
    assert str(base) not in Path("/proc/self/mountinfo").read_text()
    assert not commands_naming(base)
    assert file_system(cluster, "n1") == SHARED_TYPE


def test_a_killed_test_process_takes_its_rig_with_it(tmp_path: Path, cluster: Cluster) -> None:
    base = tmp_path / "killed"
    code = (
        "import pathlib, sys, time\n"
        "from tests.support.cluster import Cluster\n"
        "cluster = Cluster.start(pathlib.Path(sys.argv[1]), nodes=1)\n"
        "print('up', flush=True)\n"
        "time.sleep(300)\n"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", code, str(base)], cwd=root, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "up\n"
        assert commands_naming(base)
        victim.kill()
    wait_for("end of the killed rig's processes", lambda: not commands_naming(base), 10)
    assert f" {base}/mnt " in Path("/proc/self/mountinfo").read_text()
    with Cluster.start(tmp_path / "next", nodes=1, without_mount=()):
        assert str(base) not in Path("/proc/self/mountinfo").read_text()
    assert file_system(cluster, "n1") == SHARED_TYPE
