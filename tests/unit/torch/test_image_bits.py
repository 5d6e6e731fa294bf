"""The bits of an image in the file: any bit pattern, payloads of 1 MiB in every type on a page, every stock way to read."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from ckptctl_torch.image import LARGE_BYTES, PAGE_BYTES, ImagePlan
from ckptctl_torch.slots import slot_size
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint import load as dcp_load
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from ckptctl.saving.posix import aligned_buffer

NAMES = (
    "float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "bool", "complex64",
    "complex128", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
DTYPES = [getattr(torch, name) for name in NAMES if hasattr(torch, name)]


def any_bits(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Return a tensor of random bits: NaNs with payloads, negative zeros, subnormals."""
    generator = torch.Generator().manual_seed(seed)
    top = 2 if dtype is torch.bool else 256
    count = torch.Size(shape).numel() * dtype.itemsize
    return torch.randint(0, top, (count,), dtype=torch.uint8, generator=generator).view(dtype).view(shape)


def bits(tensor: torch.Tensor) -> bytes:
    """Return a tensor's bytes in row-major order."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    return plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def write(plan: ImagePlan, state: Mapping[str, Any], folder: Path) -> None:
    """Write a checkpoint of a world of one."""
    objects, outgrown = plan.serialise_objects(state)
    assert not outgrown
    image = memoryview(aligned_buffer(plan.size_bytes))[: plan.size_bytes]
    image[:] = b"\xaa" * len(image)
    plan.fill(state, objects, image)
    folder.mkdir()
    (folder / "__0_0.distcp").write_bytes(image)
    (folder / ".metadata").write_bytes(plan.metadata or b"")


def loaded(folder: Path, state: Mapping[str, Any]) -> dict[str, Any]:
    """Read it by `dcp.load` over the stock reader, into tensors that hold something else."""
    template = {key: torch.ones(value.shape, dtype=value.dtype) for key, value in state.items()}
    dcp_load(template, storage_reader=FileSystemReader(folder), no_dist=True)
    return template


def converted(folder: Path) -> dict[str, Any]:
    """Read it by the stock converter."""
    whole = folder.with_suffix(".pt")
    dcp_to_torch_save(str(folder), str(whole))
    found: dict[str, Any] = torch.load(whole, weights_only=False)
    return found


def items(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return each item's place in the file and its bytes, by what `.metadata` says."""
    file = (folder / "__0_0.distcp").read_bytes()
    places = FileSystemReader(folder).read_metadata().storage_data
    return {
        index.fqn: (info.offset, file[info.offset : info.offset + info.length])
        for index, info in places.items()
        if info.relative_path == "__0_0.distcp"
    }


