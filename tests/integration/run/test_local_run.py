"""`ckptctl run --scheduler local` as a user has it, with real processes and real kills: what becomes of the job, and why."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptctl.actions import inspect
from tests.support.processes import wait_for

TRAINER = Path(__file__).parent / "trainer.py"
DEADLINE_S = 90
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("CKPTCTL_", "SLURM_"))}


class Runs:
    """Starts `ckptctl run` in a folder, and ends what is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *trainer: str, options: tuple[str, ...] = (), root: str = "run1", **env: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ckptctl.cli.main", "run", "--scheduler", "local", "--nodes", "2", "--root", root]
        command += [*options, "--", sys.executable, str(TRAINER), *trainer]
        process = subprocess.Popen(
            command, cwd=self.folder, env={**ENVIRONMENT, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.started.append(process)
        return process

    def end(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        out, _ = process.communicate(timeout=DEADLINE_S)
        return process.returncode, out

    def run(self, *trainer: str, options: tuple[str, ...] = (), root: str = "run1", **env: str) -> tuple[int, str]:
        return self.end(self.start(*trainer, options=options, root=root, **env))

    def ready(self) -> None:
        wait_for("both ranks at step 5", lambda: all((self.folder / f"ready-{rank}").exists() for rank in (0, 1)) or None, 30)

    def rows(self, root: str = "run1") -> list[inspect.IncarnationRow]:
        return inspect.incarnations(str(self.folder / root))


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    made = Runs(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def test_a_run_that_finishes_says_where_it_may_requeue_and_keeps_two_checkpoints(runs: Runs) -> None:
    code, out = runs.run("8")
    assert code == 0, out
    assert "will requeue this job after a failure" in out
    assert "starts at step 0: nothing was ever committed" in out
    assert "single machine" in out
    assert sorted(name for name in os.listdir(runs.folder / "run1") if name.startswith("step")) == [
        "step-00000006.g0001",
        "step-00000008.g0001",
    ]
    assert [(row.cause, row.last_complete) for row in runs.rows()] == [("finished", 8)]


def test_a_finished_run_that_is_started_again_goes_on_where_it_was(runs: Runs) -> None:
    assert runs.run("4")[0] == 0
    code, out = runs.run("8")
    assert code == 0, out
    assert "generation 2 resumes at step 4 from step-00000004.g0001" in out


def test_an_error_every_time_is_held_after_the_budget(runs: Runs) -> None:
    code, out = runs.run("8", "fail", options=("--budget-application", "1"))
    assert code == 30, out
    assert "no progress" in out
    assert [(row.resumed, row.last_complete, row.cause) for row in runs.rows()] == [
        (0, 4, "application"),
        (4, 4, "application"),
    ]


def test_exit_code_93_ends_the_job(runs: Runs) -> None:
    code, out = runs.run("8", "never")
    assert code == 93, out
    assert [row.cause for row in runs.rows()] == ["never-restart"]


def test_a_stop_that_the_ranks_agreed_on_is_requeued_and_goes_on(runs: Runs) -> None:
    process = runs.start("8", "signal")
    runs.ready()
    process.send_signal(signal.SIGUSR1)
    code, out = runs.end(process)
    assert code == 0, out
    assert [(row.cause, row.resumed) for row in runs.rows()] == [("stopped", 0), ("finished", 4)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_kill_end_the_job_for_good(runs: Runs, number: signal.Signals) -> None:
    process = runs.start("8", "wait")
    runs.ready()
    process.send_signal(number)
    code, out = runs.end(process)
    assert code == 128 + number, out
    assert len(runs.rows()) == 1, "it does not come back"
    assert runs.rows()[0].last_complete == 4


def test_what_is_to_be_kept_reaches_the_ranks(runs: Runs) -> None:
    code, out = runs.run("12", options=("--keep-last", "4", "--keep-every", "0"))
    assert code == 0, out
    assert sorted(name for name in os.listdir(runs.folder / "run1") if name.startswith("step")) == [
        f"step-{step:08d}.g0001" for step in (6, 8, 10, 12)
    ]


def test_a_root_that_a_live_run_holds_is_refused_and_the_first_goes_on(runs: Runs) -> None:
    first = runs.start("8", "wait")
    runs.ready()
    code, out = runs.run("8")
    assert code == 24, out
    assert "is in use by job" in out
    assert "--take-over" in out
    (runs.folder / "go").touch()
    code, out = runs.end(first)
    assert code == 0, out
    assert len(runs.rows()) == 1


@pytest.mark.parametrize(
    ("options", "env", "code", "text"),
    [
        (("--root", "/dev/shm/ckptctl-run"), {}, 10, "VOLATILE"),
        (("--root", "/proc/ckptctl-run"), {}, 10, "refused"),
        ((), {"CKPTCTL_KEEP_LAST": "many"}, 60, "CKPTCTL_KEEP_LAST is not a int"),
        (("--keep-last", "1"), {}, 60, "keep_last must be at least 2"),
        (("--root", "%x"), {}, 2, "unknown %x"),
    ],
)
def test_bad_input_is_refused_before_anything_is_created(
    runs: Runs, options: tuple[str, ...], env: dict[str, str], code: int, text: str
) -> None:
    found, out = runs.run("4", options=options, **env)
    assert found == code, out
    assert text in out
    assert not [name for name in os.listdir(runs.folder) if name.startswith(("run1", "step"))]


def test_a_root_of_a_newer_format_is_refused_and_left_alone(runs: Runs) -> None:
    assert runs.run("4")[0] == 0
    path = runs.folder / "run1" / ".ckptctl" / "lineage.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    code, out = runs.run("8")
    assert code == 21, out
    assert "format 2 is newer" in out
    assert (runs.folder / "run1" / "step-00000004.g0001").exists()


def test_root_patterns_are_expanded(runs: Runs) -> None:
    code, out = runs.run("2", root="of-%j")
    assert code == 0, out
    assert (runs.folder / "of-1" / "step-00000002.g0001").exists()


def test_output_that_goes_to_a_file_is_whole_and_in_order(runs: Runs) -> None:
    """The ranks open the file anew; without O_APPEND they and `run` wrote over each other."""
    noisy = runs.folder / "noisy.py"
    noisy.write_text("import os\nfor n in range(200): os.write(1, f\"rank {os.environ['RANK']} {n} {'x' * 50}\\n\".encode())\n")
    command = [sys.executable, "-m", "ckptctl.cli.main", "run", "--scheduler", "local", "--nodes", "2", "--root", "run1"]
    with (runs.folder / "out").open("w") as out:
        done = subprocess.run(
            [*command, "--", sys.executable, str(noisy)],
            cwd=runs.folder, env=ENVIRONMENT, stdout=out, stderr=out, timeout=DEADLINE_S,
        )  # fmt: skip
    assert done.returncode == 0
    lines = (runs.folder / "out").read_text().splitlines()
    assert "ckptctl: job 1, restart 0" in lines[0]
    assert lines[-1].endswith("the run is finished")
    for rank in (0, 1):
        assert [line for line in lines if line.startswith(f"rank {rank} ")] == [
            f"rank {rank} {n} {'x' * 50}" for n in range(200)
        ]
