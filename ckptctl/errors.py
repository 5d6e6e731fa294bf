"""The whole exception tree, with the exit code of each family.

```
CkptctlError
├── UsageError               2   the command line or a call does not make sense
├── PlacementRefused        10   the path's class is not allowed
├── NotShared               11   some nodes see something else
├── ProofInconclusive       12   one node only, or root squash
├── OutOfSpace              13   space, inodes or quota will not do
├── StorageFault            14   mount missing, hung, read-only, or a recorded step is not to be found
├── NoCheckpoint            20   no complete checkpoint where one is required
├── DamagedCheckpoint       21   a committed checkpoint is damaged
│   └── ManifestTooNew      21   written by a newer ckptctl
├── SaveFailed              22   the save did not become a checkpoint
│   └── Fenced              22   a newer generation has taken over
├── StepTaken               23   another writer holds this step
├── RootInUse               24   the checkpoint root is in use by another live job
├── RequeueRefused          30   budget spent or no progress; the job is held
├── EngineUnavailable       40   an engine or its hardware route was asked for and is not there
├── SchedulerError          50   Slurm said no, or the controller is unreachable
├── SettingsInvalid         60   a setting or a `CKPTCTL_*` variable is wrong
│   └── KeyMismatch         60   state asked for and state held differ
├── PluginBroken            61   a plugin is missing or broken
└── DeadlineExceeded       124   our own deadline ran out
```

A family (a direct child of `CkptctlError`) owns its exit code; a subclass keeps its family's code and has a reference of
its own. Codes and references are never reused.
"""

from __future__ import annotations

from typing import ClassVar

EXIT_REQUEUE_ME = 75
"""Exit code for sites that set `RequeueExit=75`: run could not requeue the job itself."""
EXIT_NEVER_RESTART = 93
"""Exit code of an application that must never be restarted (the NVRx convention); passed through."""


class CkptctlError(Exception):
    """Anything ckptctl refuses or fails to do: what, where, what to do.

    `message` says what happened in one line, `context` where (paths, nodes, values), `hint` what to do about it.
    """

    exit_code: ClassVar[int] = 1
    reference: ClassVar[str] = "bug"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, context: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.context = context
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.context, self.hint))

    def render(self) -> str:
        """Return the message as up to three lines: what, where, what to do."""
        lines = [self.message]
        if self.context:
            lines.append(f"  where: {self.context}")
        if self.hint:
            lines.append(f"  to do: {self.hint}")
        return "\n".join(lines)


def _rebuild(cls: type[CkptctlError], message: str, context: str, hint: str) -> CkptctlError:
    return cls(message, context=context, hint=hint)


class UsageError(CkptctlError):
    """The command line, or a call of the library, does not make sense."""

    exit_code = 2
    reference = "usage"


class PlacementRefused(CkptctlError):
    """The class of the path is not allowed for this kind of artifact."""

    exit_code = 10
    reference = "placement-refused"


class NotShared(CkptctlError):
    """Some nodes see something else than the others under the same path."""

    exit_code = 11
    reference = "not-shared"


class ProofInconclusive(CkptctlError):
    """The proof across nodes could neither succeed nor fail."""

    exit_code = 12
    reference = "proof-inconclusive"
    retryable = True


class OutOfSpace(CkptctlError):
    """Space, inodes or quota will not do."""

    exit_code = 13
    reference = "out-of-space"


class StorageFault(CkptctlError):
    """The storage does not answer as it should on this node."""

    exit_code = 14
    reference = "storage-fault"
    retryable = True


class NoCheckpoint(CkptctlError):
    """There is no complete checkpoint where one is required."""

    exit_code = 20
    reference = "no-checkpoint"


class DamagedCheckpoint(CkptctlError):
    """A committed checkpoint is not what its manifest says."""

    exit_code = 21
    reference = "damaged-checkpoint"


class ManifestTooNew(DamagedCheckpoint):
    """A file of the repository has a format that this version does not know."""

    reference = "manifest-too-new"


class SaveFailed(CkptctlError):
    """A save did not become a checkpoint: a rank failed, is missing, or storage refused."""

    exit_code = 22
    reference = "save-failed"


class Fenced(SaveFailed):
    """A newer generation has taken over the lineage; this process must stop."""

    reference = "fenced"


class StepTaken(CkptctlError):
    """Another writer of the same generation holds this step."""

    exit_code = 23
    reference = "step-taken"


class RootInUse(CkptctlError):
    """The checkpoint root is in use by another live job."""

    exit_code = 24
    reference = "root-in-use"


class RequeueRefused(CkptctlError):
    """The job is not requeued any more: its budget is spent or it makes no progress."""

    exit_code = 30
    reference = "requeue-refused"


class EngineUnavailable(CkptctlError):
    """An engine, or the hardware route it was asked to take, is not available."""

    exit_code = 40
    reference = "engine-unavailable"


class SchedulerError(CkptctlError):
    """The scheduler said no, or its controller is unreachable."""

    exit_code = 50
    reference = "scheduler"
    retryable = True


class SettingsInvalid(CkptctlError):
    """A setting, or a `CKPTCTL_*` variable, is wrong or half set."""

    exit_code = 60
    reference = "settings-invalid"


class KeyMismatch(SettingsInvalid):
    """A key was asked for and is not in the checkpoint, or is there and nobody loads it."""

    reference = "key-mismatch"


class PluginBroken(CkptctlError):
    """A plugin that was asked for is missing or does not load."""

    exit_code = 61
    reference = "plugin-broken"


class DeadlineExceeded(CkptctlError):
    """A deadline of our own ran out."""

    exit_code = 124
    reference = "deadline"
    retryable = True
