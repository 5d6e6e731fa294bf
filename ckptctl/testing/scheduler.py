"""The conformance suite for implementations of `ckptctl.interfaces.Scheduler`.

Bring a `SchedulerHarness` around a running cluster and call every function of `CHECKS` with it. A check runs small jobs
whose commands make the protocol's calls (`scheduler_driver`) and judges what they saw; it raises `AssertionError` with
all it found wrong. Checks leave no job behind and start the nodes again that they lost. No test framework is needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from ckptctl.model.job import JobState, comment_value
from ckptctl.testing import scheduler_driver as driver

_ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT, JobState.NODE_FAIL)


class SchedulerHarness(Protocol):
    """A running cluster of at least three nodes, and the things that a user, an administrator and fate do to it.

    Everything that waits has a deadline. `ckptctl` must be importable by `python` on the nodes and where `call` runs.
    """

    scheduler: str
    """The name the driver finds the scheduler by."""
    python: str
    """The interpreter on the nodes."""
    shared: Path
    """A folder that this process, the nodes and the place where `call` runs see under one path, and can write to."""
    node_names: Sequence[str]
    patience_s: float
    """How long anything may take that the cluster does by itself: start or end a job, notice a lost node."""
    hang_s: float
    """Deadline for a question to nodes of which one never answers: long enough for the others to answer."""

    def submit(self, argv: Sequence[str], *, nodes: int, tasks_per_node: int, outlives_nodes: bool) -> str:
        """Submit a batch job: requeueable, whole nodes. `outlives_nodes`: it goes on when one that is not its batch host fails.

        On Slurm that is `--no-kill`, with which Slurm does not requeue a job that lost its batch host either.
        """

    def call(self, argv: Sequence[str]) -> int:
        """Run a command as a user outside any job; return its exit code."""

    def state(self, job_id: str) -> JobState:
        """Return the state of a job, found out by other means than the scheduler under test where there are any."""

    def wait(self, condition: Callable[[], bool], *, deadline_s: float, what: str) -> None:
        """Wait until the condition holds (and drive the cluster, if it needs that); raise when it does not in time."""

    def release(self, job_id: str) -> None:
        """Release a held job, as its user."""

    def cancel(self, job_id: str) -> None:
        """Cancel a job, whatever its state, and wait until it has ended."""

    def lose_node(self, name: str) -> None:
        """Take a node away at once, with all that runs on it; don't wait for the controller to notice."""

    def bring_back(self, name: str) -> None:
        """Bring a lost node back and wait until it can be given to jobs."""

    def output(self, job_id: str) -> str:
        """Return what the job has printed so far, for messages."""


class _Findings:
    """What was wrong, collected, so that one run of a job tells all."""

    def __init__(self, seen: Any) -> None:
        self.seen = seen
        self.wrong: list[str] = []

    def expect(self, right: bool, what: str) -> None:
        """Note `what` unless it is so."""
        if not right:
            self.wrong.append(what)

    def judge(self) -> None:
        """Raise when anything was wrong."""
        if self.wrong:
            raise AssertionError("\n".join([*self.wrong, "seen: " + json.dumps(self.seen, indent=1)]))


def check_outside(harness: SchedulerHarness) -> None:
    """Outside a job there is no current job; unknown jobs are None, unknown nodes UNKNOWN, and this node has a name."""
    seen = _look(harness, "outside")
    found = _Findings(seen)
    found.expect(seen["current"] is None, "current_job() outside a job is not None")
    found.expect(seen["unknown_job"] is None, "job() of an unknown id is not None")
    found.expect(seen["unknown_node"] == "UNKNOWN", "an unknown node is not UNKNOWN")
    found.expect(bool(seen["node"]["name"]), "this_node() has no name")
    found.judge()


