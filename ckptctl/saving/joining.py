"""How a training process learns its incarnation: from `ckptctl run`, from the root, or by starting one itself."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping

from ckptctl import __version__, registry
from ckptctl.errors import SettingsInvalid
from ckptctl.interfaces import Scheduler
from ckptctl.model.job import Job, JobState, Node
from ckptctl.model.manifest import Generation
from ckptctl.saving.session import Incarnation
from ckptctl.storage import start
from ckptctl.storage.repository import Repository


def told(environment: Mapping[str, str], root: str | None, scheduler: Scheduler) -> Incarnation | None:
    """Return what `ckptctl run` told this process, None when it was told nothing.

    Where the environment was not passed on, the newest generation under `root` counts if it is this job's and restart's own.
    Raises `SettingsInvalid` for half a set, another job's variables, or a root that contradicts them.
    """
    job = scheduler.current_job()
    found = Incarnation.from_environment(environment)
    if found is not None:
        if job is not None and found.job != f"{job.id}.{job.restart}":
            raise SettingsInvalid(
                f"the CKPTCTL_* variables are of job {found.job}, and this is job {job.id}.{job.restart}",
                hint="don't export them from one job into another; let `ckptctl run` set them",
            )
        if root is not None and os.path.abspath(root) != found.root:
            raise SettingsInvalid(
                "Checkpointer(root=…) and `ckptctl run --root` name different checkpoint roots",
                context=f"{os.path.abspath(root)} and {found.root}",
                hint="give the root once, to `ckptctl run`",
            )
        return found
    if root is None:
        raise SettingsInvalid(
            "no checkpoint root: not started by `ckptctl run`, and Checkpointer got no root",
            hint="start the training with `ckptctl run --root … --`, or pass Checkpointer(root=…)",
        )
    return _of_this_job(Repository(root), job) if job is not None else None


def _of_this_job(repository: Repository, job: Job) -> Incarnation | None:
    if not repository.exists or not repository.newest_generation():
        return None
    record = repository.generation(repository.newest_generation())
    point = repository.resume_point()
    if (record.job, record.restart) != (job.id, job.restart) or point is None or point.generation != record.generation:
        return None
    path = os.path.join(repository.root, point.folder) if point.folder else ""
    return Incarnation.of(start.Started(record, point, path, None), repository.root)


def begin_alone(root: str, scheduler: Scheduler, node: Node) -> Incarnation:
    """Start an incarnation without `ckptctl run` (the leader calls it, then tells the others), by the same code.

    Raises what a start raises. Nothing is checked across nodes here: that is what `ckptctl run` is for.
    """
    repository = Repository(root)
    repository.create()
    job = scheduler.current_job()
    record = start.new_record(
        repository,
        scheduler=scheduler.name if job else "none",
        job=job.id if job else f"{os.uname().nodename}-{os.getpid()}",
        restart=job.restart if job else 0,
        user=getpass.getuser(),
        nodes=job.nodes if job else (node.name,),
        boot_ids={node.name: node.boot_id},
    )

    def alive(holder: Generation) -> bool | None:
        if job is not None and holder.scheduler == scheduler.name:
            if holder.job == job.id:
                return False
            found = scheduler.job(holder.job)
            return None if found is None or found.state is JobState.UNKNOWN else found.state.alive
        if holder.scheduler == "none" and holder.host == os.uname().nodename:
            return holder.pid != os.getpid() and os.path.exists(f"/proc/{holder.pid}")
        return None

    started = start.begin(repository, record, alive, start.StartOptions(tool=f"ckptctl {__version__}"))
    return Incarnation.of(started, repository.root)


def scheduler_here(name: str = "auto") -> Scheduler:
    """Return the scheduler of this process."""
    return registry.scheduler(name)
