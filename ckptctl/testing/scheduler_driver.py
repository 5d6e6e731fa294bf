"""What the scheduler conformance suite runs in jobs: `python -m ckptctl.testing.scheduler_driver SCENARIO OUT.json`.

A scenario makes calls of the `Scheduler` protocol and writes what it saw to OUT.json, one entry per incarnation of the
job. Whether that is right is judged by `ckptctl.testing.scheduler`, outside. The folder of OUT.json must be seen by all
nodes under the same path.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ckptctl.interfaces import Launch, Scheduler
from ckptctl.model.job import Job, NodeState

SCHEDULERS = {
    "local": ("ckptctl.scheduler.local", "LocalScheduler"),
    "slurm": ("ckptctl.scheduler.slurm", "SlurmScheduler"),
}
UNKNOWN_NODE = "no-such-node"
UNKNOWN_JOB = "987654321"
FAIL_CODE = 7
SAYING = "two words, 100 % = all of it"
END_GRACE_S = 1.0
_POLL_S = 0.02

# Tasks are shell scripts: they start in milliseconds. Each first leaves a file named after its rank.
_TASKS = {
    "succeed": "echo $RANK $LOCAL_RANK $NODE_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT $WORD > $ME",
    "fail": f'touch $ME; if [ "${{RANK:-1}}" = 1 ]; then exit {FAIL_CODE}; fi; sleep 600',
    "die": "touch $ME; kill -9 $$",
    "listen": "trap 'touch $ME-heard; exit 0' USR1; touch $ME; while :; do sleep 0.05; done",
    "polite": "trap 'touch $ME-heard; exit 0' TERM; touch $ME; while :; do sleep 0.05; done",
    "stubborn": "trap '' TERM; touch $ME; while :; do sleep 0.05; done",
}


def scheduler_named(name: str) -> Scheduler:
    """Return the scheduler of this name."""
    module, attribute = SCHEDULERS[name]
    found: Scheduler = getattr(importlib.import_module(module), attribute)()
    return found


def plain(value: Any) -> Any:
    """Return a dataclass of ours as what JSON can hold."""
    return json.loads(json.dumps(dataclasses.asdict(value))) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type]


class Driver:
    """One run of a scenario: the scheduler, where to record, and how long to wait for anything."""

    def __init__(self, scheduler: Scheduler, out: Path, options: argparse.Namespace) -> None:
        self.scheduler = scheduler
        self.out = out
        self.options = options
        self.patience_s: float = options.patience_s
        self.restart = 0
        self.terminated = False

    def record(self, **seen: Any) -> None:
        """Add observations to this incarnation's entry."""
        whole = json.loads(self.out.read_text()) if self.out.exists() else {}
        whole.setdefault(str(self.restart), {}).update({key: plain(value) for key, value in seen.items()})
        part = self.out.with_suffix(".part")
        part.write_text(json.dumps(whole, indent=1))
        part.replace(self.out)

    def wait(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until `condition` holds; say whether it does in time."""
        end_s = time.monotonic() + (self.patience_s if seconds is None else seconds)
        while not condition():
            if time.monotonic() > end_s:
                return False
            time.sleep(_POLL_S)
        return True

    def mine(self) -> Job:
        """Return the job this runs in."""
        job = self.scheduler.current_job()
        if job is None:
            raise AssertionError("current_job() is None inside a job")
        self.restart = job.restart
        return job

    # scenarios

    def look(self) -> None:
        """Outside any job: what is seen from there, and a job by id if one is named."""
        self.record(
            current=self.scheduler.current_job(),
            unknown_job=self.scheduler.job(UNKNOWN_JOB),
            unknown_node=self.scheduler.nodes([UNKNOWN_NODE])[UNKNOWN_NODE].value,
            node=self.scheduler.this_node(),
            job=self.scheduler.job(self.options.job) if self.options.job else None,
        )

    def inside(self) -> None:
        """In a job of two or more nodes: identity, node states, comment, questions to nodes."""
        job = self.mine()
        self.record(
            name=self.scheduler.name,
            current=job,
            by_id=self.scheduler.job(job.id),
            unknown_job=self.scheduler.job(UNKNOWN_JOB),
            node=self.scheduler.this_node(),
            node_again=self.scheduler.this_node(),
            nodes={name: state.value for name, state in self.scheduler.nodes([*job.nodes, UNKNOWN_NODE]).items()},
            can_requeue=self.scheduler.can_requeue(job),
        )
        for key, value in (("conf-a", "1"), ("conf-b", "2"), ("conf-a", "3"), ("conf-c", SAYING)):
            self.scheduler.set_comment(job, key, value)
        now = self.scheduler.job(job.id)
        self.record(comment=now.comment if now is not None else None)

        last = job.nodes[-1]
        ask = [sys.executable, "-m", __spec__.name, "answer", "-", "--scheduler", self.options.scheduler]
        self.record(
            answers=self._ask(job, ask, self.patience_s),
            one_fails=self._ask(job, [*ask, "--fail-on", last], self.patience_s),
            not_there=self._ask(job, [f"{self.out.parent}/no-such-command"], self.patience_s),
            told=self._ask(job, ["sh", "-c", 'echo "$CONF_WORD"'], self.patience_s, {"CONF_WORD": SAYING}),
        )
        began_s = time.monotonic()
        pid_file = self.out.with_suffix(".pid")
        hang_s = self.options.hang_s
        self.record(one_hangs=self._ask(job, [*ask, "--hang-on", last, "--pid-file", str(pid_file)], hang_s))
        self.record(hang_took_s=time.monotonic() - began_s)
        # The one that hung has told its process id: ask its node whether that process is gone.
        pid = pid_file.read_text() if pid_file.exists() else "none"
        gone = ["sh", "-c", f'if [ -d "/proc/{pid}" ]; then echo there; else echo gone; fi']
        self.record(hung_pid=pid, hung=self._ask(job, gone, self.patience_s)[-1])

    def _ask(self, job: Job, argv: list[str], deadline_s: float, env: dict[str, str] | None = None) -> list[Any]:
        return [plain(answer) for answer in self.scheduler.ask_nodes(job, argv, deadline_s=deadline_s, env=env)]

    def launch(self) -> None:
        """In a job: commands that succeed, fail, die, listen to signals, and are ended."""
        job = self.mine()
        tasks = len(job.nodes) * self.options.tasks_per_node if self.scheduler.capabilities.launches_tasks else 1
        self.record(tasks=tasks)
        self.record(succeed={"code": self._code(self._launch(job, "succeed"))})
        words = [path.read_text().split() for path in self._files("succeed")]
        self.record(words=words)
        began_s = time.monotonic()
        self.record(fail={"code": self._code(self._launch(job, "fail")), "took_s": time.monotonic() - began_s})
        self.record(die={"code": self._code(self._launch(job, "die"))})

        listening = self._launch(job, "listen")
        ready = self._all_there("listen", tasks)
        first = listening.poll()
        listening.signal(signal.SIGUSR1)
        code = self._code(listening)
        listening.signal(signal.SIGUSR1)  # after its end: no error
        self.record(listen={"ready": ready, "poll": first, "code": code, "heard": len(self._files("listen", "-heard"))})

        for name, grace_s in (("polite", self.patience_s), ("stubborn", END_GRACE_S)):
            command = self._launch(job, name)
            ready = self._all_there(name, tasks)
            began_s = time.monotonic()
            command.end(grace_s)
            took_s = time.monotonic() - began_s
            command.end(grace_s)  # a second time: nothing to do
            heard = len(self._files(name, "-heard"))
            self.record(**{name: {"ready": ready, "took_s": took_s, "code": command.poll(), "heard": heard}})

    def _launch(self, job: Job, name: str) -> Launch:
        script = f"ME={self.out}.{name}-${{RANK:-0}}; {_TASKS[name]}"
        return self.scheduler.launch(job, ["sh", "-c", script], {"WORD": "word"})

    def _files(self, name: str, suffix: str = "") -> list[Path]:
        folder = self.out.parent
        return [path for path in sorted(folder.iterdir()) if self._is_of(path.name, name, suffix)]

    def _is_of(self, file: str, name: str, suffix: str) -> bool:
        prefix = f"{self.out.name}.{name}-"
        return file.startswith(prefix) and file[len(prefix) :].removesuffix(suffix).isdigit() and file.endswith(suffix)

    def _all_there(self, name: str, tasks: int) -> bool:
        return self.wait(lambda: len(self._files(name)) == tasks)

    def _code(self, command: Launch) -> int | None:
        self.wait(lambda: command.poll() is not None)
        return command.poll()

    def requeue(self) -> None:
        """In a job of one node: requeue it, twice, exclude this node and one more, and look at what comes back."""
        job = self.mine()
        if job.restart > 0:
            self.record(current=job)
            return
        self._await_sigterm()
        others = [name for name in self.options.nodes.split(",") if name not in job.nodes]
        self.scheduler.set_comment(job, "conf-a", "1")
        self.record(current=job, terminated_before=self.terminated, others=others)
        self.scheduler.requeue(job)
        self.scheduler.requeue(job)
        self.record(excluded=list(self.scheduler.exclude(job, job.nodes)))
        self.record(terminated=self.wait(lambda: self.terminated))
        # SIGTERM has come, the calls must still work in the time that is left.
        merged = list(self.scheduler.exclude(job, others[:1]))
        self.scheduler.set_comment(job, "conf-b", "2")
        self.scheduler.requeue(job)
        now = self.scheduler.job(job.id)
        self.record(merged=merged, state=now.state.value if now is not None else None)

    def hold(self) -> None:
        """In a job: requeue it held."""
        job = self.mine()
        self.record(current=job)
        if job.restart == 0:
            self._await_sigterm()
            self.scheduler.requeue(job, hold=True)
            self.record(terminated=self.wait(lambda: self.terminated))

    def lost_node(self) -> None:
        """In a job of two nodes of which the second is about to be lost."""
        job = self.mine()
        command = self.scheduler.launch(job, ["sleep", "600"], {})
        self.record(current=job)  # the signal to kill the node
        lost = job.nodes[-1]
        noticed = self.wait(lambda: self.scheduler.nodes([lost])[lost] is not NodeState.UP)
        self.record(noticed=noticed, nodes={name: one.value for name, one in self.scheduler.nodes(job.nodes).items()})
        if self.scheduler.capabilities.launches_tasks:
            self.record(code=self._code(command))
        command.end(END_GRACE_S)
        self.record(answers=self._ask(job, ["echo", "here"], self.patience_s))

    def lost_batch_host(self) -> None:
        """In a job whose batch host is about to be lost."""
        job = self.mine()
        self.record(current=job)
        if job.restart == 0:
            self.wait(lambda: False)

    def _await_sigterm(self) -> None:
        def note(*_: object) -> None:
            self.terminated = True

        signal.signal(signal.SIGTERM, note)


def _answer(scheduler: Scheduler, options: argparse.Namespace) -> int:
    """Be the command that nodes are asked to run."""
    node = scheduler.this_node().name
    print(node)  # noqa: T201 - the answer
    if options.hang_on == node:
        Path(options.pid_file).write_text(str(os.getpid()))
        time.sleep(600)
    return FAIL_CODE if options.fail_on == node else 0


def main() -> int:
    """Run one scenario."""
    parser = argparse.ArgumentParser(prog="scheduler_driver")
    scenarios = ["look", "inside", "launch", "requeue", "hold", "lost-node", "lost-batch-host"]
    parser.add_argument("scenario", choices=[*scenarios, "answer"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--scheduler", choices=sorted(SCHEDULERS), required=True)
    parser.add_argument("--patience-s", type=float, default=30.0)
    parser.add_argument("--hang-s", type=float, default=2.0, help="deadline of a question that one node will not answer")
    parser.add_argument("--tasks-per-node", type=int, default=1)
    parser.add_argument("--nodes", default="", help="all nodes of the cluster")
    parser.add_argument("--job", default="")
    parser.add_argument("--fail-on", default="")
    parser.add_argument("--hang-on", default="")
    parser.add_argument("--pid-file", default="")
    options = parser.parse_args()
    scheduler = scheduler_named(options.scheduler)
    if options.scenario == "answer":
        return _answer(scheduler, options)
    driver = Driver(scheduler, options.out, options)
    try:
        getattr(driver, options.scenario.replace("-", "_"))()
    except BaseException:
        driver.record(error=traceback.format_exc())
        raise
    driver.record(done=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
