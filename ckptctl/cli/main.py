"""The `ckptctl` command. Each command parses, calls one action, prints, and returns an exit code."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from enum import Enum
from typing import Annotated, NoReturn

import typer

from ckptctl import __version__
from ckptctl.cli import output
from ckptctl.policy.site import Artifact

app = typer.Typer(
    help="Checkpoints that survive their nodes: checks the storage, saves durably, requeues and resumes Slurm training jobs.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Accept = Annotated[
    str | None, typer.Option("--accept-class", help="Placement classes to accept beyond the rules, comma-separated.")
]
On = Annotated[str | None, typer.Option("--on", help="Ask on compute nodes of this Slurm partition, in a job of its own.")]
SchedulerName = Annotated[str, typer.Option("--scheduler", help="slurm, local, or auto.")]


class Framework(str, Enum):
    """Whose training checkpoints are sized."""

    FSDP = "fsdp"
    DEEPSPEED = "deepspeed"
    MEGATRON = "megatron"


def _version(value: bool) -> None:
    if value:
        typer.echo(f"ckptctl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


@app.command()
def check(
    path: Annotated[str, typer.Argument(help="The path to judge; it need not exist yet.")],
    as_json: Json = False,
    probe: Annotated[bool, typer.Option("--probe", help="Also try there what a save needs, and remove it again.")] = False,
    single_machine: Annotated[
        bool, typer.Option("--single-machine", help="Declare that all ranks run on this machine (scheduler local).")
    ] = False,
    accept_class: Accept = None,
    kind: Annotated[
        Artifact, typer.Option("--kind", help="What is to be kept there; a cache may be lost with its node.")
    ] = Artifact.CHECKPOINT,
    local_tier: Annotated[
        list[str] | None, typer.Option("--local-tier", help="A local folder that holds copies on the way to PATH.")
    ] = None,
    flush_to: Annotated[str | None, typer.Option("--flush-to", help="Where PATH, a local stage, is flushed to.")] = None,
    size: Annotated[str | None, typer.Option("--size", help="Size of one checkpoint (2.3TB), to see whether they fit.")] = None,
    params: Annotated[str | None, typer.Option("--params", help="Or the number of parameters (70B).")] = None,
    framework: Annotated[Framework, typer.Option("--framework", help="Of the parameters' training.")] = Framework.FSDP,
    ranks: Annotated[int | None, typer.Option("--ranks", min=1, help="Ranks that write it, one file each.")] = None,
    on: On = None,
) -> None:
    """Say whether a checkpoint may live at PATH, and why. Exit 0, 10 (refused), 13 (space) or 14 (storage fault)."""
    from ckptctl.cli import reports

    if on:
        _exit(lambda: reports.elsewhere(on), as_json)
    asked = reports.Asked(
        path, kind, tuple(local_tier or ()), flush_to, probe, single_machine, accept_class, size, params, framework.value, ranks
    )
    _exit(lambda: reports.check(asked, as_json), as_json)


@app.command()
def prove(
    path: Annotated[str, typer.Argument(help="The folder that all nodes of this job should share; it need not exist yet.")],
    as_json: Json = False,
    scheduler: SchedulerName = "auto",
    on: On = None,
    nodes: Annotated[int, typer.Option("--nodes", min=2, help="Nodes to ask, with --on.")] = 2,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Prove it again, though this job has proved it within the hour.")
    ] = False,
) -> None:
    """Prove that all nodes of this job share PATH, or name those that don't. Exit 0, 11 (not shared) or 12 (inconclusive)."""
    from ckptctl.cli import proving

    if on:
        _exit(lambda: proving.elsewhere(on, nodes), as_json)
    _exit(lambda: proving.prove(path, scheduler, as_json, fresh), as_json)


@app.command("node-check")
def node_check(
    deadline: Annotated[float, typer.Option("--deadline", min=1.0, help="Seconds for all mounts together.")] = 10.0,
    as_json: Json = False,
) -> None:
    """Say whether this node has the mounts that the site promises. Exit 0 or 14; for HealthCheckProgram and NHC."""
    from ckptctl.cli import reports

    _exit(lambda: reports.node_check(deadline, as_json), as_json)


