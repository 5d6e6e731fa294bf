"""The scenarios of the main job: real Slurm, real GlusterFS, real FSDP2 training, real kills."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from ckptctl.actions import inspect
from ckptctl.model.checkpoint import PROOF
from ckptctl.model.verdict import Completeness
from tests.e2e.jobs import SAVE_EVERY, STEPS, ExampleJob
from tests.support.cluster import Cluster
from tests.support.processes import wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster) -> ExampleJob:
    """One run to the end without any trouble: what every disturbed run must equal bit for bit."""
    job = ExampleJob(cluster, "undisturbed").submit()
    record = job.follow()
    assert record["JobState"] == "COMPLETED", job.output
    return job


def node_failures(cluster: Cluster, job: ExampleJob) -> list[str]:
    """Return what slurmctld's log says of node failures that took this job."""
    lines = (cluster.logs / "slurmctld.log").read_text(errors="replace").splitlines()
    return [line for line in lines if f"JobId={job.id} " in line and re.search("failure of node|on failed node", line)]


def import_s(cluster: Cluster) -> float:
    """Measure how long four interpreters, started together, take to import what the example imports."""
    code = "import torch, torch.distributed.fsdp, torch.distributed.checkpoint, torch.utils.data, ckptctl_torch"
    begun = time.monotonic()
    line = f"for rank in 0 1 2 3; do {sys.executable} -c '{code}' & done; wait"
    cluster.run(["sh", "-c", line], 60, check=True)
    return time.monotonic() - begun


def test_a_a_lost_node_in_the_middle_of_a_save(cluster: Cluster, undisturbed: ExampleJob) -> None:
    torn, victim = 12, "n3"
    job = ExampleJob(cluster, "a").stop_before(2, "open", f"step-{torn:08d}/{PROOF}/receipts/{victim}.json").submit()
    job.wait_stopped()
    job.wait_until("the others' receipts", lambda: job.receipts(torn) == ["n1", "n2", "n4"])
    cluster.node(victim).kill()
    record = job.follow()
    assert record["JobState"] == "COMPLETED", job.output

    first, second = job.incarnations()
    assert victim in first.nodes
    assert victim not in second.nodes
    assert second.resumed == torn - SAVE_EVERY
    trained = max(entry["step"] for entry in job.logged() if entry["time"] * 1000 < second.started_ms)
    assert trained - second.resumed <= SAVE_EVERY, "at most one save interval is lost"
    assert any(name.startswith("staging-g0001") for name in job.quarantine())
    assert job.fingerprint == undisturbed.fingerprint
    assert second.last_complete == STEPS
    if first.cause == "node":
        print(f"scenario a: run decided: {first.reason}")
    else:
        (line,) = node_failures(cluster, job)
        print(f"scenario a: Slurm took the job: {line}")
    restart = max(job.released)
    first_step = min(entry["time"] for entry in job.logged() if entry["time"] > job.released[restart])
    print(
        f"scenario a: {first_step - job.released[restart]:.1f} s from the release to the end of the first step, "
        f"{import_s(cluster):.1f} s of it are what four interpreters need for their imports"
    )


@pytest.mark.parametrize("victim", ["n2", "n1"], ids=["plain node", "batch host"])
def test_a2_a_node_that_loses_its_mount_in_mid_run(cluster: Cluster, undisturbed: ExampleJob, victim: str) -> None:
    job = ExampleJob(cluster, f"a2-{victim}", step_s=0.1).submit()
    job.wait_until("two checkpoints", lambda: job.repository.exists and len(job.repository.folders()) >= 2)
    cluster.node(victim).unmount_shared()
    record = job.follow()
    assert record["JobState"] == "COMPLETED", job.output
    first, second = job.incarnations()
    assert f"requeue: storage failure, last complete step {second.resumed if victim == 'n2' else 0}: {victim} " in job.output
    if victim == "n2":  # the batch host can't write into a journal that it doesn't see
        assert first.cause == "storage", first
        assert victim in first.reason
    assert victim in job.excluded()
    assert victim not in second.nodes
    assert job.fingerprint == undisturbed.fingerprint
    assert not node_failures(cluster, job), "run decides while RUNNING; Slurm saw no node fail"


