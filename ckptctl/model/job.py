"""Jobs, nodes and why an incarnation ended, as any scheduler sees them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from urllib.parse import quote, unquote


class JobState(str, Enum):
    """A job's state, reduced to what decisions need."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETING = "COMPLETING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    UNKNOWN = "UNKNOWN"

    @property
    def alive(self) -> bool:
        """Whether processes of the job may still run."""
        return self in (JobState.RUNNING, JobState.COMPLETING)


class NodeState(str, Enum):
    """A node's state: SUSPECT is a node that the controller does not hear from but has not given up."""

    UP = "UP"
    SUSPECT = "SUSPECT"
    DOWN = "DOWN"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True)
class Node:
    """One node as a process on it sees it: the scheduler's name and the boot it is in."""

    name: str
    boot_id: str


@dataclass(frozen=True)
class Job:
    """One job as the scheduler knows it now.

    `id` is what the scheduler's commands take (for an array task `123_4`); `restart` counts the requeues so far;
    `nodes` is empty while the job waits.
    """

    id: str
    restart: int
    user: str
    state: JobState
    nodes: tuple[str, ...] = ()
    batch_host: str = ""
    is_batch: bool = True
    requeueable: bool = True
    excluded: tuple[str, ...] = ()
    comment: str = ""
    reason: str = ""
    name: str = ""


@dataclass(frozen=True)
class Ability:
    """Whether something can be done; if not, why, and what to add so that it can."""

    ok: bool
    reason: str
    remedy: str = ""


@dataclass(frozen=True)
class TaskAnswer:
    """What one task of a probe answered: its output and exit code, or why there is none."""

    node: str
    exit_code: int | None
    output: str
    problem: str = ""


class Cause(str, Enum):
    """Why an incarnation ended."""

    FINISHED = "finished"
    STOPPED = "stopped"  # the ranks agreed to stop at a boundary: signal, time limit, preemption notice
    APPLICATION = "application"
    NODE = "node"
    STORAGE = "storage"
    FENCED = "fenced"
    NEVER_RESTART = "never-restart"
    CANCELLED = "cancelled"
    TAKEN = "taken"  # the scheduler itself took the job away
    REFUSED = "refused"  # a check said no before training
    UNKNOWN = "unknown"


class Action(str, Enum):
    """What to do with a job whose incarnation ended."""

    REQUEUE = "requeue"
    HOLD = "hold"
    STOP = "stop"
    HANDS_OFF = "hands-off"


@dataclass(frozen=True)
class Decision:
    """A decision with its reason in one line, and the nodes to keep out of the next allocation."""

    action: Action
    cause: Cause
    reason: str
    exclude: tuple[str, ...] = ()


def comment_word(key: str, value: str) -> str:
    """Return `key=value` as one word of a job's comment: what could break the word apart is percent-encoded."""
    return f"{key}={quote(value, safe='/:;,()[]+@.-_')}"


def comment_value(comment: str, key: str) -> str:
    """Return the value of a key in a job's comment as it was before `comment_word`, empty when it is not there."""
    found = (word.partition("=")[2] for word in comment.split() if word.startswith(f"{key}="))
    return unquote(next(found, ""))
