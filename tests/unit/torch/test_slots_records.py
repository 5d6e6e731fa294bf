"""The end records of a stretched archive: torch writes zip64 ones, others write plain ones, and each must point right."""

from __future__ import annotations

import io
import struct
import zipfile

import pytest
import torch
from ckptctl_torch.slots import slot_size, stretch
from hypothesis import given, settings
from hypothesis import strategies as st

EOCD, LOCATOR, EOCD64 = b"PK\x05\x06", b"PK\x06\x07", b"PK\x06\x06"


def saved(value: object) -> bytes:
    """Return what torch.save writes."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    """Return an archive as Python writes it: without zip64 records."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def directories(archive: bytes) -> list[int]:
    """Return where the end records, plain and zip64, say that the central directory is."""
    end = len(archive) - 22
    found = [struct.unpack_from("<I", archive, end + 16)[0]]
    if archive[end - 20 : end - 16] == LOCATOR:
        (record,) = struct.unpack_from("<Q", archive, end - 12)
        assert archive[record : record + 4] == EOCD64
        found.append(struct.unpack_from("<Q", archive, record + 48)[0])
    return found


def test_both_end_records_of_what_torch_writes_point_to_the_moved_directory() -> None:
    archive = saved({"step": 3})
    (before, before64) = directories(archive)
    for gap in (0, 1, 65_600, 1_000_000):
        data = stretch(archive, len(archive) + gap)
        assert directories(data) == [before + gap, before64 + gap]
        assert data[before + gap : before + gap + 4] == b"PK\x01\x02"
        assert data[:before] + data[before + gap : before + gap + 8] == archive[: before + 8]
        assert not any(data[before : before + gap])


def test_an_offset_that_is_only_in_the_zip64_record_stays_so() -> None:
    archive = bytearray(saved({"step": 3}))
    struct.pack_into("<I", archive, len(archive) - 6, 0xFFFFFFFF)
    (_, before64) = directories(bytes(archive))
    data = stretch(bytes(archive), len(archive) + 70_000)
    assert directories(data) == [0xFFFFFFFF, before64 + 70_000]
    assert torch.load(io.BytesIO(data), weights_only=True) == {"step": 3}
    with zipfile.ZipFile(io.BytesIO(data)) as opened:
        assert opened.testzip() is None


def test_an_archive_without_zip64_records_is_stretched_too() -> None:
    archive = zipped({"a": b"content", "b/c": b"x" * 5000})
    (before,) = directories(archive)
    data = stretch(archive, len(archive) + 70_000)
    assert directories(data) == [before + 70_000]
    with zipfile.ZipFile(io.BytesIO(data)) as opened:
        assert opened.testzip() is None
        assert (opened.read("a"), opened.read("b/c")) == (b"content", b"x" * 5000)


def test_an_archive_without_members_is_stretched_too() -> None:
    data = stretch(zipped({}), 4096)
    with zipfile.ZipFile(io.BytesIO(data)) as opened:
        assert opened.namelist() == []


def test_a_gap_of_nothing_changes_nothing() -> None:
    for archive in (saved([1, 2]), zipped({"a": b"1"})):
        assert stretch(archive, len(archive)) == archive


def test_what_was_stretched_can_be_stretched_again() -> None:
    data = stretch(stretch(saved("x"), 8192), 131_072)
    assert torch.load(io.BytesIO(data), weights_only=True) == "x"


def test_a_locator_that_points_nowhere_is_refused() -> None:
    archive = bytearray(saved({"step": 3}))
    struct.pack_into("<Q", archive, len(archive) - 22 - 12, 7)
    with pytest.raises(ValueError, match="zip64 record"):
        stretch(bytes(archive), 8192)


def test_an_archive_with_a_comment_is_refused() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a", b"1")
        archive.comment = b"a comment"
    with pytest.raises(ValueError, match="without a comment"):
        stretch(buffer.getvalue(), 8192)


@pytest.mark.parametrize("size", [0, 1, 4096])
def test_nothing_is_refused_at_any_size(size: int) -> None:
    with pytest.raises(ValueError, match="not a zip"):
        stretch(b"", size)


@settings(deadline=None)
@given(st.integers(0, 200_000), st.integers(0, 255))
def test_a_text_of_any_length_fills_its_slot_and_survives_in_it(length: int, letter: int) -> None:
    value = {"text": chr(letter) * length, "tensor": torch.full((3,), letter)}
    archive = saved(value)
    data = stretch(archive, slot_size(len(archive)))
    assert len(data) == slot_size(len(archive))
    loaded = torch.load(io.BytesIO(data), weights_only=True)
    assert loaded["text"] == value["text"]
    assert torch.equal(loaded["tensor"], value["tensor"])
    with zipfile.ZipFile(io.BytesIO(data)) as opened:
        assert opened.testzip() is None


@settings(deadline=None)
@given(st.integers(1, 5000))
def test_one_byte_less_than_the_archive_never_fits(less: int) -> None:
    archive = saved("x" * 5000)
    with pytest.raises(ValueError, match="does not fit"):
        stretch(archive, len(archive) - less)
