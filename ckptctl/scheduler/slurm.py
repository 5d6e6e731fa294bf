"""Slurm over its own commands with text output; works from Slurm 22.05 on, with and without slurmdbd.

The only module that reads `SLURM_*`. Every command runs in a session of its own with SIGTERM ignored: the SIGTERM that
follows `scontrol requeue` goes to every process of the batch step, and once ended the very `scontrol` that was to exclude a
node.
"""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from ckptctl.errors import SchedulerError
from ckptctl.interfaces import Launch, SchedulerCapabilities
from ckptctl.model.job import Ability, Job, JobState, Node, NodeState, TaskAnswer, comment_word
from ckptctl.scheduler import slurm_text as text

_COMMAND_S = 30.0
_COMMENT_BYTES = 1024  # what slurmctld takes (`_test_strlen`)
_AWAY = ("unable to contact slurm controller", "socket timed out", "connection refused", "transport endpoint")
_UNKNOWN_JOB = "invalid job id"
_STEP_VARIABLES = re.compile(
    r"SLURM_(NTASKS|NPROCS|NNODES|JOB_NUM_NODES|CPUS_PER_TASK|TRES_PER_TASK|MEM_PER_|GRES|GPUS|DISTRIBUTION|EXACT|CPU_BIND"
    r"|MEM_BIND|THREADS_PER_CORE|OVERCOMMIT|LABELIO|UNBUFFEREDIO|TASKS_PER_NODE|STEP_|SRUN_|KILL_BAD_EXIT|NO_KILL|WAIT)"
)
_MARK = "@@ckptctl"
_WRAPPER = (
    'out=$("$@" 2>&1); rc=$?; printf "%s %s %s %s\\n" "' + _MARK + '" "${SLURMD_NODENAME:-$(hostname)}" "$rc" '
    '"$(printf %s "$out" | base64 | tr -d "\\n")"'
)


