"""Parsing of `scontrol -o show job|node`: one record a line, `Key=value` words, values that may hold blanks and `=`.

Works on the text of Slurm 22.05 to 26.05: only the keys below are looked for. An unknown one ends up in the value before it,
so of a value that can hold no blank only the first word is taken.
"""

from __future__ import annotations

import re

from ckptctl.model.job import Job, JobState, NodeState

_JOB_KEYS = [
    "JobId",
    "ArrayJobId",
    "ArrayTaskId",
    "HetJobId",
    "HetJobOffset",
    "JobName",
    "UserId",
    "GroupId",
    "MCS_label",
    "Priority",
    "Nice",
    "Account",
    "QOS",
    "WCKey",
    "JobState",
    "Reason",
    "Dependency",
    "Requeue",
    "Restarts",
    "BatchFlag",
    "Reboot",
    "ExitCode",
    "DerivedExitCode",
    "RunTime",
    "TimeLimit",
    "TimeMin",
    "SubmitTime",
    "EligibleTime",
    "AccrueTime",
    "StartTime",
    "EndTime",
    "Deadline",
    "SuspendTime",
    "SecsPreSuspend",
    "LastSchedEval",
    "Scheduler",
    "Partition",
    "AllocNode:Sid",
    "ReqNodeList",
    "ExcNodeList",
    "NodeList",
    "SchedNodeList",
    "BatchHost",
    "FailedNode",
    "NumNodes",
    "NumCPUs",
    "NumTasks",
    "CPUs/Task",
    "ReqB:S:C:T",
    "ReqTRES",
    "AllocTRES",
    "TRES",
    "Socks/Node",
    "NtasksPerN:B:S:C",
    "CoreSpec",
    "MinCPUsNode",
    "MinMemoryNode",
    "MinMemoryCPU",
    "MinTmpDiskNode",
    "Features",
    "DelayBoot",
    "OverSubscribe",
    "Contiguous",
    "Licenses",
    "Network",
    "Command",
    "WorkDir",
    "AdminComment",
    "SystemComment",
    "Comment",
    "StdErr",
    "StdIn",
    "StdOut",
    "Power",
    "MailUser",
    "MailType",
    "Extra",
    "TresPerNode",
    "Switches",
    "KillOInInvalidDependent",
    "SubmitLine",
]
_NODE_KEYS = (
    "NodeName Arch CoresPerSocket CPUAlloc CPUEfctv CPUTot AvailableFeatures NodeAddr NodeHostName State Reason".split()  # noqa: SIM905
)
_STATES = {
    "PENDING": JobState.PENDING,
    "CONFIGURING": JobState.PENDING,
    "REQUEUED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "SUSPENDED": JobState.RUNNING,
    "STOPPED": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "COMPLETING": JobState.COMPLETING,
    "STAGE_OUT": JobState.COMPLETING,
    "COMPLETED": JobState.COMPLETED,
    "FAILED": JobState.FAILED,
    "BOOT_FAIL": JobState.FAILED,
    "LAUNCH_FAILED": JobState.FAILED,
    "OUT_OF_MEMORY": JobState.FAILED,
    "DEADLINE": JobState.TIMEOUT,
    "CANCELLED": JobState.CANCELLED,
    "REVOKED": JobState.CANCELLED,
    "TIMEOUT": JobState.TIMEOUT,
    "NODE_FAIL": JobState.NODE_FAIL,
    "PREEMPTED": JobState.PREEMPTED,
}


def fields(line: str, keys: tuple[str, ...] | list[str]) -> dict[str, str]:
    """Return the values of `keys` in a record. A key counts where it first stands at the start of a word."""
    word = re.compile(r"(?:^|(?<=\s))(" + "|".join(map(re.escape, sorted(keys, key=len, reverse=True))) + ")=")
    found: dict[str, tuple[int, int]] = {}
    marks = []
    for match in word.finditer(line):
        if match[1] not in found:
            found[match[1]] = (match.start(), match.end())
            marks.append(match.start())
    marks.append(len(line))
    return {key: line[end : marks[marks.index(begin) + 1]].strip() for key, (begin, end) in found.items()}


def job_fields(text: str) -> list[dict[str, str]]:
    """Return the records of `scontrol -o show job`."""
    return [fields(line, _JOB_KEYS) for line in text.splitlines() if line.startswith("JobId=")]


def node_fields(text: str) -> list[dict[str, str]]:
    """Return the records of `scontrol -o show node`."""
    return [fields(line, _NODE_KEYS) for line in text.splitlines() if line.startswith("NodeName=")]


def job_state(word: str) -> JobState:
    """Return a job's state; what this release of Slurm invented since is UNKNOWN."""
    return _STATES.get(re.split(r"[\s+]", word.strip() or "?")[0], JobState.UNKNOWN)


def node_state(words: str) -> NodeState:
    """Return a node's state from `State=` (`MIXED+DRAIN`, `DOWN+NOT_RESPONDING`, `IDLE*`); draining alone is no fault."""
    parts = set(re.split(r"[+\s]", words.upper().replace("*", "+NOT_RESPONDING")))
    if parts & {"DOWN", "FAIL", "FAILING", "POWERED_DOWN", "POWERING_DOWN", "REBOOT_ISSUED"}:
        return NodeState.DOWN
    if "NOT_RESPONDING" in parts:
        return NodeState.SUSPECT
    return NodeState.UP if parts & {"IDLE", "ALLOCATED", "MIXED", "COMPLETING", "RESERVED"} else NodeState.UNKNOWN


def expand(hosts: str) -> tuple[str, ...]:
    """Return the hosts of a Slurm host list, in its order."""
    if hosts in ("", "(null)", "None"):
        return ()
    from ClusterShell.NodeSet import NodeSet

    return tuple(str(host) for host in NodeSet(hosts))


def fold(hosts: tuple[str, ...] | list[str]) -> str:
    """Return hosts as a Slurm host list."""
    from ClusterShell.NodeSet import NodeSet

    return str(NodeSet.fromlist(list(hosts)))


def job(record: dict[str, str]) -> Job:
    """Return one record as a job."""

    def word(key: str) -> str:
        first = (record.get(key, "").split() or [""])[0]
        return "" if "=" in first else first  # an empty value, and an unknown key behind it

    number = word("JobId")
    if word("ArrayJobId") and word("ArrayTaskId").isdigit():
        number = f"{word('ArrayJobId')}_{word('ArrayTaskId')}"
    elif word("HetJobId"):
        number = word("HetJobId")
    return Job(
        id=number,
        restart=int(word("Restarts") or 0),
        user=word("UserId").partition("(")[0],
        state=job_state(word("JobState")),
        nodes=expand(word("NodeList")),
        batch_host="" if word("BatchHost") == "(null)" else word("BatchHost"),
        is_batch=word("BatchFlag") not in ("", "0"),
        requeueable=word("Requeue") == "1",
        excluded=expand(word("ExcNodeList")),
        comment=record.get("Comment", ""),
        reason=record.get("Reason", ""),
        name=record.get("JobName", ""),
    )
