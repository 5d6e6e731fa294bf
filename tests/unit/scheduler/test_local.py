"""The embedded scheduler: jobs, lost nodes, and that no process is left behind, whatever ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ckptctl.errors import DeadlineExceeded, SchedulerError, UsageError
from ckptctl.interfaces import Scheduler
from ckptctl.model.job import JobState, NodeState
from ckptctl.scheduler import local_process as process
from ckptctl.scheduler.local import LocalScheduler
from ckptctl.scheduler.local_controller import LocalCluster
from ckptctl.scheduler.local_queue import Queue

ROOT = Path(__file__).resolve().parents[3]
ENV = {"PYTHONPATH": str(ROOT)}
LIMIT_S = 20.0
KILL_WAIT_S = 1.0
PREAMBLE = """
import os, signal, subprocess, sys, time
from pathlib import Path
from ckptctl.errors import SchedulerError
from ckptctl.scheduler.local import LocalScheduler
scheduler = LocalScheduler()
job = scheduler.current_job()
def tell(name, text=""):
    Path(name + ".part").write_text(str(text))
    Path(name + ".part").rename(name)
def await_file(name):
    end = time.monotonic() + 20
    while not Path(name).exists():
        if time.monotonic() > end:
            raise SystemExit(f"{name} did not appear")
        time.sleep(0.01)
def code_of(command):
    end = time.monotonic() + 20
    while command.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    return command.poll()
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path / "state", nodes=3, slots=2, kill_wait_s=KILL_WAIT_S) as cluster:
        yield cluster
        # Leaving verifies that nothing is left; this verifies the verification.
        everyone = [pid for name in cluster.node_names for pid in cluster.node_pids(name)]
    assert [pid for pid in everyone if process.read(pid) is not None and not process.read(pid).dead] == []


