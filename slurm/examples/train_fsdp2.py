"""Train a small language-model-like network with FSDP2, and come back bit for bit after a lost node.

Everything that makes a run what it is comes back: parameters, AdamW's moments, the schedule, dropout's random numbers and
the position in the shuffled data. Run it by `train.sbatch` on Slurm, or:

    ckptctl run --scheduler local --tasks-per-node 4 --root ./run1 -- python train_fsdp2.py
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from ckptctl_torch import Checkpointer
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset, DistributedSampler

WIDTH, CLASSES, SAMPLES, BATCH = 64, 16, 512, 8


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """A fixed data set that fits nowhere but in its own formula."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return one sample: features of shape (WIDTH,), and its class."""
        generator = torch.Generator().manual_seed(index)
        return torch.randn(WIDTH, generator=generator), torch.tensor(index % CLASSES)


class Progress:
    """Where the run is in its data: the epoch, and the batches of it that are done."""

    def __init__(self) -> None:
        self.epoch, self.batch = 0, 0

    def state_dict(self) -> dict[str, int]:
        """Return the position."""
        return {"epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go to a saved position."""
        self.epoch, self.batch = state["epoch"], state["batch"]


def build(width: int) -> nn.Module:
    """Return the model: dropout in it, so that lost random numbers would be noticed."""
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(WIDTH if not layers else width, width), nn.GELU(), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


def batches(progress: Progress, sampler: DistributedSampler[object], workers: int) -> DataLoader[object]:
    """Return the loader of the rest of the current epoch.

    It has a generator of its own: starting a loader draws a seed, and a resumed run starts one more loader than an
    undisturbed one. Drawn from the global generator, that alone would change every later dropout mask.
    """
    sampler.set_epoch(progress.epoch)
    order = list(sampler)[progress.batch * BATCH :]
    seeds = torch.Generator().manual_seed(progress.epoch)
    return DataLoader(Samples(), batch_size=BATCH, sampler=order, num_workers=workers, generator=seeds)


def fingerprint(model: nn.Module) -> str:
    """Return one digest over all parameters, whole, on every rank."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        digest.update(name.encode() + whole.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def main() -> int:
    """Train to `--steps`, saving every `--save-every`; the leader writes `--result` at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save-every", type=int, default=5)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--workers", type=int, default=1, help="DataLoader processes per rank")
    parser.add_argument("--step-s", type=float, default=0.0, help="pretend that a step takes at least this long")
    parser.add_argument("--fail-at", type=int, default=0, help="raise on rank 1 at this step, every time (for tests)")
    parser.add_argument("--exit-at", default="", help="STEP:CODE, leave with this exit code (for tests)")
    parser.add_argument("--result", default="", help="write the final fingerprint as JSON to this file")
    parser.add_argument("--log", default="", help="append one JSON line per step to this file (leader)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))
    world = int(os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS", "1")))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(1234 + rank)

    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(7)
    model = build(args.width)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    torch.manual_seed(1234 + rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=args.steps + 1)
    sampler: DistributedSampler[object] = DistributedSampler(Samples(), num_replicas=world, rank=rank, shuffle=True, seed=5)
    progress = Progress()

    with Checkpointer() as ckpt:
        state = {"model": model, "optim": optimizer, "schedule": schedule, "progress": progress}
        step = ckpt.load(state)
        loader = iter(batches(progress, sampler, args.workers))
        while step < args.steps and not ckpt.should_stop():
            begun = time.monotonic()
            batch = next(loader, None)
            if batch is None:
                progress.epoch, progress.batch = progress.epoch + 1, 0
                loader = iter(batches(progress, sampler, args.workers))
                batch = next(loader)
            features, labels = batch
            loss = nn.functional.cross_entropy(model(features), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            step, progress.batch = step + 1, progress.batch + 1
            if args.fail_at and step == args.fail_at and rank == world - 1:
                raise RuntimeError(f"rank {rank} fails at step {step}, as asked")
            if args.exit_at and step == int(args.exit_at.partition(":")[0]):
                sys.exit(int(args.exit_at.partition(":")[2]))
            if args.log and rank == 0:
                with open(args.log, "a", encoding="utf-8") as log:
                    log.write(json.dumps({"step": step, "loss": loss.item(), "time": time.time()}) + "\n")
            time.sleep(max(0.0, args.step_s - (time.monotonic() - begun)))
            if step % args.save_every == 0 or step == args.steps:
                ckpt.save(step, state)
        if ckpt.stopping and step % args.save_every:
            ckpt.save(step, state)
    if step >= args.steps:
        found = fingerprint(model)
        if rank == 0:
            print(
                f"finished step {step}: parameters {found[:16]}, loss {loss.item() if step and 'loss' in locals() else 0:.4f}"
            )
            if args.result:
                with open(args.result, "w", encoding="utf-8") as file:
                    json.dump({"step": step, "fingerprint": found}, file)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