config = typer.Typer(help="Settings and site policy.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(config, name="config")


@config.command("show")
def config_show(
    origin: Annotated[bool, typer.Option("--origin", help="Also print where each value comes from.")] = False,
    as_json: Json = False,
) -> None:
    """Print every setting and the site policy, as they hold here for this user."""
    from ckptctl.cli import reports

    _exit(lambda: reports.config_show(origin, as_json), as_json)


@app.command("list")
def list_(
    root: Annotated[str, typer.Argument(help="A checkpoint root.")],
    as_json: Json = False,
    incarnations: Annotated[bool, typer.Option("--incarnations", help="List the incarnations instead.")] = False,
) -> None:
    """List the checkpoints of ROOT with step, world size, size, age and verdict."""
    from ckptctl.cli import reports

    _exit(lambda: reports.list_root(root, as_json, incarnations), as_json)


@app.command()
def verify(
    step_dir: Annotated[str, typer.Argument(help="One checkpoint folder.")],
    deep: Annotated[bool, typer.Option("--deep", help="Read every byte and compare its checksum.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Files read at the same time.")] = 4,
    as_json: Json = False,
) -> None:
    """Judge one checkpoint folder. Exit 0 (complete), 20 (incomplete, unknown) or 21 (corrupt, suspect)."""
    from ckptctl.cli import reports

    _exit(lambda: reports.verify(step_dir, deep, jobs, as_json), as_json)


@app.command()
def select(
    root: Annotated[str, typer.Argument(help="A checkpoint root.")],
    shell: Annotated[bool, typer.Option("--shell", help="Print shell assignments for eval.")] = False,
    as_json: Json = False,
) -> None:
    """Say which checkpoint a start would take, and why not the newer ones."""
    from ckptctl.cli import reports

    _exit(lambda: reports.select(root, shell, as_json), as_json)


@app.command(context_settings={"allow_extra_args": False, "ignore_unknown_options": False})
def run(
    command: Annotated[list[str], typer.Argument(help="The training command, after --.")],
    root: Annotated[str, typer.Option("--root", help="The checkpoint root; %A %a %j are expanded.")],
    scheduler: SchedulerName = "auto",
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Nodes (scheduler local only).")] = 1,
    tasks_per_node: Annotated[int, typer.Option("--tasks-per-node", min=1, help="Ranks per node (scheduler local only).")] = 1,
    take_over: Annotated[bool, typer.Option("--take-over", help="Fence another live job that holds the root.")] = False,
    allow_older: Annotated[bool, typer.Option("--allow-older", help="Resume though a newer recorded step is gone.")] = False,
    keep_last: Annotated[int | None, typer.Option(help="Complete checkpoints to keep (at least 2).")] = None,
    keep_every: Annotated[int | None, typer.Option(help="Also keep every n-th; 0 for none.")] = None,
    budget_application: Annotated[
        int | None, typer.Option(help="Application failures in a row without progress before the job is held.")
    ] = None,
    accept_class: Accept = None,
    as_json: Annotated[bool, typer.Option("--json", help="Log JSON lines on stderr.")] = False,
) -> None:
    """Run one incarnation of a training job: check, choose, launch; then requeue, hold or end the job."""
    from ckptctl.cli import running

    flags = {
        "keep_last": keep_last,
        "keep_every": keep_every,
        "budget_application": budget_application,
        "accept_class": accept_class,
    }
    shape = running.Shape(scheduler, nodes, tasks_per_node)
    _exit(lambda: running.run(root, tuple(command), shape, flags, take_over, allow_older, as_json), as_json)


@app.command()
def demo(
    root: Annotated[str, typer.Option("--root", help="A new folder for the demo's files.")] = ".demo",
    steps: Annotated[int, typer.Option("--steps", min=12, help="Training steps.")] = 40,
    accept_class: Accept = None,
    as_json: Json = False,
) -> None:
    """Train a small model on 4 ranks, lose a node in the middle of a save, and come back bit for bit. No Slurm, no GPU."""
    from ckptctl.cli import demonstration

    _exit(lambda: demonstration.demo(root, steps, accept_class, as_json), as_json)


def _exit(action: Callable[[], int], as_json: bool) -> None:
    if not gc.isenabled():  # since `main`: what was imported by now stays, and is never searched
        gc.freeze()
        gc.enable()
    raise typer.Exit(output.guarded(action, as_json=as_json))


def main() -> NoReturn:
    """Entry point of the `ckptctl` script.

    A `check` is over in a fraction of a second, of which searching fresh modules for garbage and taking them down
    one by one took a third: neither is done.
    """
    gc.disable()
    code: object = 0
    try:
        app()
    except SystemExit as exc:
        code = exc.code
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # nobody reads any more
        code = code or 1
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    main()
