"""The file image of one rank in a stock DCP checkpoint, planned once and then only filled.

Every item of the file is what `torch.save` would have written for it, so the stock `FileSystemReader` and
`dcp_to_torch_save` read it. What never changes between saves (the zip records around a payload) is made at planning; a save
copies payloads and objects to their places. Layout rules: `docs/reference/format.md`; source of DCP's own rules:
`torch/distributed/checkpoint/{default_planner,filesystem}.py` of torch 2.13.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType
from torch.distributed.checkpoint.utils import find_state_dict_object
from torch.distributed.tensor import DTensor

from ckptctl.errors import SaveFailed
from ckptctl_torch.slots import slot_size, stretch

PAGE_BYTES = 4096
LARGE_BYTES = 1024 * 1024
"""Payloads of this size and more start on a page boundary of the file."""
_ITEM_ALIGNMENT = 64  # torch aligns payloads to 64 bytes from the item's start; so are the starts, from the file's


@dataclass(frozen=True)
class _TensorItem:
    index: MetadataIndex
    offset: int
    prefix: bytes
    payload_bytes: int
    suffix: bytes
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def length(self) -> int:
        return len(self.prefix) + self.payload_bytes + len(self.suffix)


@dataclass(frozen=True)
class _ObjectItem:
    index: MetadataIndex
    offset: int
    length: int


class ImagePlan:
    """Where each item of this rank lies in its file. Built by all ranks together; afterwards nothing needs a collective.

    `size_bytes` is the length of this rank's file (0 when it has nothing to write), `metadata` the pickled DCP `.metadata` of
    all ranks (leader only): it is right for every later save of the same structure, because no item ever moves.
    """

    def __init__(self, rank: int, world_size: int, signature: dict[str, object]) -> None:
        self.rank, self.world_size = rank, world_size
        self.file_name = f"__{rank}_0.distcp"
        self.size_bytes = 0
        self.metadata: bytes | None = None
        self._signature = signature
        self._tensors: list[_TensorItem] = []
        self._objects: list[_ObjectItem] = []

    @staticmethod
    def build(state_dict: Mapping[str, Any], group: dist.ProcessGroup | None) -> ImagePlan:
        """Plan with DCP's planner (replicated values are written once). Collective over `group`; None is a world of one.

        Raises `SaveFailed` on every rank when planning fails on one, naming it.
        """
        rank = 0 if group is None else dist.get_rank(group)
        world_size = 1 if group is None else dist.get_world_size(group)
        planner = DefaultSavePlanner()
        planner.set_up_planner(dict(state_dict), None, rank == 0)
        local = _together(planner.create_local_plan, group, "planning the save")
        outcome: list[Any] = [None]
        if rank == 0:
            outcome = [planner.create_global_plan(local)]
        if group is not None:
            dist.broadcast_object_list(outcome, group_src=0, group=group)
        plans, metadata = outcome[0]
        final: SavePlan = planner.finish_plan(plans[rank])
        plan = ImagePlan(rank, world_size, _signature(state_dict))
        placed = _together(lambda: plan._place(final, planner), group, "laying out the file")
        if rank == 0:
            plan.metadata = pickled_metadata(metadata, dict(pair for on_rank in placed for pair in on_rank))
        return plan

    def _place(self, plan: SavePlan, planner: DefaultSavePlanner) -> list[tuple[MetadataIndex, _StorageInfo]]:
        where: list[tuple[MetadataIndex, _StorageInfo]] = []
        position = 0
        tensors: list[tuple[WriteItem, torch.Tensor]] = []
        for item in plan.items:
            data = planner.resolve_data(item)
            if item.type != WriteItemType.BYTE_IO:
                if not isinstance(data, torch.Tensor):
                    raise TypeError(f"{item.index.fqn} is planned as a tensor and is a {type(data).__name__}")
                tensors.append((item, data))
                continue
            length = slot_size(len(data.getbuffer()))  # type: ignore[union-attr]
            self._objects.append(_ObjectItem(item.index, position, length))
            where.append((item.index, _StorageInfo(self.file_name, position, length)))
            position += length
        for item, data in sorted(tensors, key=lambda pair: pair[1].nbytes):
            start, prefix, payload_bytes, suffix = place_tensor(data, position)
            placed = _TensorItem(item.index, start, prefix, payload_bytes, suffix, data.dtype, tuple(data.shape))
            self._tensors.append(placed)
            where.append((item.index, _StorageInfo(self.file_name, start, placed.length)))
            position = start + placed.length
        self.size_bytes = position
        return where

    def needs_replan(self, state_dict: Mapping[str, Any]) -> bool:
        """Whether keys, shapes, types or placements differ from what was planned. Local and cheap: no value is read."""
        return _signature(state_dict) != self._signature

    def serialise_objects(self, state_dict: Mapping[str, Any]) -> tuple[dict[MetadataIndex, bytes], bool]:
        """Return the bytes of this rank's objects, taken by value now, and whether one has outgrown its slot."""
        flat, _ = flatten_state_dict(dict(state_dict))
        found: dict[MetadataIndex, bytes] = {}
        for item in self._objects:
            if item.index.fqn not in flat:
                return {}, True
            buffer = io.BytesIO()
            torch.save(flat[item.index.fqn], buffer)
            if buffer.tell() > item.length:
                return {}, True
            found[item.index] = buffer.getvalue()
        return found, False

    def fill(self, state_dict: Mapping[str, Any], objects: Mapping[MetadataIndex, bytes], buffer: memoryview) -> None:
        """Copy everything to its place in `buffer`, which has `size_bytes` bytes; gaps become zeros.

        A contiguous or strided CPU or device tensor is copied without another copy of itself. Deterministic: the same state
        gives the same bytes.
        """
        if len(buffer) != self.size_bytes:
            raise ValueError(f"the buffer has {len(buffer)} bytes and the image {self.size_bytes}")
        flat, _ = flatten_state_dict(dict(state_dict))
        end = 0
        for slot in self._objects:
            buffer[slot.offset : slot.offset + slot.length] = stretch(objects[slot.index], slot.length)
            end = slot.offset + slot.length
        for item in self._tensors:
            buffer[end : item.offset] = bytes(item.offset - end)
            payload = item.offset + len(item.prefix)
            after = payload + item.payload_bytes
            buffer[item.offset : payload] = item.prefix
            buffer[after : after + len(item.suffix)] = item.suffix
            end = after + len(item.suffix)
            if item.payload_bytes:
                source = find_state_dict_object(flat, item.index).detach()
                target = torch.frombuffer(buffer, dtype=torch.uint8, count=item.payload_bytes, offset=payload)
                target.view(item.dtype).view(item.shape).copy_(source)


