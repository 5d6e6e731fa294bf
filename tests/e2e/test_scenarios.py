"""The scenarios of the main job: real Slurm, real GlusterFS, real FSDP2 training, real kills."""

from __future__ import annotations

import pytest

from tests.e2e.jobs import SAVE_EVERY, STEPS, ExampleJob
from tests.support.cluster import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster) -> ExampleJob:
    """One run to the end without any trouble: what every disturbed run must equal bit for bit."""
    job = ExampleJob(cluster, "undisturbed").submit()
    record = job.follow()
    assert record["JobState"] == "COMPLETED", job.output
    return job


def test_a_lost_node_in_the_middle_of_a_save(cluster: Cluster, undisturbed: ExampleJob) -> None:
    job = ExampleJob(cluster, "a").submit()
    victim = "n3"
    torn = job.stop_in_mid_save(victim)
    generation = job.repository.newest_generation()
    receipts = [job.repository.receipt(f"{job.repository.staging(generation)}/step-{torn:08d}", f"n{k}") for k in (1, 2, 3, 4)]
    assert 0 < sum(receipt is not None for receipt in receipts) < 4, "the kill must fall into the save"
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
    way = "run decided" if first.cause == "node" else "Slurm took the job"
    print(f"scenario a: {way}; {first.cause}: {first.reason}")


def test_a_node_that_loses_its_mount_in_mid_run(cluster: Cluster, undisturbed: ExampleJob) -> None:
    job = ExampleJob(cluster, "a2", step_s=0.1).submit()
    job.wait_until("two checkpoints", lambda: job.repository.exists and len(job.repository.folders()) >= 2)
    cluster.node("n2").unmount_shared()
    record = job.follow()
    assert record["JobState"] == "COMPLETED", job.output
    first, second = job.incarnations()
    assert first.cause == "storage", first
    assert "n2" in first.reason
    assert "n2" in job.excluded()
    assert "n2" not in second.nodes
    assert job.fingerprint == undisturbed.fingerprint
    mine = [line.lower() for line in cluster.slurmctld_log().splitlines() if f"JobId={job.id}" in line]
    failures = [line for line in mine if "node failure" in line]
    assert not failures, "run decides while RUNNING; Slurm saw no node fail"


def test_an_error_on_one_rank_every_time_is_held_and_not_repeated_for_ever(cluster: Cluster) -> None:
    job = ExampleJob(cluster, "d", extra="--fail-at 10", env={"CKPTCTL_BUDGET_APPLICATION": "2"}).submit()
    record = job.follow()
    assert (record["JobState"], record["Priority"]) == ("PENDING", "0"), job.output
    assert "no%20progress" in record["Comment"]
    causes = [(row.cause, row.resumed, row.last_complete) for row in job.incarnations()]
    assert causes == [("application", 0, 8), ("application", 8, 8), ("application", 8, 8)]
    assert "fails at step 10, as asked" in job.output


def test_a_cancelled_job_is_never_requeued(cluster: Cluster) -> None:
    job = ExampleJob(cluster, "cancel", step_s=0.2, steps=200).submit()
    job.wait_until("a checkpoint", lambda: job.repository.exists and job.repository.folders())
    cluster.run(["scancel", str(job.id)], check=True)
    record = job.follow()
    assert record["JobState"] == "CANCELLED"
    assert record["Restarts"] == "0"


def test_exit_code_93_is_passed_through_and_never_requeued(cluster: Cluster) -> None:
    job = ExampleJob(cluster, "never", extra="--exit-at 6:93").submit()
    record = job.follow()
    assert (record["JobState"], record["Restarts"], record["ExitCode"]) == ("FAILED", "0", "93:0"), job.output
    assert job.incarnations()[0].cause == "never-restart"


@pytest.mark.parametrize("place", ["plain", "batch-host"])
def test_a_node_without_the_mount_is_refused_by_name_and_replaced(cluster: Cluster, undisturbed: ExampleJob, place: str) -> None:
    nodes = "n2,n3,n4,n6" if place == "plain" else "n3,n4,n5,n6"
    options = [f"--nodelist={nodes}"]
    if place == "batch-host":  # the batch host is the first of the list: make that n6 by taking its elders away
        options = ["--nodelist=n6", "--exclude=n1,n2,n3"]
        job = ExampleJob(cluster, "e-batch", nodes=1, options=tuple(options)).submit()
    else:
        job = ExampleJob(cluster, "e-plain", options=tuple(options)).submit()
    job.wait_until("the refusal", lambda: "refused before training" in job.output or "refused" in job.output.lower())
    if place == "plain":
        job.wait_until("the exclusion", lambda: "n6" in job.excluded())
        assert "n6 NODE_LOCAL" in job.output
        assert not job.seen_root.exists(), "nothing is created before class and proof pass"
        cluster.run(["scontrol", "update", f"jobid={job.id}", "ReqNodeList="], check=True)
        record = job.follow()
        assert record["JobState"] == "COMPLETED", job.output
        assert all("n6" not in row.nodes for row in job.incarnations())
        assert job.fingerprint == undisturbed.fingerprint
    else:
        record = job.follow()
        assert (record["JobState"], record["ExitCode"]) == ("FAILED", "10:0"), job.output
        assert "on n6" in job.output


def test_a_root_on_a_local_disk_fails_the_job_with_exit_10(cluster: Cluster) -> None:
    job = ExampleJob(cluster, "f", root="/local/run1").submit()
    record = job.follow()
    assert (record["JobState"], record["ExitCode"], record["Restarts"]) == ("FAILED", "10:0", "0"), job.output
    assert "NODE_LOCAL" in job.output
    assert all("DRAIN" not in cluster.node_state(name) for name in cluster.nodes)
    assert not any((cluster.node(name).local / "run1").exists() for name in cluster.nodes)
