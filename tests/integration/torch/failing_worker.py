"""One rank of a world of nodes with one rank each, started by `test_world_failures.py`: `failing_worker.py WHAT ROOT OUT`.

WHAT: `lose` (the DCP writer; failing ranks in both ways to save; a save; then the last rank dies in its write) or `resume`.
"""

from __future__ import annotations

import copy
import os
import random
import sys
import time
from typing import Any

import ckptctl_torch.checkpointer as module
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ckptctl_torch import Checkpointer, CheckpointWriter
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from ckptctl.errors import OutOfSpace
from ckptctl.model.job import Node
from ckptctl.scheduler.slurm import SlurmScheduler

what, root, out = sys.argv[1:]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Placed(SlurmScheduler):
    """Outside any job, each rank on a node of its own."""

    def this_node(self) -> Node:
        return Node(f"n{rank}", "boot")


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
state = {"model": model, "optim": optimizer}
if what == "lose":
    with Checkpointer(root=root) as ckpt:
        engine = ckpt.session.engine
        write = engine.write
        random.seed(100 + rank)
        torch.manual_seed(100 + rank)
        train(1)
        dcp.save(both(), storage_writer=CheckpointWriter(ckpt, 1))
        seen["first"] = whole()
        for failing in range(world):
            if rank == failing:
                engine.write = refuse  # type: ignore[method-assign, assignment]
            seen[f"save {failing}"] = error_of(lambda: ckpt.save(2 + failing, state))  # noqa: B023
            seen[f"dcp {failing}"] = error_of(lambda: dcp.save(both(), storage_writer=CheckpointWriter(ckpt, 6 + failing)))  # noqa: B023
            engine.write = write  # type: ignore[method-assign]
        dist.barrier()
        seen["folders"] = sorted(name for name in os.listdir(root) if name.startswith("step-"))
        dist.barrier()
        train(2)
        ckpt.save(10, {**state, f"mine/{rank}": rank * 11, "shared": "same"})
        seen["second"] = whole()
        seen["draws"] = draws()
        if rank == world - 1:
            torch.save(seen, f"{out}.{rank}")
            engine.write = lambda *_: os._exit(9)  # type: ignore[method-assign, assignment]
        begun = time.monotonic()
        seen["lost"] = error_of(lambda: ckpt.save(11, {**state, f"mine/{rank}": 0, "shared": "lost"}))
        seen["lost after"] = time.monotonic() - begun
        torch.save(seen, f"{out}.{rank}")
        os._exit(0)  # the group is broken: leaving it in order would wait for the dead
with Checkpointer(root=root) as ckpt:
    mine: dict[str, Any] = {**state, f"mine/{rank}": -1, "shared": ""}
    seen["error"] = error_of(lambda: ckpt.load(mine))
    seen["mine"] = mine[f"mine/{rank}"]
with Checkpointer(root=root, allow_unloaded=["mine/*"]) as ckpt:
    mine = {**state, f"mine/{rank}": -1, "shared": ""}
    seen["step"] = ckpt.load(mine)
    seen["allowed"] = (mine[f"mine/{rank}"], mine["shared"])
    seen["draws"] = draws()
    seen["loaded"] = whole()
torch.save(seen, f"{out}.{rank}")
dist.destroy_process_group()
