"""The rig as a fixture: one cluster for the whole session, whole again before each test that asks for it."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from tests.support.cluster import Cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The session's cluster; skips, saying what is missing, where the rig cannot run."""
    reason = Cluster.unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    with Cluster.start(tmp_path_factory.mktemp("rig")) as running:
        yield running


@pytest.fixture(autouse=True)
def _whole_cluster(request: pytest.FixtureRequest) -> None:
    running = request.getfixturevalue("cluster") if "cluster" in request.fixturenames else None
    if isinstance(running, Cluster):
        running.restore()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the ends of Slurm's logs and of the job outputs to the report of a failed test."""
    report = yield
    running = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and isinstance(running, Cluster):
        report.sections.extend(running.tails().items())
    return report
