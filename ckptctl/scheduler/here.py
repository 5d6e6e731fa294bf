"""What this process's environment says about its job, without asking a scheduler: fast enough for every `check`."""

from __future__ import annotations

from collections.abc import Mapping


def job_ids(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the job that this process runs in, as its folders may bear them; none outside a job.

    An array task has three: the array's id, `ARRAY_TASK`, and a job id of its own (`SLURM_JOB_ID`), by which Slurm's prolog and
    job_container plugin name folders.
    """
    own, array, task = (environment.get(f"SLURM_{name}", "") for name in ("JOB_ID", "ARRAY_JOB_ID", "ARRAY_TASK_ID"))
    names = (array, f"{array}_{task}", own) if array and task else (own,)
    return tuple(dict.fromkeys(name for name in names if name))


def temporary_dirs(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the folders that are removed with the job: `TMPDIR`, `SLURM_TMPDIR`, and what a burst buffer made for it.

    Rabbit and DataWarp name what lives as long as the job in `DW_JOB_*`, what outlives it in `DW_PERSISTENT_*`.
    """
    names = ["TMPDIR", "SLURM_TMPDIR", *sorted(name for name in environment if name.startswith("DW_JOB_"))]
    return tuple(dict.fromkeys(path for name in names if (path := environment.get(name))))