class SlurmScheduler:
    """`interfaces.Scheduler` for Slurm."""

    name = "slurm"
    capabilities = SchedulerCapabilities(single_machine=False, launches_tasks=False)

    def this_node(self) -> Node:
        """See `interfaces.Scheduler`."""
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                boot_id = file.read().strip()
        except OSError:
            boot_id = ""
        return Node(os.environ.get("SLURMD_NODENAME") or os.uname().nodename, boot_id)

    def current_job(self) -> Job | None:
        """See `interfaces.Scheduler`. Without a working `scontrol` (a container) it is what the environment tells."""
        env = os.environ
        number = env.get("SLURM_JOB_ID")
        if not number:
            return None
        if env.get("SLURM_ARRAY_JOB_ID") and env.get("SLURM_ARRAY_TASK_ID"):
            number = f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}"
        elif env.get("SLURM_HET_JOB_ID"):
            number = env["SLURM_HET_JOB_ID"]
        try:
            found = self.job(number)
        except SchedulerError:
            found = None
        if found is not None:
            return found
        return Job(
            id=number,
            restart=int(env.get("SLURM_RESTART_COUNT") or 0),
            user=env.get("SLURM_JOB_USER") or env.get("USER", ""),
            state=JobState.RUNNING,
            nodes=text.expand(env.get("SLURM_JOB_NODELIST", "")),
            batch_host=env.get("SLURMD_NODENAME", ""),
            name=env.get("SLURM_JOB_NAME", ""),
        )

    def job(self, job_id: str) -> Job | None:
        """See `interfaces.Scheduler`."""
        done = self._scontrol("-o", "show", "job", job_id, check=False)
        if done.returncode:
            if _UNKNOWN_JOB in done.stderr.lower():
                return None
            raise _refused(done)
        jobs = [text.job(record) for record in text.job_fields(done.stdout)]
        return next((job for job in jobs if job.id == job_id), jobs[0] if len(jobs) == 1 else None)

    def nodes(self, names: Sequence[str]) -> dict[str, NodeState]:
        """See `interfaces.Scheduler`."""
        found = dict.fromkeys(names, NodeState.UNKNOWN)
        if names:
            done = self._scontrol("-o", "show", "node", text.fold(list(names)), check=False)
            if done.returncode and "not found" not in (done.stderr + done.stdout).lower():
                raise _refused(done)
            for record in text.node_fields(done.stdout):
                if record.get("NodeName") in found:
                    found[record["NodeName"]] = text.node_state(record.get("State", ""))
        return found

    def ask_nodes(
        self, job: Job, argv: Sequence[str], *, deadline_s: float, env: Mapping[str, str] | None = None
    ) -> list[TaskAnswer]:
        """See `interfaces.Scheduler`. One overlapping jobstep over all nodes that respond.

        When that step breaks (a slurmd is dead and Slurm does not know yet), the nodes without an answer are asked one by one.
        """
        end = time.monotonic() + deadline_s
        if shutil.which("srun") is None:
            raise SchedulerError("there is no srun here", hint="bind Slurm's commands into the container")
        states = self.nodes(job.nodes)
        well = [node for node in job.nodes if states[node] not in (NodeState.DOWN, NodeState.SUSPECT)]
        answers = {node: _no_answer(node, f"the node is {states[node].value}") for node in job.nodes if node not in well}
        if well:
            share_s = (end - time.monotonic()) * (0.6 if len(well) > 1 else 1.0)
            answers |= self._ask(job, well, argv, env or {}, max(1.0, share_s))
        silent = [node for node in well if answers[node].exit_code is None]
        if len(well) > 1 and silent and end - time.monotonic() > 1:
            left = end - time.monotonic()
            with ThreadPoolExecutor(max_workers=min(16, len(silent))) as pool:
                for again in pool.map(lambda node: self._ask(job, [node], argv, env or {}, left), silent):
                    answers |= again
        return [answers[node] for node in job.nodes]

    def _ask(
        self, job: Job, nodes: Sequence[str], argv: Sequence[str], added: Mapping[str, str], deadline_s: float
    ) -> dict[str, TaskAnswer]:
        count = str(len(nodes))
        command = ["srun", f"--jobid={job.id.partition('_')[0] if '_' not in job.id else _raw_id(job)}", "--overlap"]
        command += [f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "-w", text.fold(list(nodes))]
        command += ["--mem=0", "--gres=none", "--no-kill", "--kill-on-bad-exit=0", "--input=none", "--cpu-bind=none"]
        command += ["--export=ALL"]  # also in a job that was submitted with --export=NONE
        command += ["sh", "-c", _WRAPPER, "sh", *argv]
        env = {name: value for name, value in os.environ.items() if not _STEP_VARIABLES.match(name)} | dict(added)
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, start_new_session=True
        )
        try:
            out, err = process.communicate(timeout=deadline_s)
            problem = ""
        except subprocess.TimeoutExpired:
            out, err = _end_group(process)
            problem = f"not done within {deadline_s:.0f} s"
        found = {node: _no_answer(node, problem) for node in nodes}
        for line in out.decode(errors="replace").splitlines():
            words = line[line.find(_MARK) :].split(" ") if _MARK in line else []
            if len(words) == 4 and words[1] in found and words[2].isdigit():
                body = base64.b64decode(words[3]).decode(errors="replace")
                found[words[1]] = TaskAnswer(words[1], int(words[2]), body)
        said = err.decode(errors="replace").strip().splitlines()
        for node, answer in found.items():
            if answer.exit_code is None and not problem:
                mine = [line for line in said if re.search(rf"\b{re.escape(node)}\b", line)] or said[-1:]
                found[node] = _no_answer(node, mine[0] if mine else f"srun ended with {process.returncode}")
        return found

    def launch(self, job: Job, argv: Sequence[str], env: Mapping[str, str]) -> Launch:  # noqa: ARG002 - the job's own
        """See `interfaces.Scheduler`. The command brings its own launcher (`srun`); it gets a session of its own."""
        try:
            process = subprocess.Popen(argv, env={**os.environ, **env}, start_new_session=True)
        except OSError as exc:
            raise SchedulerError(f"cannot start the command: {exc}", context=" ".join(argv), hint="check its path") from exc
        return _Launched(process)

    def run_on(self, partition: str, argv: Sequence[str], *, nodes: int) -> int:
        """See `interfaces.Scheduler`."""
        inner = ["srun", "--overlap", "--nodes=1", "--ntasks=1", "--mem=0", *argv]
        command = ["salloc", "--quiet", f"--partition={partition}", f"--nodes={nodes}", "--ntasks-per-node=1", *inner]
        try:
            return subprocess.run(command, stdin=subprocess.DEVNULL).returncode
        except FileNotFoundError as exc:
            raise SchedulerError("there is no salloc here", hint="run it where jobs are submitted") from exc

    def host_list(self, nodes: Sequence[str]) -> str:
        """See `interfaces.Scheduler`."""
        return text.fold(list(nodes))

    def can_requeue(self, job: Job) -> Ability:
        """See `interfaces.Scheduler`."""
        if shutil.which("scontrol") is None:
            return Ability(False, "there is no scontrol here", "run ckptctl outside the container, or bind Slurm's commands in")
        if not job.is_batch:
            return Ability(False, "only batch jobs can be requeued", "submit it with sbatch instead of salloc or srun")
        if not job.requeueable:
            return Ability(False, "the job was submitted without requeue", "add #SBATCH --requeue")
        return Ability(True, f"job {job.id} is a batch job with Requeue=1")

    def requeue(self, job: Job, *, hold: bool = False) -> None:
        """See `interfaces.Scheduler`. A job that was cancelled or has ended is never brought back."""
        now = self.job(job.id)
        if now is None or now.restart > job.restart or now.state is JobState.PENDING:
            return
        if now.state is not JobState.RUNNING:
            raise SchedulerError(
                f"job {job.id} is {now.state.value} and is not requeued", hint="submit it again if you want it"
            )
        done = self._scontrol("requeuehold" if hold else "requeue", job.id, check=False)
        if done.returncode and "pending" not in done.stderr.lower():
            raise _refused(done)

    def exclude(self, job: Job, nodes: Sequence[str]) -> tuple[str, ...]:
        """See `interfaces.Scheduler`. Retries while slurmctld still takes the job for running."""
        end = time.monotonic() + 10
        while True:
            now = self.job(job.id)
            if now is None:
                raise SchedulerError(f"job {job.id} is unknown", hint="its nodes could not be excluded")
            merged = tuple(dict.fromkeys((*now.excluded, *nodes)))
            done = self._scontrol("update", f"JobId={job.id}", f"ExcNodeList={text.fold(list(merged))}", check=False)
            if not done.returncode:
                after = self.job(job.id)
                if after is not None and set(nodes) <= set(after.excluded):
                    return after.excluded
            if time.monotonic() > end:
                raise _refused(done)
            time.sleep(0.05)

    def set_comment(self, job: Job, key: str, value: str) -> None:
        """See `interfaces.Scheduler`. Words are separated by blanks; a value is percent-encoded where it must be."""
        now = self.job(job.id)
        words = [word for word in (now.comment if now else job.comment).split() if not word.startswith(f"{key}=")]
        room = _COMMENT_BYTES - sum(len(word.encode()) + 1 for word in words) - 1
        word = comment_word(key, value)[: max(0, room)]
        self._scontrol("update", f"JobId={job.id}", "Comment=" + " ".join([*words, word]))

    def _scontrol(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = ["scontrol", *arguments]
        end = time.monotonic() + _COMMAND_S
        while True:
            try:
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    env={**os.environ, "LC_ALL": "C"},
                    timeout=max(1.0, end - time.monotonic()),
                    start_new_session=True,
                    preexec_fn=_ignore_signals,
                )
            except FileNotFoundError as exc:
                raise SchedulerError("there is no scontrol here", hint="bind Slurm's commands into the container") from exc
            except subprocess.TimeoutExpired as exc:
                raise SchedulerError(
                    f"scontrol did not answer within {_COMMAND_S:.0f} s", context=" ".join(command), hint="is slurmctld up?"
                ) from exc
            away = done.returncode != 0 and any(word in done.stderr.lower() for word in _AWAY)
            if away and time.monotonic() < end - 1:
                time.sleep(0.5)
                continue
            if done.returncode and check:
                raise _refused(done)
            return done


