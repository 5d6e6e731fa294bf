"""The file image of a rank is a stock DCP file: every type, shape and layout comes back bit for bit by the stock reader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from ckptctl_torch.image import LARGE_BYTES, PAGE_BYTES, ImagePlan, _skeleton
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint import load as dcp_load
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from ckptctl.saving.posix import aligned_buffer

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn,
]  # fmt: skip
SHAPES = [(), (0,), (3, 0, 2), (1,), (7, 5), (600, 601)]


def bits(tensor: torch.Tensor) -> bytes:
    """Return a tensor's bytes in row-major order."""
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def random_bits(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Return a tensor of arbitrary values of its type."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if dtype.is_complex:
        return torch.randn(shape, dtype=dtype, generator=generator)
    return torch.randint(-100, 100, shape, generator=generator).float().to(dtype)


def write(plan: ImagePlan, state: Mapping[str, Any], folder: Path) -> None:
    """Write a checkpoint of a world of one."""
    objects, outgrown = plan.serialise_objects(state)
    assert not outgrown
    image = memoryview(aligned_buffer(plan.size_bytes))[: plan.size_bytes]
    plan.fill(state, objects, image)
    folder.mkdir(exist_ok=True)
    (folder / plan.file_name).write_bytes(image)
    (folder / ".metadata").write_bytes(plan.metadata or b"")


def read(folder: Path, template: dict[str, Any]) -> dict[str, Any]:
    """Read it with the stock reader."""
    dcp_load(template, storage_reader=FileSystemReader(folder), no_dist=True)
    return template


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_shape_come_back_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    state = {f"t{number}": random_bits(shape, dtype, number) for number, shape in enumerate(SHAPES)}
    write(ImagePlan.build(state, None), state, tmp_path / "c")
    found = read(tmp_path / "c", {key: torch.zeros_like(tensor) for key, tensor in state.items()})
    for key, tensor in state.items():
        assert bits(found[key]) == bits(tensor), (key, tensor.shape)


def test_tensors_that_are_not_contiguous_come_back(tmp_path: Path) -> None:
    base = random_bits((40, 60), torch.float32)
    state = {
        "transposed": base.t(),
        "sliced": base[::3, 1::2],
        "expanded": base[:1].expand(5, 60),
        "narrow": base.narrow(1, 7, 9),
    }
    write(ImagePlan.build(state, None), state, tmp_path / "c")
    found = read(tmp_path / "c", {key: torch.zeros(tensor.shape) for key, tensor in state.items()})
    for key, tensor in state.items():
        assert torch.equal(found[key], tensor), key


def test_one_plan_serves_every_later_save_of_the_same_structure(tmp_path: Path) -> None:
    state: dict[str, Any] = {"w": random_bits((300, 400), torch.float32), "progress": {"step": 1, "name": "a"}}
    plan = ImagePlan.build(state, None)
    for step in (1, 2, 3):
        state = {"w": random_bits((300, 400), torch.float32, step), "progress": {"step": step, "name": "a" * step}}
        assert not plan.needs_replan(state)
        write(plan, state, tmp_path / str(step))
        found = read(tmp_path / str(step), {"w": torch.zeros(300, 400), "progress": {"step": 0, "name": ""}})
        assert torch.equal(found["w"], state["w"])
        assert found["progress"] == state["progress"]


def test_the_same_state_gives_the_same_bytes(tmp_path: Path) -> None:
    state = {"w": random_bits((300, 400), torch.float32), "n": {"x": [1, 2, 3]}}
    for name in ("a", "b"):
        write(ImagePlan.build(state, None), state, tmp_path / name)
    assert (tmp_path / "a" / "__0_0.distcp").read_bytes() == (tmp_path / "b" / "__0_0.distcp").read_bytes()


def test_the_stock_converter_reads_it(tmp_path: Path) -> None:
    state = {"w": random_bits((300, 400), torch.bfloat16), "progress": {"step": 7}}
    write(ImagePlan.build(state, None), state, tmp_path / "c")
    dcp_to_torch_save(str(tmp_path / "c"), str(tmp_path / "whole.pt"))
    found = torch.load(tmp_path / "whole.pt", weights_only=True)
    assert bits(found["w"]) == bits(state["w"])
    assert found["progress"] == {"step": 7}


def test_large_payloads_start_on_a_page_boundary_of_the_file() -> None:
    state = {f"t{number}": torch.zeros(LARGE_BYTES // 4 + number * 13) for number in range(5)} | {"small": torch.zeros(3)}
    plan = ImagePlan.build(state, None)
    large = [item for item in plan._tensors if item.payload_bytes >= LARGE_BYTES]
    assert len(large) == 5
    assert all((item.offset + len(item.prefix)) % PAGE_BYTES == 0 for item in large)


@pytest.mark.parametrize(
    "change",
    [
        {"w": torch.zeros(3, 5)},
        {"w": torch.zeros(3, 4, dtype=torch.float64)},
        {"w": 3},
        {"w": torch.zeros(3, 4), "more": torch.zeros(1)},
        {},
    ],
)
def test_another_structure_is_planned_again(change: dict[str, Any]) -> None:
    assert ImagePlan.build({"w": torch.zeros(3, 4)}, None).needs_replan(change)


def test_an_object_that_outgrows_its_slot_is_planned_again() -> None:
    plan = ImagePlan.build({"text": "short"}, None)
    assert plan.serialise_objects({"text": "a little longer"})[1] is False
    assert plan.serialise_objects({"text": "x" * 100_000})[1] is True


def test_the_records_around_a_payload_are_what_torch_writes() -> None:
    import io

    tensor = random_bits((123, 45), torch.float32)
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    prefix, payload_bytes, suffix = _skeleton((123, 45), torch.float32)
    whole = buffer.getvalue()
    assert len(prefix) + payload_bytes + len(suffix) == len(whole)
    assert whole[len(prefix) : len(prefix) + payload_bytes] == bits(tensor)
    assert whole[: len(prefix)] == prefix
