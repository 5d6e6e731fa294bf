"""`Checkpointer`: a few lines in a training script, and the run survives its nodes."""

from __future__ import annotations

import inspect
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from types import FrameType, TracebackType
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from ckptctl import __version__, events, registry, settings
from ckptctl.errors import EXIT_NEVER_RESTART, Fenced, SaveFailed, UsageError
from ckptctl.model.manifest import RankReceipt
from ckptctl.saving import joining
from ckptctl.saving.posix import aligned_buffer
from ckptctl.saving.session import Incarnation, SaveSettings, Session
from ckptctl_torch import rng
from ckptctl_torch import state as states
from ckptctl_torch.group import CpuGroup
from ckptctl_torch.image import ImagePlan

_STOP, _FENCED = 1, 2
_FENCE_CHECK_S = 10.0
_ALONE: dict[str, Any] = {"no_dist": True} if "no_dist" in inspect.signature(dcp_load).parameters else {}
"""How DCP is told that there is no process group: by word, or (torch 2.6) by there being none."""


class Checkpointer:
    """Loads, saves and stops a training run, the same on 1 rank and on thousands.

    ```python
    with Checkpointer() as ckpt:
        state = {"model": model, "optim": optim, "progress": progress}
        step = ckpt.load(state)
        while step < total and not ckpt.should_stop():
            ...
            ckpt.save(step, state)
    ```

    Everything comes from the environment of `ckptctl run`; arguments override. Enter it after
    `torch.distributed.init_process_group`, on every rank. `state` maps names to modules, optimizers, objects with
    `state_dict` and `load_state_dict`, tensors or plain values; a value that differs between ranks needs a name per rank.
    Random number generators are saved and restored by themselves, per rank.

    `save` blocks until the checkpoint is complete or has failed on all ranks. `stop_every` is the number of
    `should_stop` calls between two agreements on stopping. Leaving the block by `sys.exit(93)`, on any rank, tells
    `ckptctl run` never to restart the run.
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        keep_last: int | None = None,
        keep_every: int | None = None,
        engine: str = "posix",
        scheduler: str = "auto",
        stop_every: int = 4,
        timeout_s: float = 1800.0,
        allow_missing: Sequence[str] = (),
        allow_unloaded: Sequence[str] = (),
    ) -> None:
        if stop_every < 1:
            raise UsageError(f"stop_every must be at least 1, not {stop_every}")
        self._root = None if root is None else os.fspath(root)
        self._settings = settings.load({"keep_last": keep_last, "keep_every": keep_every})
        self._engine_name, self._scheduler_name = engine, scheduler
        self._stop_every, self._timeout_s = stop_every, timeout_s
        self._allow_missing, self._allow_unloaded = tuple(allow_missing), tuple(allow_unloaded)
        self._plan: ImagePlan | None = None
        self._arena: Any = None
        self._signalled = False
        self._agreed = 0
        self._calls = 0
        self._pending: tuple[torch.Tensor, Any] | None = None
        self._fence_checked = 0.0
        self._saved_step = 0
        self._handlers: dict[int, Any] = {}
        self._session: Session | None = None
        self._group: CpuGroup | None = None

    # --- life ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Checkpointer:
        events.configure(level=logging.INFO)
        group = self._group = CpuGroup(self._timeout_s)
        scheduler = joining.scheduler_here(self._scheduler_name)
        node = scheduler.this_node()
        found = group.all_do(lambda: joining.told(os.environ, self._root, scheduler), "reading the environment")
        if any(incarnation != found for incarnation in group.gather(found)):
            raise UsageError("the ranks were told different incarnations", hint="start all ranks with one launcher")
        if found is None:
            root = str(self._root)
            found = group.leader_does(lambda: joining.begin_alone(root, scheduler, node))
        self._incarnation: Incarnation = found
        session = self._session = Session(
            found,
            rank=group.rank,
            placement=group.gather(node.name),
            engine=registry.engine(self._engine_name, threads=self._settings.writer_threads),
            settings=SaveSettings(self._settings.save_deadline_s, self._settings.keep_last, self._settings.keep_every),
            boot_id=node.boot_id,
        )
        group.all_do(session.verify, "verifying the checkpoint root")
        self._saved_step = found.step
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGUSR1, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._note_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}
        if isinstance(exc, SystemExit) and exc.code == EXIT_NEVER_RESTART and self._session is not None:
            self._session.record_never_restart(self._saved_step)
        if kind is None and self._group is not None:
            if self._pending is not None and self._pending[1] is not None:
                self._pending[1].wait()
            self._group.close()
        self._session = self._group = None

    def _note_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._signalled = True

    @property
    def session(self) -> Session:
        """The torch-free session below, for the DCP writer and for tests."""
        if self._session is None:
            raise UsageError("Checkpointer is used outside its `with` block")
        return self._session

    @property
    def group(self) -> CpuGroup:
        """The CPU group that ckptctl talks over."""
        if self._group is None:
            raise UsageError("Checkpointer is used outside its `with` block")
        return self._group

    @property
    def resume_path(self) -> str:
        """The folder of the checkpoint that this incarnation resumes from; empty for a start at step 0."""
        return self.session.incarnation.path

    @property
    def stopping(self) -> bool:
        """Whether the ranks have agreed to stop."""
        return self._agreed >= _STOP

    # --- loading -------------------------------------------------------------------------------------------------

    def load(self, state: MutableMapping[str, Any]) -> int:
        """Load the last complete checkpoint into `state` and return its step; 0 on a first start, which changes nothing.

        Modules, optimizers and objects are loaded in place; plain values are replaced in `state` itself. Raises
        `KeyMismatch` naming each key that was asked for and is not there, or is there and nobody asked for.
        """
        session, group = self.session, self.group
        if not self._incarnation.path:
            return 0
        reader = FileSystemReader(self._incarnation.path)
        metadata = reader.read_metadata()
        template = states.template(state, metadata)
        own = rng.rng_key(session.rank)
        saved = set(metadata.state_dict_metadata)
        absent = states.not_saved(state, saved)
        apart = states.set_apart(state, template, saved)
        wanted = set(states.keys_of(template))
        mine = states.not_asked_for(saved, wanted, self._allow_unloaded)
        unloaded = set.intersection(*map(set, group.gather(mine)))
        group.all_do(
            lambda: states.check_keys(saved, wanted, self._allow_missing, self._allow_unloaded, unloaded), "comparing the keys"
        )
        for key in absent:
            template.pop(key)
        restores_rng = own in saved
        if restores_rng:
            template[own] = rng.placeholder()
        elif any(key.startswith("ckptctl.rng/") for key in saved):
            events.emit(
                events.RESUME,
                f"rank {session.rank} keeps its own random numbers: the checkpoint is of a smaller world",
                level=logging.WARNING,
            )
        dcp_load(
            template,
            storage_reader=reader,
            planner=DefaultLoadPlanner(allow_partial_load=bool(self._allow_missing)),
            process_group=group.group,
            **_ALONE if group.group is None else {},
        )
        captured = template.pop(own, None)
        states.restore(state, template, apart, absent)
        if restores_rng:
            rng.restore(captured)
        return self._incarnation.step

    # --- saving --------------------------------------------------------------------------------------------------

    def save(self, step: int, state: Mapping[str, Any]) -> str:
        """Save `state` as `step` on all ranks; returns the checkpoint's folder once it is complete and durable.

        Raises the same error on every rank: `SaveFailed` (a rank or node failed; the last complete checkpoint is untouched),
        `Fenced` (a newer incarnation has taken over: stop), `StepTaken`, `OutOfSpace`.
        """
        session, group = self.session, self.group
        if step < 1:
            raise UsageError(f"step {step} cannot be saved: steps count from 1", hint="save after the first training step")
        begun = time.monotonic()
        collected = {**states.collect(state), rng.rng_key(session.rank): rng.capture()}
        objects, outgrown = self._plan.serialise_objects(collected) if self._plan else ({}, True)
        replan = outgrown or self._plan is None or self._plan.needs_replan(collected)
        highest, lowest, any_replan = group.maximum(step, -step, int(replan))
        if highest != -lowest:
            raise SaveFailed(
                f"the ranks save different steps ({-lowest} to {highest}); this one {step}",
                hint="every rank must call save with the same step",
            )
        if any_replan:
            self._plan = ImagePlan.build(collected, group.group)
            objects, _ = self._plan.serialise_objects(collected)
            self._arena = aligned_buffer(self._plan.size_bytes)
        plan = self._plan
        if plan is None:
            raise UsageError("no plan")  # unreachable: the first save replans
        save_plan = group.leader_does(lambda: session.stage(step, plan.metadata or b""))
        image = memoryview(self._arena)[: plan.size_bytes]

        def write() -> RankReceipt:
            plan.fill(collected, objects, image)
            stall_ms = int((time.monotonic() - begun) * 1000)
            return session.write(step, plan.file_name, image, stall_ms=stall_ms)

        lost = leave_receipts(session, group, step, write)
        group.leader_does(lambda: session.commit(save_plan, tool=f"ckptctl {__version__}", lost=lost).path)
        self._saved_step = step
        return session.checkpoint(step)

    # --- stopping ------------------------------------------------------------------------------------------------

    def should_stop(self) -> bool:
        """Whether to leave the training loop; call it once per step, on every rank. All ranks get the same answer.

        A SIGUSR1 or SIGTERM on any rank counts. The ranks agree by an all-reduce that is started at one boundary and read
        `stop_every` calls later, so that it costs no step any waiting; the answer comes at most 2 × `stop_every` calls after
        the signal. Raises `Fenced` on all ranks when a newer incarnation has taken over.
        """
        if self._agreed:
            return True
        self._calls += 1
        if self._calls % self._stop_every:
            return False
        if self._pending is not None:
            tensor, work = self._pending
            if work is not None:
                work.wait()
            self._pending = None
            self._agreed = int(tensor.item())
            if self._agreed:
                return self._stop()
        word = torch.tensor(max(_STOP * self._signalled, _FENCED * self._is_fenced()), dtype=torch.int64)
        self._pending = (word, self.group.start_maximum(word))
        return False

    def _stop(self) -> bool:
        if self._agreed == _FENCED:
            self.group.all_do(self.session.check_fence, "checking the fence")
            raise Fenced("a newer incarnation has taken over the checkpoint root", context=self._incarnation.root)
        if self.session.leads:
            events.emit(events.STOP, f"the ranks stop here; last saved step {self._saved_step}")
            self.session.record_stop(self._saved_step)
        return True

    def _is_fenced(self) -> bool:
        if not self.session.leads or time.monotonic() - self._fence_checked < _FENCE_CHECK_S:
            return False
        self._fence_checked = time.monotonic()
        try:
            self.session.check_fence()
        except Fenced:
            return True
        except Exception:  # noqa: BLE001 - a hiccup of the storage is no reason to stop; the next save will meet it
            return False
        return False


def leave_receipts(session: Session, group: CpuGroup, step: int, write: Callable[[], RankReceipt]) -> Callable[[], str]:
    """Write on this rank, hand the receipt to the node's leader, who leaves one receipt for all ranks of the node.

    A rank's error goes into its node's receipt: it ends the committer's wait at once, and the commit raises it on every rank.
    Returns what tells the committer, without waiting, that a rank died or a node could not even leave a receipt.
    """
    error, receipt = "", None
    try:
        receipt = write()
    except Exception as exc:  # noqa: BLE001 - whatever a rank fails with must reach the leader, not hang the others
        error = f"rank {session.rank}: {type(exc).__name__}: {exc}"
    silent = ""
    members = session.nodes[session.node]
    if session.leads_node:
        answers = [(receipt, error), *(_hand_over(group, member) for member in members[1:])]
        problems = "; ".join(text for _, text in answers if text)
        try:
            session.leave_receipt(step, [part for part, _ in answers if part is not None], error=problems)
        except Exception as exc:  # noqa: BLE001 - this node cannot even say on storage that it failed
            silent = f"node {session.node} left no receipt: {problems or exc}"
    else:
        group.send((receipt, error), members[0])
    if error or silent:
        events.emit(events.SAVE_FAILED, f"step {step}: {silent or error}", level=logging.ERROR)
    return group.watch(silent)


def _hand_over(group: CpuGroup, member: int) -> tuple[RankReceipt | None, str]:
    """Receive a rank's receipt or error; a rank that died has an error, too."""
    try:
        answer: tuple[RankReceipt | None, str] = group.receive(member)
    except SaveFailed as exc:
        return None, f"rank {member}: {exc.message}"
    return answer
