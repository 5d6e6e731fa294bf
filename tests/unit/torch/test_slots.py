"""Object slots: stretched to a fixed size, and still what `torch.save` wrote, for every reader."""

from __future__ import annotations

import io
import zipfile

import pytest
import torch
from ckptctl_torch.slots import SMALLEST_BYTES, slot_size, stretch
from hypothesis import given
from hypothesis import strategies as st


def saved(value: object) -> bytes:
    """Return what torch.save writes."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("extra", [0, 1, 100, 65_557, 65_558, 70_000, 3_000_000])
def test_a_stretched_object_loads_whatever_the_gap(extra: int) -> None:
    """Padding behind a zip is legal up to 64 KiB only: the gap is inside, before the central directory."""
    value = {"step": 3, "text": "x" * 500, "tensor": torch.arange(50.0)}
    archive = saved(value)
    data = stretch(archive, len(archive) + extra)
    assert len(data) == len(archive) + extra
    loaded = torch.load(io.BytesIO(data), weights_only=True)
    assert (loaded["step"], loaded["text"]) == (3, value["text"])
    assert torch.equal(loaded["tensor"], value["tensor"])
    with zipfile.ZipFile(io.BytesIO(data)) as opened:
        assert opened.testzip() is None


@given(st.binary(max_size=3000), st.integers(0, 200_000))
def test_any_bytes_survive_any_gap(value: bytes, extra: int) -> None:
    archive = saved(value)
    assert torch.load(io.BytesIO(stretch(archive, len(archive) + extra)), weights_only=False) == value


@given(st.integers(1, 1 << 40))
def test_a_slot_is_a_power_of_two_at_least_twice_as_long(length: int) -> None:
    size = slot_size(length)
    assert size >= max(2 * length, SMALLEST_BYTES)
    assert size & (size - 1) == 0
    assert size < 4 * length or size == SMALLEST_BYTES


def test_a_zip64_archive_is_stretched_too() -> None:
    buffer = io.BytesIO()
    whole = zipfile.ZipFile(buffer, "w", allowZip64=True)
    with whole, whole.open(zipfile.ZipInfo("a"), "w", force_zip64=True) as member:
        member.write(b"content")
    data = stretch(buffer.getvalue(), len(buffer.getvalue()) + 100_000)
    with zipfile.ZipFile(io.BytesIO(data)) as opened:
        assert opened.read("a") == b"content"


@pytest.mark.parametrize("data", [b"", b"PK", b"x" * 100, saved(1) + b"\0"])
def test_what_is_no_zip_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a zip"):
        stretch(data, len(data) + 10)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        stretch(saved(1), 10)