class Jobs:
    """Submitting small scripts that run in a folder of their own."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.log = folder / "job.log"
        folder.mkdir()

    def shell(self, script: str, nodes: int = 1, **more: object) -> str:
        return self.cluster.submit(["sh", "-c", script], nodes=nodes, cwd=self.folder, stdout=self.log, env=ENV, **more)

    def python(self, script: str, nodes: int = 1, **more: object) -> str:
        argv = [sys.executable, "-c", PREAMBLE + script]
        return self.cluster.submit(argv, nodes=nodes, cwd=self.folder, stdout=self.log, env=ENV, **more)

    def wait_for(self, *names: str) -> str:
        """Wait for files; return what the last one says."""
        self.until(lambda: all((self.folder / name).exists() for name in names), f"{names}")
        return (self.folder / names[-1]).read_text().strip()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            self.cluster.wait(condition, deadline_s=LIMIT_S, what=what)
        except DeadlineExceeded as exc:
            raise AssertionError(f"{exc}\n{self.output()}") from exc

    def output(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


@pytest.fixture
def jobs(cluster: LocalCluster, tmp_path: Path) -> Jobs:
    return Jobs(cluster, tmp_path / "work")


def lives(pid: int) -> bool:
    found = process.read(pid)
    return found is not None and not found.dead


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.01)


# jobs


def test_a_job_runs_with_its_environment_and_its_output(jobs: Jobs) -> None:
    number = jobs.shell('echo "$WORD $CKPTCTL_LOCAL_NODE $CKPTCTL_LOCAL_RESTART"; echo err >&2', nodes=2)
    assert jobs.cluster.job(number).state is JobState.PENDING
    job = jobs.cluster.run_until(number, deadline_s=LIMIT_S)
    assert (job.state, job.nodes, job.batch_host, job.restart) == (JobState.COMPLETED, ("n1", "n2"), "n1", 0)
    assert jobs.cluster.exit_code(number) == 0
    assert sorted(jobs.output().splitlines()) == [" n1 0", "err"]


@pytest.mark.parametrize(
    ("argv", "code"), [(["sh", "-c", "exit 9"], 9), (["sh", "-c", "kill -9 $$"], 137), (["./no-such-command"], 127)]
)
def test_a_failing_job(jobs: Jobs, argv: list[str], code: int) -> None:
    number = jobs.cluster.submit(argv, nodes=1, cwd=jobs.folder, stdout=jobs.log)
    assert jobs.cluster.run_until(number, deadline_s=LIMIT_S).state is JobState.FAILED
    assert jobs.cluster.exit_code(number) == code
    assert code != 127 or "no-such-command" in jobs.output()


def test_jobs_take_turns_on_the_nodes(jobs: Jobs) -> None:
    first = jobs.shell("touch first; while [ ! -e go ]; do sleep 0.02; done", nodes=2)
    second = jobs.shell("touch second", nodes=2)
    jobs.wait_for("first")
    assert "n1 in use, n2 in use" in jobs.cluster.job(second).reason
    assert not (jobs.folder / "second").exists()
    (jobs.folder / "go").touch()
    assert jobs.cluster.run_until(second, deadline_s=LIMIT_S).state is JobState.COMPLETED
    assert jobs.cluster.job(first).state is JobState.COMPLETED


def test_a_job_that_can_never_run_is_refused(cluster: LocalCluster) -> None:
    for nodes, slots in ((4, 1), (0, 1), (1, 3), (1, 0)):
        with pytest.raises(UsageError):
            cluster.submit(["true"], nodes=nodes, tasks_per_node=slots)


def test_run_until_keeps_its_deadline(jobs: Jobs) -> None:
    number = jobs.shell("sleep 600")
    with pytest.raises(DeadlineExceeded, match="end of job"):
        jobs.cluster.run_until(number, deadline_s=0.2)


def test_cancel_asks_then_kills_even_those_who_left_the_group(jobs: Jobs) -> None:
    number = jobs.shell(
        """trap 'touch asked' TERM
        setsid sh -c 'trap "" TERM; echo $$ > pid.part; mv pid.part pid; while :; do sleep 0.05; done' &
        while :; do sleep 0.05; done"""
    )
    escaped = int(jobs.wait_for("pid"))
    assert escaped in jobs.cluster.node_pids("n1")
    began_s = time.monotonic()
    jobs.cluster.cancel(number)
    assert jobs.cluster.run_until(number, deadline_s=LIMIT_S).state is JobState.CANCELLED
    assert time.monotonic() - began_s >= KILL_WAIT_S
    assert (jobs.folder / "asked").exists()
    assert not lives(escaped)
    assert len(jobs.cluster.node_pids("n1")) == 1  # the daemon
    jobs.cluster.cancel(number)
    assert jobs.cluster.job(number).state is JobState.CANCELLED


def test_cancel_a_waiting_job(jobs: Jobs) -> None:
    number = jobs.shell("touch ran")
    jobs.cluster.cancel(number)
    assert jobs.cluster.run_until(number, deadline_s=LIMIT_S).state is JobState.CANCELLED
    assert not (jobs.folder / "ran").exists()


def test_cancel_stops_a_job_that_is_on_its_way_back(jobs: Jobs) -> None:
    number = jobs.shell("trap 'touch asked' TERM; touch up; while :; do sleep 0.05; done")
    jobs.wait_for("up")
    jobs.cluster.requeue(number)
    jobs.wait_for("asked")
    jobs.cluster.cancel(number)
    job = jobs.cluster.run_until(number, deadline_s=LIMIT_S)
    assert (job.state, job.restart) == (JobState.CANCELLED, 0)


@pytest.mark.parametrize("batch_only", [True, False])
def test_signal(jobs: Jobs, batch_only: bool) -> None:
    listen = "trap 'touch $ME-heard' USR1; touch $ME-up; while [ ! -e go ]; do sleep 0.05; done"
    number = jobs.shell(f'sh -c "ME=child; {listen.replace("$", chr(92) + "$")}" & ME=batch; {listen}; wait')
    jobs.wait_for("child-up", "batch-up")
    jobs.cluster.signal(number, signal.SIGUSR1, batch_only=batch_only)
    jobs.wait_for("batch-heard", *([] if batch_only else ["child-heard"]))
    (jobs.folder / "go").touch()
    jobs.cluster.run_until(number, deadline_s=LIMIT_S)
    assert (jobs.folder / "child-heard").exists() is not batch_only


def test_changes_of_state_are_told(tmp_path: Path) -> None:
    told = []
    with LocalCluster(
        tmp_path / "state", nodes=1, slots=1, on_change=lambda job: told.append((job.state.value, job.restart))
    ) as cluster:
        number = cluster.submit(["sh", "-c", "[ $CKPTCTL_LOCAL_RESTART = 1 ] || sleep 600"], nodes=1)
        cluster.wait(lambda: cluster.job(number).state is JobState.RUNNING, deadline_s=LIMIT_S, what="start")
        cluster.requeue(number)
        cluster.run_until(number, deadline_s=LIMIT_S)
    assert told[0] == ("RUNNING", 0)
    assert ("COMPLETING", 0) in told
    assert ("RUNNING", 1) in told
    assert told[-1] == ("COMPLETED", 1)


# nodes


def test_a_lost_node_fails_its_tasks_and_ends_the_others(jobs: Jobs) -> None:
    number = jobs.python(
        """
