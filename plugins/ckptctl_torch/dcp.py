"""A DCP storage writer and reader, for those who call `dcp.save` and `dcp.load` themselves."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from ckptctl import __version__
from ckptctl.errors import UsageError
from ckptctl.model.manifest import SavePlan as Plan
from ckptctl.saving.posix import aligned_buffer
from ckptctl_torch.checkpointer import Checkpointer, leave_receipts
from ckptctl_torch.image import pickled_metadata, place_tensor
from ckptctl_torch.slots import slot_size, stretch


class CheckpointWriter(StorageWriter):
    """`dcp.save(state_dict, storage_writer=CheckpointWriter(ckpt, step))`: returns once the step is complete and durable.

    `ckpt` is an entered `Checkpointer`. One writer saves one step. DCP's own collectives carry the plans; the bytes, receipts
    and commit are the same as those of `Checkpointer.save`. A failing rank makes `dcp.save` raise on every rank.
    """

    def __init__(self, checkpointer: Checkpointer, step: int) -> None:
        self._ckpt, self._step = checkpointer, step
        self._plan: Plan | None = None
        self._lost: Any = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Accept no other place than the checkpoint root's own."""
        if checkpoint_id is not None:
            raise UsageError("checkpoint_id is not used with CheckpointWriter", hint="the folder follows from the step")

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to set up: the staging folder is opened once all ranks have planned."""

    def storage_meta(self) -> StorageMeta | None:
        """Return no storage metadata of our own."""
        return StorageMeta()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Keep the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Stage the step (coordinator), and tell each rank its file."""
        self._plan = self._ckpt.session.stage(self._step, None)
        return [dataclasses.replace(plan, storage_data=f"__{number}_0.distcp") for number, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's items, durably, and leave the node's receipt."""
        name = str(plan.storage_data)
        results: list[WriteResult] = []

        def write() -> Any:
            image, found = _image(plan, planner, name)
            results.extend(found)
            return self._ckpt.session.write(self._step, name, image)

        self._lost = leave_receipts(self._ckpt.session, self._ckpt.group, self._step, write)
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit (coordinator): returns after COMMIT is durable under its final name."""
        if self._plan is None:
            raise UsageError("finish without a plan", hint="use a new CheckpointWriter for each dcp.save")
        session = self._ckpt.session
        places = {result.index: result.storage_data for on_rank in results for result in on_rank}
        session.add_metadata(self._step, pickled_metadata(metadata, places))
        session.commit(self._plan, tool=f"ckptctl {__version__}", lost=self._lost)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003 - DCP's signature
        """Accept nothing: DCP must be given this writer, it can't find it by a path."""
        return False


class CheckpointReader(FileSystemReader):
    """Reads the checkpoint that this incarnation resumes from; otherwise the stock reader."""

    def __init__(self, checkpointer: Checkpointer) -> None:
        if not checkpointer.resume_path:
            raise UsageError("there is no checkpoint to read: this run starts at step 0", hint="test ckpt.resume_path first")
        super().__init__(checkpointer.resume_path)


def _image(plan: SavePlan, planner: SavePlanner, name: str) -> tuple[memoryview, list[WriteResult]]:
    """Return the rank's file image and where its items lie, laid out by the rules of `image`."""
    parts: list[tuple[int, bytes | torch.Tensor, int]] = []
    results: list[WriteResult] = []
    position = 0
    for item in plan.items:
        data = planner.resolve_data(item)
        if item.type == WriteItemType.BYTE_IO:
            body = stretch(data.getvalue(), slot_size(len(data.getbuffer())))  # type: ignore[union-attr]
            start, length = position, len(body)
            parts.append((start, body, length))
        else:
            start, prefix, payload_bytes, suffix = place_tensor(data, position)  # type: ignore[arg-type]
            length = len(prefix) + payload_bytes + len(suffix)
            parts.append((start, prefix, len(prefix)))
            parts.append((start + len(prefix), data, payload_bytes))  # type: ignore[arg-type]
            parts.append((start + len(prefix) + payload_bytes, suffix, len(suffix)))
        results.append(WriteResult(item.index, length, _StorageInfo(name, start, length)))
        position = start + length
    image = memoryview(aligned_buffer(position))[:position]
    for start, part, length in parts:
        if isinstance(part, bytes):
            image[start : start + length] = part
        elif length:
            target = torch.frombuffer(image, dtype=torch.uint8, count=length, offset=start)
            target.view(part.dtype).view(part.shape).copy_(part.detach())
    return image, results
