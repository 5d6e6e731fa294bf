"""Object slots: a `torch.save` zip stretched to a fixed size, still a valid zip for every reader.

Zero padding behind a zip is only legal up to 64 KiB: readers look for the end-of-central-directory record in the last 65,557
bytes. So the gap goes *before* the central directory, whose offset is then corrected in the records that hold it (PKWARE
APPNOTE 6.3.10, sections 4.3.14 to 4.3.16).
"""

from __future__ import annotations

import struct

_EOCD, _LOCATOR, _EOCD64 = b"PK\x05\x06", b"PK\x06\x07", b"PK\x06\x06"
_IN_ZIP64 = 0xFFFFFFFF
SMALLEST_BYTES = 4096


def slot_size(length: int) -> int:
    """Return the slot for an object of `length` bytes: a power of two, at least twice the length, at least 4 KiB."""
    return max(SMALLEST_BYTES, 1 << (2 * length - 1).bit_length())


def stretch(archive: bytes, size: int) -> bytes:
    """Return the zip `archive` (without a comment) as `size` bytes. Raises `ValueError` when it doesn't fit or isn't one."""
    gap = size - len(archive)
    if gap < 0:
        raise ValueError(f"an archive of {len(archive)} bytes does not fit into {size}")
    end = len(archive) - 22
    if end < 0 or archive[end : end + 4] != _EOCD:
        raise ValueError("not a zip archive without a comment")
    (offset,) = struct.unpack_from("<I", archive, end + 16)
    tail = bytearray(archive)
    locator = end - 20
    if locator >= 0 and archive[locator : locator + 4] == _LOCATOR:
        (record,) = struct.unpack_from("<Q", archive, locator + 8)
        if archive[record : record + 4] != _EOCD64:
            raise ValueError("the zip64 record is not where its locator says")
        (directory,) = struct.unpack_from("<Q", archive, record + 48)
        struct.pack_into("<Q", tail, locator + 8, record + gap)
        struct.pack_into("<Q", tail, record + 48, directory + gap)
    else:
        directory = offset
    if offset != _IN_ZIP64:
        struct.pack_into("<I", tail, end + 16, min(offset + gap, _IN_ZIP64))
    return bytes(tail[:directory]) + bytes(gap) + bytes(tail[directory:])
