"""The scenarios of the main job: real Slurm, real GlusterFS, real FSDP2 training, real kills."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.jobs import SAVE_EVERY, STEPS, ExampleJob
from tests.support.cluster import Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster) -> Iterator[ExampleJob]:
    """One run to the end without any trouble: what every disturbed run must equal bit for bit."""
    job = ExampleJob(cluster, "undisturbed").submit()
    record = job.follow()
    assert record["JobState"] == "COMPLETED", job.output
    yield job


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
    assert max(entry["step"] for entry in job.logged() if entry["time"] * 1000 < second.started_ms) - second.resumed <= SAVE_EVERY
    assert any(name.startswith("staging-g0001") for name in job.quarantine())
    assert job.fingerprint == undisturbed.fingerprint
    assert second.last_complete == STEPS
    way = "run decided" if first.cause == "node" else "Slurm took the job"
    print(f"scenario a: {way}; {first.cause}: {first.reason}")
