"""Two incarnations that save with the real `Checkpointer`, for `test_traced.py`: ROOT OUT, the announced operations as JSON."""

from __future__ import annotations

import json
import sys

import torch
from ckptctl_torch import Checkpointer

from ckptctl.storage import files

root, out = sys.argv[1:]
seen: list[tuple[str, str]] = []
files.observe(lambda operation, path: seen.append((operation, path)))
model = torch.nn.Linear(600, 600)
optimizer = torch.optim.AdamW(model.parameters())
for steps in (range(1, 5), range(5, 7)):
    with Checkpointer(root=root, scheduler="slurm", keep_every=0) as ckpt:
        state = {"model": model, "optim": optimizer}
        resumed = ckpt.load(state)
        if resumed != steps[0] - 1:
            raise SystemExit(f"resumed at {resumed}, not at {steps[0] - 1}")
        for step in steps:
            model(torch.ones(600)).sum().backward()
            optimizer.step()
            ckpt.save(step, state)
files.observe(None)
with open(out, "w") as file:
    json.dump(seen, file)