@pytest.mark.parametrize(
    ("event", "part"),
    [("os.link", f"step-00000008/{PROOF}/COMMIT"), ("os.rename", "/step-00000008.g0001")],
    ids=["after its generation check", "before the rename"],
)
def test_b_a_partitioned_leader_wakes_up_inside_its_commit(
    cluster: Cluster, undisturbed: ExampleJob, event: str, part: str
) -> None:
    name = "b-" + event.partition(".")[2]
    job = ExampleJob(cluster, name, step_s=0.2).stop_before(0, event, part).submit()
    job.wait_stopped()
    assert job.receipts(8) == ["n1", "n2", "n3", "n4"]
    leader = cluster.node("n1")
    (committer,) = job.ranks_on("n1")
    leader.kill_slurmd()
    job.follow(until=lambda: "step-00000012.g0002" in job.checkpoints())
    assert job.ranks_on("n1") == [committer], "the zombie is alive while the new incarnation trains"
    leader.signal(committer, signal.SIGCONT)
    wait_for("the end of the zombie", lambda: not job.ranks_on("n1") or None, 60, log=lambda: job.output[-3000:])
    record = job.follow()
    assert record["JobState"] == "COMPLETED", job.output
    assert job.fingerprint == undisturbed.fingerprint

    first, second = job.incarnations()
    assert second.resumed == 8, "all receipts were there: the save was recovered under the new generation"
    assert "n1" not in second.nodes
    rows = inspect.list_root(str(job.seen_root))
    complete = [row.folder for row in rows if row.verdict is Completeness.COMPLETE]
    assert complete == ["step-00000024.g0002", "step-00000020.g0002"], rows
    assert not any(row.generation == 1 for row in rows), "nothing of the zombie's lies in the root"
    moved = [name for name in job.quarantine() if not name.startswith("staging-g0001.by-g0002.")]
    assert not moved, "nothing newer was moved because of it"
    assert inspect.select(str(job.seen_root)).step == STEPS
    assert first.last_complete == 4


def test_c_the_batch_host_dies(cluster: Cluster, undisturbed: ExampleJob) -> None:
    job = ExampleJob(cluster, "c", step_s=0.2).submit()
    job.wait_until("two checkpoints", lambda: job.repository.exists and len(job.repository.folders()) >= 2)
    host = job.state()[1]["BatchHost"]
    cluster.node(host).kill()
    record = job.follow()
    assert record["JobState"] == "COMPLETED", job.output
    first, second = job.incarnations()
    assert first.cause.startswith("taken by the scheduler"), "run died with its host: only Slurm could decide"
    assert node_failures(cluster, job)
    assert host not in second.nodes
    assert second.resumed >= 8
    assert job.fingerprint == undisturbed.fingerprint


def test_d_an_error_on_one_rank_every_time_is_held_and_not_repeated_for_ever(cluster: Cluster) -> None:
    job = ExampleJob(cluster, "d", extra="--fail-at 10", env={"CKPTCTL_BUDGET_APPLICATION": "2"}).submit()
    record = job.follow()
    assert (record["JobState"], record["Priority"]) == ("PENDING", "0"), job.output
    assert "no%20progress" in record["Comment"]
    causes = [(row.cause, row.resumed, row.last_complete) for row in job.incarnations()]
    assert causes == [("application", 0, 8), ("application", 8, 8), ("application", 8, 8)]
    assert "fails at step 10, as asked" in job.output


def test_d_a_cancelled_job_is_never_requeued(cluster: Cluster) -> None:
    job = ExampleJob(cluster, "cancel", step_s=0.2, steps=200).submit()
    job.wait_until("a checkpoint", lambda: job.repository.exists and job.repository.folders())
    cluster.run(["scancel", str(job.id)], check=True)
    record = job.follow()
    assert record["JobState"] == "CANCELLED"
    assert record["Restarts"] == "0"


def test_d_exit_code_93_is_passed_through_and_never_requeued(cluster: Cluster) -> None:
    job = ExampleJob(cluster, "never", extra="--exit-at 6:93").submit()
    record = job.follow()
    assert (record["JobState"], record["Restarts"], record["ExitCode"]) == ("FAILED", "0", "93:0"), job.output
    assert job.incarnations()[0].cause == "never-restart"