command = scheduler.launch(job, ["sh", "-c", "touch rank-$RANK; sleep 600"], {})
tell("code", code_of(command))
tell("state", scheduler.nodes(["n2"])["n2"].value)
tell("again", code_of(scheduler.launch(job, ["touch", "must-not-run"], {})))
""",
        nodes=2,
        tasks_per_node=2,
    )
    jobs.wait_for(*(f"rank-{rank}" for rank in range(4)))
    jobs.cluster.kill_node("n2")
    assert jobs.cluster.node_pids("n2") == []
    assert jobs.wait_for("code") == "137"
    assert jobs.wait_for("state") == "DOWN"
    assert jobs.wait_for("again") == "137"
    job = jobs.cluster.run_until(number, deadline_s=LIMIT_S)
    assert (job.state, job.restart) == (JobState.COMPLETED, 0)
    assert not (jobs.folder / "must-not-run").exists()
    assert len(jobs.cluster.node_pids("n1")) == 1


def test_a_lost_batch_host_brings_the_job_back_or_ends_it(jobs: Jobs) -> None:
    script = "[ $CKPTCTL_LOCAL_RESTART = 1 ] && exit 0; touch up-$CKPTCTL_LOCAL_NODE; sleep 600"
    returns = jobs.shell(script)
    stays = jobs.shell(script, requeueable=False)
    jobs.wait_for("up-n1", "up-n2")
    jobs.cluster.kill_node("n1")
    jobs.cluster.kill_node("n2")
    job = jobs.cluster.run_until(returns, deadline_s=LIMIT_S)
    assert (job.state, job.restart, job.nodes) == (JobState.COMPLETED, 1, ("n3",))
    job = jobs.cluster.run_until(stays, deadline_s=LIMIT_S)
    assert (job.state, job.restart) == (JobState.NODE_FAIL, 0)
    assert "n2" in job.reason


def test_a_node_that_loses_only_its_daemon_is_lost_as_a_whole(jobs: Jobs) -> None:
    number = jobs.shell("setsid sleep 600 & echo $! > pid.part; mv pid.part pid; sleep 600", requeueable=False)
    child = int(jobs.wait_for("pid"))
    os.kill(jobs.cluster.node_pids("n1")[0], signal.SIGKILL)
    assert jobs.cluster.run_until(number, deadline_s=LIMIT_S).state is JobState.NODE_FAIL
    assert not lives(child)


def test_a_job_without_enough_nodes_is_told_at_once_and_goes_on_later(jobs: Jobs) -> None:
    jobs.cluster.kill_node("n2")
    number = jobs.shell("true", nodes=3)
    job = jobs.cluster.run_until(number, deadline_s=LIMIT_S)
    assert job.state is JobState.PENDING
    assert job.reason == "Resources: 3 nodes wanted, 2 free (n2 DOWN)"
    jobs.cluster.start_node("n2")
    assert jobs.cluster.nodes() == dict.fromkeys(("n1", "n2", "n3"), NodeState.UP)
    assert jobs.cluster.run_until(number, deadline_s=LIMIT_S).state is JobState.COMPLETED


def test_a_held_job_is_told_at_once(jobs: Jobs) -> None:
    number = jobs.shell("touch up; [ $CKPTCTL_LOCAL_RESTART = 1 ] || sleep 600")
    jobs.wait_for("up")
    jobs.cluster.requeue(number, hold=True)
    job = jobs.cluster.run_until(number, deadline_s=LIMIT_S)
    assert (job.state, job.restart, job.nodes) == (JobState.PENDING, 1, ())
    assert "Held" in job.reason
    jobs.cluster.release(number)
    assert jobs.cluster.run_until(number, deadline_s=LIMIT_S).state is JobState.COMPLETED


def test_a_partitioned_node_works_on_out_of_reach(jobs: Jobs) -> None:
    number = jobs.python(
        """