def place_tensor(tensor: torch.Tensor, position: int) -> tuple[int, bytes, int, bytes]:
    """Return where a tensor's item starts at or after `position`, and what surrounds its payload: prefix, size, suffix.

    A payload of 1 MiB or more starts on a page boundary of the file (O_DIRECT and GDS need it); the item's start is shifted.
    """
    prefix, payload_bytes, suffix = _skeleton(tuple(tensor.shape), tensor.dtype)
    start = -(-position // _ITEM_ALIGNMENT) * _ITEM_ALIGNMENT
    if payload_bytes >= LARGE_BYTES:
        start = -(-(start + len(prefix)) // PAGE_BYTES) * PAGE_BYTES - len(prefix)
    return start, prefix, payload_bytes, suffix


class _Sparse:
    """A file object that keeps what is written and skips what is sought over: a zip without its payload."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, bytes]] = []
        self.position = 0

    def write(self, data: bytes) -> int:
        self.parts.append((self.position, bytes(data)))
        self.position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        self.position = offset + (self.position if whence == 1 else 0)
        return self.position

    def tell(self) -> int:
        return self.position

    def flush(self) -> None:
        pass


def _skeleton(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[bytes, int, bytes]:
    """Return what `torch.save` writes before and after the payload of a contiguous tensor, and the payload's size.

    The tensor is allocated and never touched, so it costs address space only.
    """
    tensor = torch.empty(shape, dtype=dtype)
    if not tensor.nbytes:
        buffer = io.BytesIO()
        torch.save(tensor, buffer)
        return buffer.getvalue(), 0, b""
    sparse = _Sparse()
    with torch.serialization.skip_data():
        torch.save(tensor, sparse)  # type: ignore[arg-type]
    end = 0
    gap = (0, 0)
    for position, data in sparse.parts:
        if position - end > gap[1]:
            gap = (end, position - end)
        end = max(end, position + len(data))
    if gap[1] != tensor.nbytes:
        raise SaveFailed(
            f"this torch ({torch.__version__}) lays out a tensor of {tensor.nbytes} bytes in a way that is not understood",
            hint="report it; torch 2.6 to 2.13 are known to work",
        )
    whole = bytearray(end - gap[1])
    for position, data in sparse.parts:
        at = position if position < gap[0] else position - gap[1]
        whole[at : at + len(data)] = data
    return bytes(whole[: gap[0]]), gap[1], bytes(whole[gap[0] :])


def pickled_metadata(metadata: Metadata, storage_data: dict[MetadataIndex, _StorageInfo]) -> bytes:
    """Return DCP's `.metadata` for items at these places. The version is the running torch's; 2.6 has none."""
    metadata.storage_data = storage_data
    metadata.storage_meta = StorageMeta()
    version = getattr(filesystem, "CURRENT_DCP_VERSION", None)
    if version is not None:
        metadata.version = version
    return pickle.dumps(metadata)


def _signature(state_dict: Mapping[str, Any]) -> dict[str, object]:
    flat, _ = flatten_state_dict(dict(state_dict))
    found: dict[str, object] = {}
    for key, value in flat.items():
        if isinstance(value, DTensor):
            local = value.to_local()
            found[key] = (
                "dtensor",
                tuple(value.shape),
                value.dtype,
                str(value.placements),
                tuple(local.shape),
                str(value.device_mesh),
            )
        elif isinstance(value, torch.Tensor):
            found[key] = ("tensor", tuple(value.shape), value.dtype)
        else:
            found[key] = "object"
    return found


def _together(action: Any, group: dist.ProcessGroup | None, what: str) -> list[Any]:
    """Run `action` on every rank and return all results; an error of one is raised on all, with the rank's number."""
    try:
        mine: tuple[bool, Any] = (True, action())
    except Exception as exc:  # noqa: BLE001 - one rank's error, of whatever kind, must not leave the others waiting
        mine = (False, f"{type(exc).__name__}: {exc}")
    outcomes: list[Any] = [mine]
    if group is not None:
        outcomes = [None] * dist.get_world_size(group)
        dist.all_gather_object(outcomes, mine, group=group)
    failed = {rank: value for rank, (ok, value) in enumerate(outcomes) if not ok}
    if failed:
        rank, text = next(iter(failed.items()))
        raise SaveFailed(f"{what} failed on rank {rank}: {text}", hint="the last complete checkpoint is untouched")
    return [value for _, value in outcomes]