def payload_at(item: bytes) -> int:
    """Return where the payload of a tensor's item begins, read from its zip."""
    with zipfile.ZipFile(io.BytesIO(item)) as archive:
        (entry,) = (info for info in archive.infolist() if info.filename.endswith("/data/0"))
    header = entry.header_offset
    return (
        header
        + 30
        + int.from_bytes(item[header + 26 : header + 28], "little")
        + int.from_bytes(item[header + 28 : header + 30], "little")
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_bits_of_any_type_come_back_by_every_stock_way(dtype: torch.dtype, tmp_path: Path) -> None:
    state = {
        "scalar": any_bits((), dtype, 1),
        "empty": any_bits((0, 3), dtype),
        "small": any_bits((7, 5), dtype, 2),
        "transposed": any_bits((33, 17), dtype, 3).t(),
        "strided": any_bits((40, 60), dtype, 4)[::3, 1::2],
        "large": any_bits((1024, 1025), dtype, 5),
        "large transposed": any_bits((1025, 1024), dtype, 6).t(),
    }
    write(ImagePlan.build(state, None), state, tmp_path / "c")
    for found in (loaded(tmp_path / "c", state), converted(tmp_path / "c")):
        for key, tensor in state.items():
            assert (found[key].dtype, found[key].shape) == (tensor.dtype, tensor.shape), key
            assert bits(found[key]) == bits(tensor), key


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_payloads_of_one_mebibyte_lie_on_a_page_of_the_file_and_each_item_is_an_archive(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    count = LARGE_BYTES // dtype.itemsize
    state = {
        "a": any_bits((3,), dtype),
        "exactly": any_bits((count,), dtype, 1),
        "just below": any_bits((count - 1,), dtype, 2),
        "just above": any_bits((count + 1,), dtype, 3),
    }
    write(ImagePlan.build(state, None), state, tmp_path / "c")
    for key, (offset, item) in items(tmp_path / "c").items():
        start = payload_at(item)
        assert item[start : start + state[key].nbytes] == bits(state[key]), key
        assert (offset + start) % (PAGE_BYTES if key in ("exactly", "just above") else 64) == 0, key
        assert bits(torch.load(io.BytesIO(item), weights_only=True)) == bits(state[key]), key


def test_items_lie_behind_one_another_and_gaps_are_zeros(tmp_path: Path) -> None:
    state = {f"t{number}": torch.ones(LARGE_BYTES // 4 * (number % 2) + number) for number in range(9)} | {"note": "x", "n": 4}
    write(ImagePlan.build(state, None), state, tmp_path / "c")
    file = (tmp_path / "c" / "__0_0.distcp").read_bytes()
    end = 0
    for offset, item in sorted(items(tmp_path / "c").values(), key=lambda one: one[0]):
        assert offset >= end
        assert not any(file[end:offset])
        end = offset + len(item)
    assert end == len(file)


def test_views_and_parameters_come_back_by_value(tmp_path: Path) -> None:
    base, complex_base = torch.arange(100.0), torch.randn(5, 6, dtype=torch.complex64)
    state = {
        "parameter": nn.Parameter(torch.randn(9, 9)),
        "channels last": torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last),
        "conjugate": complex_base.conj(),
        "negative": complex_base.conj().imag,
        "real part": complex_base.real,
        "overlaps below": base[:70],
        "overlaps above": base[30:],
        "expanded": base[:4].expand(6, 4),
        "permuted": torch.randn(3, 4, 5).permute(2, 0, 1),
        "in a larger storage": base[50:51],
    }
    write(ImagePlan.build(state, None), state, tmp_path / "c")
    assert {key: bits(value) for key, value in converted(tmp_path / "c").items()} == {
        key: bits(value) for key, value in state.items()
    }


def test_a_second_save_of_the_same_plan_has_the_changed_values_and_the_same_metadata(tmp_path: Path) -> None:
    weights, moments = any_bits((600, 600), torch.float32, 1), any_bits((5, 7), torch.bfloat16, 2)
    state: dict[str, Any] = {"w": weights, "m": moments.t(), "progress": {"step": 1, "name": "a", "done": False}}
    plan = ImagePlan.build(state, None)
    write(plan, state, tmp_path / "1")
    metadata, first = plan.metadata, converted(tmp_path / "1")
    weights.copy_(any_bits((600, 600), torch.float32, 3))
    moments.copy_(any_bits((5, 7), torch.bfloat16, 4))
    state["progress"] = {"step": 1000, "name": "b" * 300, "done": True}
    assert not plan.needs_replan(state)
    write(plan, state, tmp_path / "2")
    assert plan.metadata == metadata
    second = converted(tmp_path / "2")
    assert second["progress"] == {"step": 1000, "name": "b" * 300, "done": True}
    for key in ("w", "m"):
        assert bits(second[key]) == bits(state[key]) != bits(first[key])
    assert first["progress"] == {"step": 1, "name": "a", "done": False}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 6000), st.integers(0, 40_000))
def test_an_object_has_outgrown_its_slot_exactly_when_it_no_longer_fits(before: int, after: int) -> None:
    plan = ImagePlan.build({"text": "x" * before}, None)
    buffer = io.BytesIO()
    torch.save("x" * before, buffer)
    slot = slot_size(buffer.tell())
    buffer = io.BytesIO()
    torch.save("x" * after, buffer)
    state = {"text": "x" * after}
    objects, outgrown = plan.serialise_objects(state)
    assert outgrown is (buffer.tell() > slot)
    assert plan.size_bytes == slot
    if not outgrown:
        image = memoryview(bytearray(plan.size_bytes))
        plan.fill(state, objects, image)
        assert torch.load(io.BytesIO(image), weights_only=True) == state["text"]


def test_the_longest_text_that_fits_stays_in_its_slot_and_one_letter_more_outgrows_it() -> None:
    def size(length: int) -> int:
        buffer = io.BytesIO()
        torch.save("x" * length, buffer)
        return buffer.tell()

    plan = ImagePlan.build({"text": ""}, None)
    longest = max(length for length in range(2000, 4096) if size(length) <= plan.size_bytes)
    assert plan.size_bytes - 64 <= size(longest) <= plan.size_bytes < size(longest + 1)
    objects, outgrown = plan.serialise_objects({"text": "x" * longest})
    assert not outgrown
    plan.fill({"text": "x" * longest}, objects, image := memoryview(bytearray(plan.size_bytes)))
    assert torch.load(io.BytesIO(image), weights_only=True) == "x" * longest
    assert plan.serialise_objects({"text": "x" * (longest + 1)}) == ({}, True)


def test_an_outgrown_object_is_saved_by_a_new_plan(tmp_path: Path) -> None:
    plan = ImagePlan.build({"text": "short", "w": torch.ones(3)}, None)
    state = {"text": "x" * 100_000, "w": torch.ones(3)}
    assert plan.serialise_objects(state) == ({}, True)
    write(ImagePlan.build(state, None), state, tmp_path / "c")
    assert converted(tmp_path / "c")["text"] == state["text"]


def test_an_object_that_is_gone_is_planned_again() -> None:
    assert ImagePlan.build({"text": "short"}, None).serialise_objects({})[1] is True


def test_a_state_of_nothing_is_an_empty_file(tmp_path: Path) -> None:
    plan = ImagePlan.build({}, None)
    assert plan.size_bytes == 0
    write(plan, {}, tmp_path / "c")
    assert converted(tmp_path / "c") == {}


def test_a_buffer_of_another_length_is_refused() -> None:
    plan = ImagePlan.build({"w": torch.ones(3)}, None)
    for length in (plan.size_bytes - 1, plan.size_bytes + 1):
        with pytest.raises(ValueError, match="the buffer has"):
            plan.fill({"w": torch.ones(3)}, {}, memoryview(bytearray(length)))