def check_inside(harness: SchedulerHarness) -> None:
    """Identity, node states, can_requeue, comments, and questions to nodes."""
    seen = _run(harness, "inside", nodes=2)["0"]
    job, found = seen["current"], _Findings(seen)
    nodes = job["nodes"]
    found.expect(seen["name"] == harness.scheduler, "the scheduler's name is not the one it is found by")
    found.expect(job["state"] == "RUNNING" and job["restart"] == 0, "the current job is not RUNNING with restart 0")
    found.expect(len(nodes) == 2 and set(nodes) <= set(harness.node_names), "the job's nodes are not 2 of the cluster's")
    found.expect(job["batch_host"] in nodes and job["is_batch"], "it is not a batch job with its host among its nodes")
    found.expect(job["requeueable"], "a requeueable job is not told as one")
    found.expect(seen["by_id"] == job, "job(id) and current_job() differ")
    found.expect(seen["unknown_job"] is None, "job() of an unknown id is not None")
    found.expect(seen["node"]["name"] == job["batch_host"], "this_node() of the batch command is not the batch host")
    found.expect(bool(seen["node"]["boot_id"]) and seen["node"] == seen["node_again"], "the boot id is empty or changes")
    states = {**dict.fromkeys(nodes, "UP"), driver.UNKNOWN_NODE: "UNKNOWN"}
    found.expect(seen["nodes"] == states, f"nodes() is not {states}")
    found.expect(seen["can_requeue"]["ok"] and bool(seen["can_requeue"]["reason"]), "can_requeue is not ok with a reason")
    words = (seen["comment"] or "").split()
    found.expect("conf-a=3" in words and "conf-b=2" in words, "set_comment lost a word")
    found.expect(comment_value(seen["comment"] or "", "conf-c") == driver.SAYING, "a value with blanks did not come back")
    found.expect("conf-a=1" not in words, "set_comment kept the old value of the key")

    for name in ("answers", "one_fails", "one_hangs", "not_there", "told"):
        found.expect([one["node"] for one in seen[name]] == nodes, f"{name}: not one answer per node, in order")
    found.expect([one["output"].strip() for one in seen["answers"]] == nodes, "the answers are not those of the nodes")
    found.expect([one["exit_code"] for one in seen["answers"]] == [0, 0], "exit codes of good answers are not 0")
    found.expect(not any(one["problem"] for one in seen["answers"]), "a good answer has a problem")
    codes = [one["exit_code"] for one in seen["one_fails"]]
    found.expect(codes == [0, driver.FAIL_CODE], "the exit code of the failing node is not kept apart")
    outputs = [one["output"].strip() for one in seen["one_fails"]]
    found.expect(outputs == nodes, "the output of the failing node, or of the other, is lost")
    good, hung = seen["one_hangs"]
    found.expect(good["exit_code"] == 0 and good["output"].strip() == nodes[0], "the answer beside a hanging node is lost")
    found.expect(hung["exit_code"] is None and bool(hung["problem"]), "a hanging node has no problem")
    found.expect(seen["hang_took_s"] < harness.hang_s + harness.patience_s, "a question takes much longer than its deadline")
    found.expect(seen["hung_pid"] != "none", "the command did not begin on the node that was to hang: raise hang_s")
    found.expect(seen["hung"]["output"].strip() == "gone", "the process that hung is still there")
    told = [one["output"].strip() for one in seen["told"]]
    found.expect(told == [driver.SAYING, driver.SAYING], "a variable for the nodes did not reach them as it is")
    for one in seen["not_there"]:
        found.expect(one["exit_code"] != 0, "a command that does not exist succeeded")
    found.judge()