@pytest.mark.parametrize(("bad", "nodes"), [("n6", "n2,n3,n4,n6"), ("n1", "n1,n2,n3,n4")], ids=["plain node", "batch host"])
def test_e_a_node_without_the_mount_is_refused_by_name_and_replaced(
    cluster: Cluster, undisturbed: ExampleJob, bad: str, nodes: str
) -> None:
    if bad == "n1":
        cluster.node("n1").unmount_shared()
    job = ExampleJob(cluster, f"e-{bad}", options=(f"--nodelist={nodes}",)).submit()
    job.wait_until("the exclusion", lambda: bad in job.excluded())
    assert f"{bad} NODE_LOCAL" in job.output
    record = cluster.job(job.id)
    assert bad in record["Comment"]
    assert "NODE_LOCAL" in record["Comment"]
    assert not job.seen_root.exists(), "nothing is created before class and proof pass"
    assert not Path(job.root).exists(), "nor on the bad node's own disk"
    cluster.run(["scontrol", "update", f"jobid={job.id}", "ReqNodeList="], check=True)
    record = job.follow()
    assert record["JobState"] == "COMPLETED", job.output
    assert all(bad not in row.nodes for row in job.incarnations())
    assert job.fingerprint == undisturbed.fingerprint


def test_f_a_root_on_a_local_disk_fails_the_job_with_exit_10(cluster: Cluster) -> None:
    job = ExampleJob(cluster, "f", root="/local/run1").submit()
    record = job.follow()
    assert (record["JobState"], record["ExitCode"], record["Restarts"]) == ("FAILED", "10:0", "0"), job.output
    assert "NODE_LOCAL" in job.output
    assert all("DRAIN" not in cluster.node_state(name) for name in cluster.nodes)
    assert not any((cluster.node(name).local / "run1").exists() for name in cluster.nodes)


def test_g_a_crash_in_the_very_first_save_starts_at_0_and_says_so(cluster: Cluster, undisturbed: ExampleJob) -> None:
    first_step = SAVE_EVERY
    job = ExampleJob(cluster, "g").stop_before(1, "open", f"step-{first_step:08d}/{PROOF}/receipts/n2.json").submit()
    job.wait_stopped()
    job.wait_until("the others' receipts", lambda: job.receipts(first_step) == ["n1", "n3", "n4"])
    cluster.node("n2").kill()
    record = job.follow()
    assert record["JobState"] == "COMPLETED", job.output
    _, second = job.incarnations()
    assert second.resumed == 0
    assert any(name.startswith("staging-g0001") for name in job.quarantine())
    assert "generation 2 starts at step 0: nothing was ever committed; set aside staging-g0001" in job.output
    assert job.fingerprint == undisturbed.fingerprint


def test_g_a_root_that_lost_all_its_checkpoints_is_never_started_from_scratch(
    cluster: Cluster, undisturbed: ExampleJob
) -> None:
    shutil.copytree(undisturbed.seen_root, cluster.shared / "g20")
    markers = list((cluster.shared / "g20").glob(f"step-*/{PROOF}/COMMIT"))
    assert len(markers) == 2
    for marker in markers:
        marker.unlink()
    before = sorted(path.name for path in (cluster.shared / "g20").iterdir())
    job = ExampleJob(cluster, "g20").submit()
    record = job.follow()
    assert (record["JobState"], record["ExitCode"], record["Restarts"]) == ("FAILED", "20:0", "0"), job.output
    assert not job.logged(), "not one step was trained"
    assert sorted(path.name for path in job.seen_root.iterdir()) == before, "nothing is lost by the refusal"


def test_h_the_same_script_twice_is_refused_and_the_first_trains_on(cluster: Cluster) -> None:
    first = ExampleJob(cluster, "h1", nodes=2, step_s=0.4, root="/shared/h").submit()
    first.wait_until("a checkpoint", lambda: first.repository.exists and first.repository.folders())
    second = ExampleJob(cluster, "h2", nodes=2, root="/shared/h").submit()
    record = second.follow()
    assert (record["JobState"], record["ExitCode"], record["Restarts"]) == ("FAILED", "24:0", "0"), second.output
    assert f"in use by job {first.id} of user root" in second.output
    assert not second.logged()
    record = first.follow()
    assert (record["JobState"], record["Restarts"]) == ("COMPLETED", "0"), first.output
    assert len(first.incarnations()) == 1


