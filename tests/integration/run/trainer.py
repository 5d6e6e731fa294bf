"""A training script with nothing in it but its saves: no torch, starts in a moment. `trainer.py STEPS [WHAT]`.

WHAT happens after step 4 was saved: `fail`, `never` (exit 93) or `signal` (stop at SIGUSR1), `wait` until a file `go` lies in
the working folder.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from ckptctl import settings
from ckptctl.model.manifest import SavePlan
from ckptctl.saving import joining
from ckptctl.saving.posix import PosixEngine, aligned_buffer
from ckptctl.saving.session import SaveSettings, Session

steps, what = int(sys.argv[1]), (sys.argv[2:] or [""])[0]
found = settings.load()
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
scheduler = joining.scheduler_here()
incarnation = joining.told(os.environ, None, scheduler)
job = scheduler.current_job()
assert incarnation is not None
assert job is not None
session = Session(
    incarnation,
    rank=rank,
    placement=[node for node in job.nodes for _ in range(world // len(job.nodes))],
    engine=PosixEngine(),
    settings=SaveSettings(deadline_s=20, keep_last=found.keep_last, keep_every=found.keep_every),
)
session.verify()
stop: list[int] = []
signal.signal(signal.SIGUSR1, lambda number, _: stop.append(number))
restarted = job.restart > 0


def wait(condition: object, deadline_s: float = 20) -> None:
    """Wait for something on disk."""
    end = time.monotonic() + deadline_s
    while not condition():  # type: ignore[operator]
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.005)


def save(step: int) -> None:
    """Save one step; every rank sees the checkpoint appear."""
    staging, plan = session.staging(step), SavePlan("", 0, 0, 0, 0, {})
    if session.leads:
        plan = session.stage(step, b"metadata")
    wait(lambda: session.repository.plan(staging) or os.path.exists(session.checkpoint(step)))
    image = memoryview(aligned_buffer(9000))[:9000]
    image[:] = bytes([step % 256]) * 9000
    session.leave_receipt(step, [session.write(step, f"__{rank}_0.distcp", image)])
    if session.leads:
        session.commit(plan)
    wait(lambda: os.path.exists(session.checkpoint(step)))


step = incarnation.step
while step < steps:
    step += 1
    if what == "fail" and step == 5:
        sys.exit(7)
    if what == "never" and step == 5:
        sys.exit(93)
    if what == "signal" and step == 5 and not restarted:
        Path(f"ready-{rank}").touch()
        wait(lambda: stop)
        if session.leads:
            session.record_stop(4)
        sys.exit(0)
    if what == "wait" and step == 5:
        Path(f"ready-{rank}").touch()
        wait(Path("go").exists)
    if step % 2 == 0:
        save(step)
