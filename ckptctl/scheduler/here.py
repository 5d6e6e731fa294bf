"""What this process's environment says about its job, without asking a scheduler: fast enough for every `check`."""

from __future__ import annotations

from collections.abc import Mapping


def job_id(environment: Mapping[str, str]) -> str | None:
    """Return the id of the job that this process runs in, as its folders are often named; None outside a job.

    An array task's own folders are named by `ARRAY_TASK`, which holds both ids.
    """
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    if array and task:
        return f"{array}_{task}"
    return environment.get("SLURM_JOB_ID") or None


def temporary_dirs(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the folders that are removed with the job: `TMPDIR`, `SLURM_TMPDIR`, and what a burst buffer made for it.

    Rabbit and DataWarp name what lives as long as the job in `DW_JOB_*`, what outlives it in `DW_PERSISTENT_*`.
    """
    names = ["TMPDIR", "SLURM_TMPDIR", *sorted(name for name in environment if name.startswith("DW_JOB_"))]
    return tuple(dict.fromkeys(path for name in names if (path := environment.get(name))))