if job.restart:
    tell("again", " ".join(job.nodes))
    sys.exit()
beat = "echo $$ > rank-$RANK; while :; do echo x >> beats-$RANK; sleep 0.02; done"
command = scheduler.launch(job, ["sh", "-c", beat], {})
await_file("cut")
for call in (scheduler.current_job, lambda: scheduler.requeue(job), lambda: scheduler.nodes(["n1"]),
             lambda: scheduler.launch(job, ["true"], {}), lambda: scheduler.exclude(job, ["n2"])):
    try:
        call()
        tell("wrong", "a partitioned process reached the controller")
    except SchedulerError:
        pass
tell("blind", f"{command.poll()} {scheduler.can_requeue(job).ok} {scheduler.this_node().name}")
await_file("end")
command.end(5)
tell("ended", command.poll())
time.sleep(600)
""",
        nodes=2,
    )
    jobs.wait_for("rank-0", "rank-1")
    before = jobs.cluster.node_pids("n1")
    jobs.cluster.partition_node("n1")
    assert jobs.wait_for("again") == "n2 n3"
    assert jobs.cluster.nodes()["n1"] is NodeState.DOWN
    (jobs.folder / "cut").touch()
    assert jobs.wait_for("blind") == "None False n1"
    assert not (jobs.folder / "wrong").exists()
    beats = jobs.folder / "beats-0"
    size = beats.stat().st_size
    jobs.until(lambda: beats.stat().st_size > size, "the zombie rank writes on")
    assert not lives(int((jobs.folder / "rank-1").read_text()))  # the job was ended where the controller reaches
    assert jobs.cluster.run_until(number, deadline_s=LIMIT_S).state is JobState.COMPLETED
    (jobs.folder / "end").touch()
    assert jobs.wait_for("ended") == "137"
    assert not lives(int((jobs.folder / "rank-0").read_text()))
    assert any(lives(pid) for pid in before)
    jobs.cluster.start_node("n1")
    assert not any(lives(pid) for pid in before)


def test_a_silent_node_is_suspect(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "state", nodes=1, slots=1, suspect_after_s=2.5) as cluster:
        scheduler = LocalScheduler(cluster.state)
        daemon = cluster.node_pids("n1")[0]
        os.kill(daemon, signal.SIGSTOP)
        wait_until(lambda: scheduler.nodes(["n1"])["n1"] is NodeState.SUSPECT, "the node becomes SUSPECT")
        os.kill(daemon, signal.SIGCONT)
        wait_until(lambda: scheduler.nodes(["n1"])["n1"] is NodeState.UP, "the node is UP again")


def test_what_an_ended_task_left_behind_is_ended(jobs: Jobs) -> None:
    number = jobs.python(
        """
command = scheduler.launch(job, ["sh", "-c", "setsid sleep 600 & echo $! > pid.part; mv pid.part pid"], {})
tell("code", code_of(command))
await_file("go")
"""
    )
    left = int(jobs.wait_for("code", "pid"))
    jobs.until(lambda: not lives(left), "the leftover is gone")
    assert jobs.cluster.job(number).state is JobState.RUNNING
    (jobs.folder / "go").touch()
    assert jobs.cluster.run_until(number, deadline_s=LIMIT_S).state is JobState.COMPLETED


# the scheduler as a job sees it


def test_launch_on_some_of_the_nodes_and_output_where_the_launcher_writes(jobs: Jobs) -> None:
    number = jobs.python(
        """