class _Launched:
    """`interfaces.Launch` of one process; signals go to it alone, `srun` passes them on to its tasks."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def poll(self) -> int | None:
        """See `interfaces.Launch`."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def signal(self, number: int) -> None:
        """See `interfaces.Launch`."""
        if self._process.poll() is None:
            self._process.send_signal(number)

    def end(self, grace_s: float) -> None:
        """See `interfaces.Launch`."""
        self.signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            _kill_group(self._process.pid)
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                return  # it hangs in the kernel; Slurm's own kill takes it from here


def _ignore_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _end_group(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """End an srun of ours: asked first, so that it ends its tasks on the nodes; then killed."""
    process.terminate()
    try:
        return process.communicate(timeout=2)
    except subprocess.TimeoutExpired:
        _kill_group(process.pid)
    try:
        return process.communicate(timeout=2)
    except subprocess.TimeoutExpired:
        return b"", b""


def _raw_id(job: Job) -> str:
    return os.environ.get("SLURM_JOB_ID") or job.id


def _no_answer(node: str, problem: str) -> TaskAnswer:
    return TaskAnswer(node, None, "", problem)


def _refused(done: subprocess.CompletedProcess[str]) -> SchedulerError:
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return SchedulerError(
        f"Slurm said no: {said[-1] if said else f'exit code {done.returncode}'}",
        context=" ".join(map(str, done.args)),
        hint="see slurmctld's log; `scontrol show job` says what the job may do",
    )