def test_h_a_trainer_that_finds_itself_fenced_stops_at_once(cluster: Cluster) -> None:
    first = ExampleJob(cluster, "h3", nodes=2, step_s=0.3, steps=400, root="/shared/h3").submit()
    first.wait_until("a checkpoint", lambda: first.repository.exists and first.repository.folders())
    second = ExampleJob(cluster, "h4", nodes=2, root="/shared/h3", edits={"ckptctl run": "ckptctl run --take-over"}).submit()
    record = first.follow()
    assert (record["JobState"], record["Restarts"]) == ("FAILED", "0"), first.output
    assert "generation 1 is fenced: generation 2 has taken over" in first.output
    started = json.loads((first.seen_root / PROOF / "generations" / "0002.json").read_text())["created_ms"] / 1000
    late = [entry["step"] for entry in first.logged() if entry["time"] > started]
    assert len(late) <= SAVE_EVERY + 1, "it stops at its next save at the latest"
    record = second.follow()
    assert record["JobState"] == "COMPLETED", second.output
    rows = first.incarnations()
    assert [row.cause for row in rows] == ["fenced", "finished"]
    assert rows[1].resumed >= SAVE_EVERY


def test_a_signal_to_the_batch_script_stops_saves_requeues_and_goes_on(cluster: Cluster, undisturbed: ExampleJob) -> None:
    """What `#SBATCH --signal=B:USR1@120` does two minutes before the time limit."""
    job = ExampleJob(cluster, "signal", step_s=0.2).submit()
    job.wait_until("a checkpoint", lambda: job.repository.exists and job.repository.folders())
    cluster.run(["scancel", "--batch", "--signal=USR1", str(job.id)], check=True)
    record = job.follow()
    assert record["JobState"] == "COMPLETED", job.output
    first, second = job.incarnations()
    assert first.cause == "stopped"
    assert "SIGUSR1" in first.reason
    assert second.resumed == first.last_complete, "nothing is lost by a stop"
    assert job.fingerprint == undisturbed.fingerprint


def test_a_job_that_cannot_be_requeued_says_so_at_start_and_fails(cluster: Cluster) -> None:
    job = ExampleJob(cluster, "no-requeue", extra="--fail-at 6", options=("--no-requeue",)).submit()
    record = job.follow()
    assert (record["JobState"], record["Restarts"]) == ("FAILED", "0"), job.output
    assert "will NOT be able to requeue this job: the job was submitted without requeue; add #SBATCH --requeue" in job.output
    assert job.incarnations()[0].last_complete == 4


def test_without_slurms_commands_as_in_a_container_it_says_so_and_trains(cluster: Cluster, undisturbed: ExampleJob) -> None:
    edits = {"exec ckptctl": f"export PATH={Path(sys.executable).parent}\nexec ckptctl", "    srun ": "    /usr/bin/srun "}
    job = ExampleJob(cluster, "container", edits=edits).submit()
    record = job.follow()
    assert record["JobState"] == "COMPLETED", job.output
    assert "will NOT be able to requeue this job: there is no scontrol here; run ckptctl outside the container" in job.output
    assert "only this node is judged" in job.output
    assert job.incarnations()[0].cause == "finished"
    assert job.fingerprint == undisturbed.fingerprint


def test_storage_that_nobody_knows_is_taken_when_all_nodes_prove_that_they_share_it(cluster: Cluster) -> None:
    hook = {"PYTHONPATH": str(Path(__file__).parent / "hook"), "TEST_FORGET": "fuse.glusterfs"}
    job = ExampleJob(cluster, "unknown", steps=8, env=hook).submit()
    record = job.follow()
    assert record["JobState"] == "COMPLETED", job.output
    assert "UNKNOWN: a file system that ckptctl does not know: fuse.glusterfs" in job.output
    assert "all nodes share it by proof, so the job goes on" in job.output
    alone = ExampleJob(cluster, "unknown-alone", nodes=1, steps=8, env=hook).submit()
    record = alone.follow()
    assert (record["JobState"], record["ExitCode"]) == ("FAILED", "10:0"), alone.output
    assert not alone.seen_root.exists()
