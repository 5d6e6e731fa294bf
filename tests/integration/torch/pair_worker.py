"""One rank of a small world, started by `test_world_failures.py`: `pair_worker.py WHAT ROOT OUT`.

WHAT: `pair` (the DCP pair with an optimizer, then failing ranks in both ways to save, then one more save), `pair-load` (load
by the reader), `alone` (each rank is a node; each saves its own random numbers; a lost rank), `alone-load`.
"""

from __future__ import annotations

import copy
import os
import random
import sys
from typing import Any

import ckptctl_torch.checkpointer as module
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ckptctl_torch import Checkpointer, CheckpointReader, CheckpointWriter
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from ckptctl.errors import OutOfSpace
from ckptctl.model.job import Node
from ckptctl.scheduler.slurm import SlurmScheduler

what, root, out = sys.argv[1:]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ranks_a_node = 1 if what.startswith("alone") else 2


class Placed(SlurmScheduler):
    """Outside any job, with one or two ranks on each node."""

    def this_node(self) -> Node:
        return Node(f"n{rank // ranks_a_node}", "boot")


module.joining.scheduler_here = lambda name="auto": Placed()  # type: ignore[attr-defined]
torch.set_num_threads(1)
dist.init_process_group("gloo", rank=rank, world_size=world)
mesh = init_device_mesh("cpu", (world,))
torch.manual_seed(7)
model = nn.Sequential(nn.Linear(64, 130), nn.GELU(), nn.Linear(130, 9))
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(step: int) -> None:
    """Train one step on data that does not depend on the world."""
    generator = torch.Generator().manual_seed(step)
    model(torch.randn(12, 64, generator=generator)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def both() -> dict[str, Any]:
    """Return the sharded state, as a user of DCP gets it."""
    return {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer)}


def whole() -> dict[str, Any]:
    """Return a copy of everything, unsharded; what DCP gathers still shares `step` with the optimizer."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return {
        "model": copy.deepcopy(get_model_state_dict(model, options=options)),
        "optim": copy.deepcopy(get_optimizer_state_dict(model, optimizer, options=options)),
    }


def draws() -> list[float]:
    """Draw from the generators of this rank."""
    return [random.random(), torch.rand(1).item()]


def error_of(action: Any) -> str:
    """Return what an action raises, in words."""
    try:
        action()
    except BaseException as exc:
        return f"{type(exc).__name__}: {exc}"
    return ""


def refuse(*_: object) -> None:
    """Stand in for the engine of a rank whose disk is full."""
    raise OutOfSpace("cannot write the shard", context=f"__{rank}_0.distcp")


seen: dict[str, Any] = {}
with Checkpointer(root=root) as ckpt:
    state = {"model": model, "optim": optimizer}
    write = ckpt.session.engine.write
    if what == "pair":
        train(1)
        dcp.save(both(), storage_writer=CheckpointWriter(ckpt, 1))
        seen["saved"] = whole()
        for failing in (0, 1):
            if rank == failing:
                ckpt.session.engine.write = refuse  # type: ignore[method-assign, assignment]
            seen[f"save {failing}"] = error_of(lambda: ckpt.save(2 + failing, state))  # noqa: B023
            seen[f"dcp {failing}"] = error_of(lambda: dcp.save(both(), storage_writer=CheckpointWriter(ckpt, 4 + failing)))  # noqa: B023
            ckpt.session.engine.write = write  # type: ignore[method-assign]
        dist.barrier()
        seen["folders"] = sorted(name for name in os.listdir(root) if name.startswith("step-"))
        dist.barrier()
        train(2)
        ckpt.save(9, state)
        seen["last"] = whole()
    elif what == "pair-load":
        train(5)
        target = both()
        dcp.load(target, storage_reader=CheckpointReader(ckpt))
        set_optimizer_state_dict(model, optimizer, target["optim"])
        seen["loaded"] = whole()
    elif what == "alone":
        random.seed(100 + rank)
        torch.manual_seed(100 + rank)
        train(1)
        ckpt.save(1, {**state, f"mine/{rank}": rank * 11, "shared": "same"})
        seen["expected"] = draws()
        if rank == world - 1:
            torch.save(seen, f"{out}.{rank}")
            ckpt.session.engine.write = lambda *_: os._exit(9)  # type: ignore[method-assign, assignment]
        seen["error"] = error_of(lambda: ckpt.save(2, {**state, f"mine/{rank}": 0, "shared": "lost"}))
        torch.save(seen, f"{out}.{rank}")
        os._exit(0)
    elif what == "alone-load":
        mine: dict[str, Any] = {**state, f"mine/{rank}": -1, "shared": ""}
        seen["error"] = error_of(lambda: ckpt.load(mine))
        seen["mine"] = mine[f"mine/{rank}"]
if what == "alone-load":
    with Checkpointer(root=root, allow_unloaded=["mine/*"]) as ckpt:
        mine = {**state, f"mine/{rank}": -1, "shared": ""}
        seen["step"] = ckpt.load(mine)
        seen["allowed"] = (mine[f"mine/{rank}"], mine["shared"])
        seen["draws"] = draws()
torch.save(seen, f"{out}.{rank}")
dist.destroy_process_group()