from dataclasses import replace
child = os.fork()
if child == 0:
    log = os.open("own.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    second = replace(job, nodes=job.nodes[1:])
    command = scheduler.launch(second, ["sh", "-c", "echo $CKPTCTL_LOCAL_NODE $RANK/$WORLD_SIZE"], {})
    os._exit(code_of(command))
tell("code", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    scheduler.launch(replace(job, nodes=("n3",)), ["true"], {})
except SchedulerError as exc:
    tell("refused", exc)
""",
        nodes=2,
    )
    assert jobs.cluster.run_until(number, deadline_s=LIMIT_S).state is JobState.COMPLETED
    assert (jobs.folder / "code").read_text() == "0"
    assert (jobs.folder / "own.log").read_text() == "n2 0/1\n"
    assert "n3" in (jobs.folder / "refused").read_text()
    assert jobs.output() == ""


def test_a_launcher_whose_fifo_nobody_reads_does_not_stop_the_node(jobs: Jobs) -> None:
    number = jobs.python(
        """
os.mkfifo("fifo")
read = os.open("fifo", os.O_RDONLY | os.O_NONBLOCK)
os.dup2(os.open("fifo", os.O_WRONLY), 1)
os.close(read)
tell("code", code_of(scheduler.launch(job, ["echo", "to the job's own output"], {})))
"""
    )
    assert jobs.cluster.run_until(number, deadline_s=LIMIT_S).state is JobState.COMPLETED
    assert (jobs.folder / "code").read_text() == "0"
    assert jobs.output() == "to the job's own output\n"


def test_a_question_ends_at_its_deadline_even_when_the_asker_has_died(jobs: Jobs) -> None:
    number = jobs.python(
        """
child = os.fork()
if child == 0:
    tell_id = "F=orphan-$CKPTCTL_LOCAL_NODE; echo $$ > $F.part; mv $F.part $F"
    scheduler.ask_nodes(job, ["sh", "-c", tell_id + "; sleep 600"], deadline_s=2)
    os._exit(0)
await_file("orphan-n1")
await_file("orphan-n2")
os.kill(child, signal.SIGKILL)
await_file("go")
began = time.monotonic()
answers = scheduler.ask_nodes(job, ["sh", "-c", "echo $$; sleep 600"], deadline_s=1)
tell("took", time.monotonic() - began)
tell("answers", "\\n".join(f"{one.exit_code} {one.output.strip()} {one.problem}" for one in answers))
""",
        nodes=2,
    )
    jobs.wait_for("orphan-n1", "orphan-n2")
    orphans = [int((jobs.folder / f"orphan-n{node}").read_text()) for node in (1, 2)]
    jobs.until(lambda: not any(lives(pid) for pid in orphans), "the orphaned questions have ended")
    (jobs.folder / "go").touch()
    assert jobs.cluster.run_until(number, deadline_s=LIMIT_S).state is JobState.COMPLETED
    assert float((jobs.folder / "took").read_text()) < 1 + 5
    for line in (jobs.folder / "answers").read_text().splitlines():
        code, pid, problem = line.split(maxsplit=2)
        assert code == "None"
        assert problem.startswith("not done within")
        assert not lives(int(pid))


def test_requeue_exclude_and_comment_by_state(jobs: Jobs) -> None:
    scheduler = LocalScheduler(jobs.cluster.state)
    number = jobs.shell("touch up-$CKPTCTL_LOCAL_RESTART; while [ ! -e go ]; do sleep 0.02; done")
    jobs.wait_for("up-0")
    old = scheduler.job(number)
    assert old is not None
    with pytest.raises(SchedulerError, match="RUNNING"):
        scheduler.exclude(old, ["n1"])
    scheduler.requeue(old)
    assert not scheduler.can_requeue(old).ok
    with pytest.raises(SchedulerError, match="no node 'n9'"):
        scheduler.exclude(old, ["n9"])
    assert scheduler.exclude(old, ["n2"]) == ("n2",)
    assert scheduler.exclude(old, ["n1", "n2"]) == ("n2", "n1")
    jobs.wait_for("up-1")
    now = scheduler.job(number)
    assert now == replace(old, restart=1, nodes=("n3",), batch_host="n3", excluded=("n2", "n1"))
    scheduler.requeue(old)  # a late word from the incarnation before
    assert scheduler.job(number) == now
    with pytest.raises(SchedulerError, match="restart 0"):
        scheduler.launch(old, ["true"], {})
    with pytest.raises(UsageError):
        scheduler.set_comment(now, "two words", "value")
    (jobs.folder / "go").touch()
    assert jobs.cluster.run_until(number, deadline_s=LIMIT_S).state is JobState.COMPLETED
    with pytest.raises(SchedulerError, match="COMPLETED"):
        scheduler.requeue(now)
    assert scheduler.can_requeue(now).reason == f"job {number} is COMPLETED, not RUNNING"
    gone = replace(now, id="777")
    for call in (scheduler.requeue, lambda job: scheduler.exclude(job, []), lambda job: scheduler.ask_nodes(
        job, ["true"], deadline_s=1), lambda job: scheduler.set_comment(job, "a", "b")):  # fmt: skip
        with pytest.raises(SchedulerError, match="known"):
            call(gone)


def test_a_job_that_must_not_be_requeued(jobs: Jobs) -> None:
    scheduler = LocalScheduler(jobs.cluster.state)
    number = jobs.shell("touch up; sleep 600", requeueable=False)
    jobs.wait_for("up")
    job = scheduler.job(number)
    assert job is not None
    ability = scheduler.can_requeue(job)
    assert not ability.ok
    assert ability.remedy
    with pytest.raises(SchedulerError, match="not requeueable"):
        scheduler.requeue(job)


def test_outside_any_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("CKPTCTL_LOCAL_"):
            monkeypatch.delenv(name)
    scheduler: Scheduler = LocalScheduler()
    assert scheduler.current_job() is None
    node = scheduler.this_node()
    assert node.name
    assert node.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with pytest.raises(SchedulerError, match="no local cluster"):
        scheduler.job("1")
    with pytest.raises(SchedulerError, match="no local cluster"):
        LocalScheduler(tmp_path).job("1")


def test_importing_it_is_cheap() -> None:
    code = "import sys, ckptctl.scheduler.local; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, **ENV}, capture_output=True, text=True)
    loaded = {name.split(".")[0] for name in out.stdout.split()}
    assert "sqlite3" in loaded
    assert not loaded & {"typer", "rich", "ClusterShell", "asyncio", "torch", "crc32c"}


# what is left behind


def test_close_ends_everything_and_says_what_became_of_the_jobs(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    with LocalCluster(tmp_path / "state", nodes=3, slots=1) as cluster:
        jobs = Jobs(cluster, folder)
        number = jobs.shell(
            """trap '' TERM
            setsid sh -c 'trap "" TERM; echo $$ > pid.part; mv pid.part pid; while :; do sleep 0.05; done' &
            while :; do sleep 0.05; done"""
        )
        waiting = jobs.shell("true", nodes=3)
        pids = [int(jobs.wait_for("pid"))]
        jobs.cluster.partition_node("n3")
        pids += [pid for name in cluster.node_names for pid in cluster.node_pids(name)]
        assert len(set(pids)) >= 5
        scheduler = LocalScheduler(cluster.state)
    assert not any(lives(pid) for pid in pids)
    cluster.close()
    with Queue(tmp_path / "state") as queue:
        assert [queue.job_row(one)["state"] for one in (number, waiting)] == ["CANCELLED", "CANCELLED"]
    with pytest.raises(SchedulerError, match="controller"):
        scheduler.job(number)


CONTROLLER = """
import sys
from pathlib import Path
from ckptctl.scheduler.local_controller import LocalCluster
folder = Path(sys.argv[1])
cluster = LocalCluster(folder / "state", nodes=2, slots=2)
cluster.submit([sys.executable, "-c", Path(sys.argv[2]).read_text()], nodes=2, tasks_per_node=2, cwd=folder,
               stdout=folder / "log")
names = [f"rank-{rank}" for rank in range(4)] + ["escaped"]
cluster.wait(lambda: all((folder / name).exists() for name in names), deadline_s=20, what="all ranks")
pids = [pid for name in cluster.node_names for pid in cluster.node_pids(name)]
print(*pids, (folder / "escaped").read_text(), flush=True)
cluster.wait(lambda: False, deadline_s=60, what="the end of time")
"""
BATCH = """
tell("escaped", subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"], start_new_session=True).pid)
scheduler.launch(job, ["sh", "-c", "trap '' TERM; touch rank-$RANK; while :; do sleep 0.1; done"], {})
time.sleep(600)
"""


def test_nothing_outlives_a_killed_controller_and_the_next_one_knows(tmp_path: Path) -> None:
    batch = tmp_path / "batch.py"
    batch.write_text(PREAMBLE + BATCH)
    argv = [sys.executable, "-c", CONTROLLER, str(tmp_path), str(batch)]
    with subprocess.Popen(argv, env={**os.environ, **ENV}, stdout=subprocess.PIPE, text=True) as controller:
        try:
            assert controller.stdout is not None
            pids = [int(word) for word in controller.stdout.readline().split()]
            assert len(pids) >= 8  # two daemons, the batch command, four ranks, the escaped
            procs = [found for found in map(process.read, pids) if found is not None]
            assert all(lives(pid) for pid in pids[:2])
            with pytest.raises(SchedulerError, match="another controller"):
                LocalCluster(tmp_path / "state", nodes=1, slots=1)
            assert lives(pids[0])  # being refused has ended nothing
        finally:
            controller.kill()
    try:
        wait_until(lambda: not any(lives(pid) for pid in pids), "every process of the cluster has ended")
    finally:  # a failure of this test must not be what leaves processes behind
        for proc in procs:
            process.send(proc, signal.SIGKILL)
    with LocalCluster(tmp_path / "state", nodes=1, slots=1) as cluster:
        job = cluster.job("1")
        assert (job.state, job.reason) == (
            JobState.NODE_FAIL, "the controller ended without closing the local cluster"
        )  # fmt: skip
        number = cluster.submit(["true"], nodes=1)
        assert number == "2"
        assert cluster.run_until(number, deadline_s=LIMIT_S).state is JobState.COMPLETED


def test_a_second_controller_in_one_process_is_refused_and_harms_nothing(jobs: Jobs) -> None:
    number = jobs.shell("touch up; while [ ! -e go ]; do sleep 0.02; done")
    jobs.wait_for("up")
    with pytest.raises(SchedulerError, match="another controller"):
        LocalCluster(jobs.cluster.state, nodes=1, slots=1)
    (jobs.folder / "go").touch()
    assert jobs.cluster.run_until(number, deadline_s=LIMIT_S).state is JobState.COMPLETED


def test_a_job_without_an_output_file_writes_where_the_controller_writes(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from ckptctl.scheduler.local_controller import LocalCluster
with LocalCluster(Path(sys.argv[1]), nodes=1, slots=1) as cluster:
    cluster.run_until(cluster.submit(["sh", "-c", "echo out; echo err >&2"], nodes=1), deadline_s=20)
"""
    argv = [sys.executable, "-c", script, str(tmp_path / "state")]
    done = subprocess.run(argv, env={**os.environ, **ENV}, capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "err\n")


def test_a_cluster_whose_nodes_do_not_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SchedulerError, match="n1 does not start"):
        LocalCluster(tmp_path / "state", nodes=1, slots=1)


# processes and queue


def test_a_signal_never_reaches_a_later_process_with_the_id() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        try:
            now = process.read(child.pid)
            assert now is not None
            process.send(replace(now, start=now.start - 1), signal.SIGKILL)
            assert not process.same(child.pid, now.start - 1)
            assert process.same(child.pid, now.start)
            process.send(now, signal.SIGTERM)
            assert child.wait(LIMIT_S) == -signal.SIGTERM
            process.send(now, signal.SIGTERM)
        finally:
            child.kill()


def test_a_process_name_with_parentheses_and_blanks_is_read(tmp_path: Path) -> None:
    odd = tmp_path / "a) R 1 (b"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([odd, "600"]) as child:
        try:
            wait_until(lambda: b"a) R" in Path(f"/proc/{child.pid}/stat").read_bytes(), "exec")
            found = process.read(child.pid)
            assert found is not None
            assert (found.parent, found.group) == (os.getpid(), os.getpgrp())
        finally:
            child.kill()


def test_a_failed_transaction_changes_nothing(tmp_path: Path) -> None:
    with Queue(tmp_path / "state", create=True) as queue:

        def add_a_node_and_fail() -> None:
            with queue.transaction():
                queue.change("INSERT INTO nodes (name, ordinal, slots, boot_id, state) VALUES ('n1', 0, 1, 'b', 'UP')")
                assert queue.is_up("b")
                raise RuntimeError

        with pytest.raises(RuntimeError):
            add_a_node_and_fail()
        assert not queue.is_up("b")
        with pytest.raises(SchedulerError, match="syntax"):
            queue.rows("SELEC 1")
        for odd in ("", "x", "1_2", "-1", "²", "9" * 40):
            assert queue.job_row(odd) is None
    assert oct((tmp_path / "state" / "queue.sqlite").stat().st_mode & 0o777) == "0o600"
