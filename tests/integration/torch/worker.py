"""One rank of a small FSDP2 training, started by `test_worlds.py`: `worker.py WHAT ROOT OUT`.

WHAT: `train` (steps 1 to 4, saved, then one more step), `resume` (load, and one step), `fail` (rank 2 cannot write step 6),
`dcp` (the writer and reader pair), `differ` (ranks save different steps). The leader writes what it saw to OUT as a torch file.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import ckptctl_torch.checkpointer as module
import torch
import torch.distributed as dist
from ckptctl_torch import Checkpointer, CheckpointReader, CheckpointWriter
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from ckptctl.errors import CkptctlError, OutOfSpace
from ckptctl.model.job import Node
from ckptctl.scheduler.slurm import SlurmScheduler

what, root, out = sys.argv[1:]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class TwoRanksANode(SlurmScheduler):
    """Outside any job, with two ranks on each node."""

    def this_node(self) -> Node:
        return Node(f"n{rank // 2}", "boot")


module.joining.scheduler_here = lambda name="auto": TwoRanksANode()  # type: ignore[attr-defined]
torch.set_num_threads(1)
dist.init_process_group("gloo", rank=rank, world_size=world)
mesh = init_device_mesh("cpu", (world,))
torch.manual_seed(7)
model = nn.Sequential(nn.Linear(64, 130), nn.GELU(), nn.Linear(130, 9))  # 9 rows: uneven on 2, 3 and 4 ranks
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


def whole() -> dict[str, Any]:
    """Return everything, unsharded."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return {
        "model": get_model_state_dict(model, options=options),
        "optim": get_optimizer_state_dict(model, optimizer, options=options),
    }


def tell(value: object) -> None:
    """Write what this rank saw."""
    torch.save(value, f"{out}.{rank}")


with Checkpointer(root=root) as ckpt:
    state = {"model": model, "optim": optimizer}
    if what in ("train", "fail", "differ"):
        step = ckpt.load(state)
        for number in range(step + 1, step + 5):
            train(number)
        ckpt.save(step + 4, state)
        seen: dict[str, Any] = {"saved": whole(), "step": step + 4}
        if what == "fail":
            if rank == 2:

                def refuse(*_: object) -> None:
                    raise OutOfSpace("cannot write the shard: No space left on device", context="__2_0.distcp")

                ckpt.session.engine.write = refuse  # type: ignore[method-assign]
            try:
                ckpt.save(6, state)
            except CkptctlError as exc:
                seen["error"] = f"{type(exc).__name__}: {exc.message}"
        elif what == "differ":
            try:
                ckpt.save(6 + rank, state)
            except CkptctlError as exc:
                seen["error"] = f"{type(exc).__name__}: {exc.message}"
        tell(seen)
    elif what == "resume":
        step = ckpt.load(state)
        tell({"loaded": whole(), "step": step})
    elif what == "dcp":
        import torch.distributed.checkpoint as dcp

        train(1)
        dcp.save({"model": get_model_state_dict(model)}, storage_writer=CheckpointWriter(ckpt, 1))
        tell({"saved": whole()})
    elif what == "dcp-load":
        import torch.distributed.checkpoint as dcp

        target = {"model": get_model_state_dict(model)}
        dcp.load(target, storage_reader=CheckpointReader(ckpt))
        tell({"loaded": whole()})
dist.destroy_process_group()