def check_launch(harness: SchedulerHarness) -> None:
    """A launched command: ranks, exit codes of success, failure and death, signals, and its end."""
    tasks_per_node = 2
    seen = _run(harness, "launch", nodes=2, tasks_per_node=tasks_per_node)["0"]
    tasks, found = seen["tasks"], _Findings(seen)
    found.expect(seen["succeed"]["code"] == 0, "a command that succeeds has not code 0")
    found.expect(len(seen["words"]) == tasks, "not every task left its file")
    found.expect(all(words[-1] == "word" for words in seen["words"]), "the added variable did not arrive")
    if tasks > 1:
        ranks = sorted([int(word) for word in words[:5]] for words in seen["words"])
        right = [
            [node * tasks_per_node + slot, slot, node, tasks, tasks_per_node]
            for node in range(tasks // tasks_per_node)
            for slot in range(tasks_per_node)
        ]
        found.expect(ranks == right, "RANK, LOCAL_RANK, NODE_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE are not node by node")
        found.expect(len({tuple(words[5:7]) for words in seen["words"]}) == 1, "tasks differ in MASTER_ADDR or MASTER_PORT")
    found.expect(seen["fail"]["code"] == driver.FAIL_CODE, "the code is not that of the task that failed")
    found.expect(seen["fail"]["took_s"] < harness.patience_s, "the other tasks were not ended after a failure")
    found.expect(seen["die"]["code"] == 137, "death by SIGKILL is not 137")
    listen = seen["listen"]
    found.expect(listen["ready"] and listen["poll"] is None, "poll() of a running command is not None")
    found.expect(listen["heard"] == tasks and listen["code"] == 0, "the signal did not reach every task")
    polite, stubborn = seen["polite"], seen["stubborn"]
    found.expect(polite["heard"] == tasks, "end() did not send SIGTERM to every task")
    found.expect(polite["took_s"] < harness.patience_s, "end() waited out the grace of a command that had ended")
    found.expect(polite["code"] is not None, "poll() after end() is None")
    found.expect(stubborn["took_s"] >= driver.END_GRACE_S, "end() did not wait out the grace")
    found.expect(stubborn["took_s"] < driver.END_GRACE_S + harness.patience_s / 2, "end() took long after the grace")
    found.expect(stubborn["code"] == 137, "a command that ignores SIGTERM was not killed by end()")
    found.judge()


def check_requeue(harness: SchedulerHarness) -> None:
    """Requeue while RUNNING, twice, with nodes excluded before and after SIGTERM: it comes back once, elsewhere."""
    seen = _run(harness, "requeue", nodes=1, incarnations=2)
    found = _Findings(seen)
    before, after = seen["0"], seen["1"]["current"]
    here, other = before["current"]["nodes"][0], before["others"][0]
    found.expect(not before["terminated_before"] and before["terminated"], "SIGTERM did not come after the requeue")
    found.expect(here in before["excluded"], "exclude() does not return the node")
    found.expect({here, other} <= set(before["merged"]), "a second exclude() does not return both nodes")
    found.expect(before["state"] in ("PENDING", "COMPLETING"), "the job is not on its way back after requeue()")
    found.expect(after["id"] == before["current"]["id"] and after["restart"] == 1, "not the same job with restart 1")
    found.expect({here, other} <= set(after["excluded"]), "the job that came back lacks an excluded node")
    found.expect(not {here, other} & set(after["nodes"]), "the job that came back was given an excluded node")
    found.expect({"conf-a=1", "conf-b=2"} <= set(after["comment"].split()), "a word of the comment was lost")
    found.expect(set(seen) == {"0", "1"}, "it came back more than once")
    found.judge()


def check_hold(harness: SchedulerHarness) -> None:
    """A job that is requeued held waits, says that it is held, and comes back when it is released."""
    job_id, out = _submit(harness, "hold", nodes=1)
    try:
        harness.wait(
            lambda: harness.state(job_id) is JobState.PENDING and "0" in _read(out),
            deadline_s=2 * harness.patience_s,
            what=f"job {job_id} PENDING after requeue(hold=True)",
        )
        held = _look(harness, "held", job_id)["job"]
        harness.release(job_id)
        seen = _result(harness, job_id, out, incarnations=2)
    finally:
        harness.cancel(job_id)
    found = _Findings({**seen, "held": held})
    found.expect(held["state"] == "PENDING" and "held" in held["reason"].lower(), "it is not PENDING with a reason of held")
    found.expect(held["nodes"] == [], "a job that waits has nodes")
    found.expect(seen["0"]["terminated"], "SIGTERM did not come after the requeue")
    found.expect(seen["1"]["current"]["restart"] == 1, "it did not come back with restart 1")
    found.judge()


def check_lost_node(harness: SchedulerHarness) -> None:
    """A node of the job other than the batch host is lost: it is not UP, its tasks fail, the others still answer."""
    job_id, out = _submit(harness, "lost-node", nodes=2, outlives_nodes=True)
    lost = ""
    try:
        lost = _nodes_of(harness, job_id, out)[-1]
        harness.lose_node(lost)
        seen = _result(harness, job_id, out)["0"]
    finally:
        harness.cancel(job_id)
        if lost:
            harness.bring_back(lost)
    found = _Findings(seen)
    found.expect(seen["noticed"] and seen["nodes"][lost] in ("DOWN", "SUSPECT"), "nodes() does not show the lost node")
    found.expect(seen["nodes"][seen["current"]["nodes"][0]] == "UP", "nodes() takes the other node for lost, too")
    found.expect(seen.get("code", 137) not in (0, None), "the launched command did not fail with the node")
    here, gone = seen["answers"]
    found.expect(here["output"].strip() == "here" and here["exit_code"] == 0, "the answer of the living node was lost")
    found.expect(gone["node"] == lost and gone["exit_code"] is None, "the lost node has an answer")
    found.expect(bool(gone["problem"]), "the lost node has no problem")
    found.judge()


def check_lost_batch_host(harness: SchedulerHarness) -> None:
    """When the batch host is lost the scheduler itself brings the job back, on other nodes, with restart 1."""
    job_id, out = _submit(harness, "lost-batch-host", nodes=2)
    lost = ""
    try:
        lost = _nodes_of(harness, job_id, out)[0]
        harness.lose_node(lost)
        seen = _result(harness, job_id, out, incarnations=2)
    finally:
        harness.cancel(job_id)
        if lost:
            harness.bring_back(lost)
    after, found = seen["1"]["current"], _Findings(seen)
    found.expect(after["restart"] == 1 and after["id"] == job_id, "not the same job with restart 1")
    found.expect(lost not in after["nodes"], "it was given the lost node again")
    found.judge()


CHECKS: tuple[Callable[[SchedulerHarness], None], ...] = (
    check_outside,
    check_inside,
    check_launch,
    check_requeue,
    check_hold,
    check_lost_node,
    check_lost_batch_host,
)
"""All checks; each is independent of the others and starts with all nodes up and no job."""


def _command(harness: SchedulerHarness, scenario: str, out: Path, *more: str) -> list[str]:
    return [
        harness.python, "-m", "ckptctl.testing.scheduler_driver", scenario, str(out),
        "--scheduler", harness.scheduler, "--patience-s", str(harness.patience_s), "--hang-s", str(harness.hang_s),
        "--nodes", ",".join(harness.node_names), *more,
    ]  # fmt: skip


def _out(harness: SchedulerHarness, scenario: str) -> Path:
    harness.shared.mkdir(parents=True, exist_ok=True)
    taken = {path.name.split(".")[0] for path in harness.shared.iterdir()}
    number = next(number for number in range(len(taken) + 1) if f"{scenario}-{number}" not in taken)
    folder = harness.shared / f"{scenario}-{number}"
    folder.mkdir()
    folder.chmod(0o777)  # a harness may submit as another user than the one this runs as
    return folder / "out.json"


def _read(out: Path) -> dict[str, Any]:
    seen: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    return seen


def _look(harness: SchedulerHarness, name: str, job_id: str = "") -> dict[str, Any]:
    out = _out(harness, name)
    code = harness.call(_command(harness, "look", out, *(["--job", job_id] if job_id else [])))
    seen = _read(out).get("0", {})
    if code != 0 or "error" in seen:
        raise AssertionError(f"the driver failed outside a job with {code}:\n{seen.get('error', '')}")
    return dict(seen)


def _submit(
    harness: SchedulerHarness, scenario: str, *, nodes: int, tasks_per_node: int = 1, outlives_nodes: bool = False
) -> tuple[str, Path]:
    out = _out(harness, scenario)
    argv = _command(harness, scenario, out, "--tasks-per-node", str(tasks_per_node))
    job_id = harness.submit(argv, nodes=nodes, tasks_per_node=tasks_per_node, outlives_nodes=outlives_nodes)
    return job_id, out


def _run(
    harness: SchedulerHarness, scenario: str, *, nodes: int, tasks_per_node: int = 1, incarnations: int = 1
) -> dict[str, Any]:
    job_id, out = _submit(harness, scenario, nodes=nodes, tasks_per_node=tasks_per_node)
    try:
        return _result(harness, job_id, out, incarnations=incarnations)
    finally:
        harness.cancel(job_id)


def _nodes_of(harness: SchedulerHarness, job_id: str, out: Path) -> list[str]:
    """Return the job's nodes once its first incarnation has recorded them."""
    harness.wait(
        lambda: bool({"current", "error"} & set(_read(out).get("0", {}))) or harness.state(job_id) in _ENDED,
        deadline_s=2 * harness.patience_s,
        what=f"job {job_id} has told its nodes",
    )
    seen = _read(out).get("0", {})
    if "current" not in seen:
        raise AssertionError(f"job {job_id} failed:\n{seen.get('error', '')}\n{harness.output(job_id)}")
    return list(seen["current"]["nodes"])


def _result(harness: SchedulerHarness, job_id: str, out: Path, *, incarnations: int = 1) -> dict[str, Any]:
    """Wait for the end of the job and return what it recorded; AssertionError when it did not do all of it."""
    harness.wait(
        lambda: harness.state(job_id) in _ENDED,
        deadline_s=(4 + 4 * incarnations) * harness.patience_s,
        what=f"the end of job {job_id} ({out})",
    )
    seen = _read(out)
    errors = [one["error"] for one in seen.values() if "error" in one]
    done = seen.get(str(incarnations - 1), {}).get("done", False)
    state = harness.state(job_id)
    if errors or not done or state is not JobState.COMPLETED:
        raise AssertionError(
            f"job {job_id} is {state.value} and did not do all it should (incarnations: {sorted(seen)})\n"
            + "\n".join([*errors, harness.output(job_id)])
        )
    return seen
