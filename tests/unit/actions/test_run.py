"""Small parts of `run`: root patterns, the warning about its parent, the volume of the checkpoint, the ability to requeue."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ckptctl import events, settings
from ckptctl.actions import nodes as node_checks
from ckptctl.actions.run import RunRequest, _Run, expand_root
from ckptctl.errors import PlacementRefused, StorageFault, UsageError
from ckptctl.model.job import Job, JobState
from ckptctl.model.manifest import FilesystemIdentity
from ckptctl.policy.nodes import NodesVerdict
from ckptctl.policy.site import Mode, SitePolicy
from ckptctl.scheduler.slurm import SlurmScheduler
from tests.support.lineage import begin

JOB = Job(id="17", restart=0, user="ada", state=JobState.RUNNING, nodes=("n1",), batch_host="n1")
_WARNING = "from ckptctl.actions.run import _parent_warning; print(_parent_warning())"


@pytest.mark.parametrize(
    ("job_id", "root", "expanded"),
    [
        ("17", "/shared/%j", "/shared/17"),
        ("17", "/shared/%A-%a", "/shared/17-0"),
        ("17_3", "/shared/%A/%a", "/shared/17/3"),
        ("17_3", "/shared/%j", "/shared/17_3"),
        ("17", "/shared/100%%", "/shared/100%"),
    ],
)
def test_root_patterns(job_id: str, root: str, expanded: str) -> None:
    assert expand_root(root, replace(JOB, id=job_id)) == expanded


@pytest.mark.parametrize("root", ["/shared/%x", "/shared/%"])
def test_an_unknown_pattern_is_refused_naming_the_known_ones(root: str) -> None:
    with pytest.raises(UsageError, match="unknown %") as caught:
        expand_root(root, JOB)
    assert "%A %a %j" in caught.value.hint


@pytest.mark.parametrize(
    ("script", "warned"),
    [
        (f"'{sys.executable}' -c '{_WARNING}'; true", True),
        (f"trap 'kill -TERM $!' TERM; trap 'kill -USR1 $!' USR1; '{sys.executable}' -c '{_WARNING}'; true", False),
    ],
)
def test_a_parent_shell_that_passes_no_signal_on_is_warned_about(script: str, warned: bool) -> None:
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=30)
    assert ("write `exec ckptctl run …`" in done.stdout) is warned, done


def test_no_warning_without_a_shell_as_parent() -> None:
    done = subprocess.run([sys.executable, "-c", _WARNING], capture_output=True, text=True, timeout=30)
    assert done.stdout == "\n"


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is logged."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Handler()
    events.logger().addHandler(handler)
    yield lines
    events.logger().removeHandler(handler)


@pytest.mark.parametrize("same", [True, False])
def test_a_checkpoint_from_another_volume_is_said_aloud(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    begin(tmp_path / "run1").save(4)
    started = begin(tmp_path / "run1").started
    if not same:
        there = FilesystemIdentity("nfs4", "other:/export", "/")
        monkeypatch.setattr(node_checks.mounts, "identity", lambda path: there)
    node_checks.compare_volume(started, str(tmp_path / "run1"))
    assert any("the root is on nfs4 other:/export / now" in line for line in said) is not same


@pytest.mark.parametrize(
    ("change", "path", "word", "remedy"),
    [
        ({}, None, "", ""),
        ({"requeueable": False}, None, "submitted without requeue", "#SBATCH --requeue"),
        ({"is_batch": False}, None, "only batch jobs", "sbatch instead of salloc"),
        ({}, "/nowhere", "no scontrol here", "container"),
    ],
)
def test_why_a_job_cannot_be_requeued_and_what_to_add(
    change: dict[str, bool], path: str | None, word: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scontrol").touch(mode=0o755)
    monkeypatch.setenv("PATH", path or str(tmp_path))
    found = SlurmScheduler().can_requeue(replace(JOB, **change))
    assert found.ok is not bool(word)
    assert word in found.reason
    assert remedy in found.remedy


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("code", [10, 14])
def test_a_site_may_have_refusals_of_a_class_recorded_only_and_never_a_fault(
    tmp_path: Path, said: list[str], mode: Mode, code: int
) -> None:
    found = replace(settings.Settings(), site=SitePolicy(mode=mode))
    run = _Run(RunRequest(str(tmp_path / "run1"), ("true",), found), SlurmScheduler(), JOB)
    events.logger().setLevel(logging.INFO)
    verdict = NodesVerdict({}, (code, "on all 2 nodes that answered: NODE_LOCAL", "use shared storage"))
    if mode is Mode.ENFORCE or code == 14:
        with pytest.raises(PlacementRefused if code == 10 else StorageFault):
            run._refuse(verdict)
    else:
        run._refuse(verdict)
        assert any(f"the site's mode is {mode.value}: the job goes on" in line for line in said)
