"""The parser of the mount table: whatever the kernel can print comes back as it was; nothing else is guessed."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st

from ckptctl.model.mount import MountRow
from ckptctl.storage.mounts import find_row, parse_row

names = st.binary(min_size=1, max_size=30).filter(lambda name: b"\0" not in name).map(os.fsdecode)
sources = st.binary(max_size=30).filter(lambda name: b"\0" not in name).map(os.fsdecode)
ids = st.integers(0, 2**31 - 1)
tags = st.sampled_from(["shared:1", "master:2", "propagate_from:3", "unbindable", "later:9"])

rows = st.builds(
    MountRow,
    id=ids,
    parent=ids,
    major=st.integers(0, 4095),
    minor=st.integers(0, 2**20 - 1),
    root=names,
    mount_point=names,
    options=st.lists(names, min_size=1, max_size=4).map(tuple),
    tags=st.lists(tags, max_size=4).map(tuple),
    type=names,
    source=sources,
    super_options=st.lists(names, min_size=1, max_size=4).map(tuple),
)


def mangle(name: str, also: bytes = b"") -> bytes:
    """Escape as the kernel does (fs/proc_namespace.c), `#` included, and what `also` says."""
    return b"".join(b"\\%03o" % byte if byte in b" \t\n\\#" + also else bytes([byte]) for byte in os.fsencode(name))


def kernel_line(row: MountRow) -> bytes:
    # The optional fields can't hold a lone dash, and everything that a user can name is escaped.
    fields = [
        b"%d %d %d:%d" % (row.id, row.parent, row.major, row.minor),
        mangle(row.root),
        mangle(row.mount_point),
        b",".join(mangle(option, b",") for option in row.options),
        *(tag.encode() for tag in row.tags),
        b"-",
        mangle(row.type),
        mangle(row.source),
        b",".join(mangle(option, b",") for option in row.super_options),
    ]
    return b" ".join(fields)


@given(rows)
def test_every_row_comes_back(row: MountRow) -> None:
    assert parse_row(kernel_line(row) + b"\n") == row


@given(st.lists(rows, max_size=6, unique_by=lambda row: row.id), st.data())
def test_the_row_of_an_id_is_found_in_any_order(table: list[MountRow], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(table))
    text = b"".join(kernel_line(row) + b"\n" for row in shuffled)
    for row in table:
        assert find_row(text, row.id) == row
    missing = data.draw(ids.filter(lambda number: number not in {row.id for row in table}))
    assert find_row(text, missing) is None


words = st.sampled_from([b"1", b"20", b"0:1", b"0:", b"/", b"/a\\040b", b"-", b"", b"rw", b"tmpfs", b"shared:1", b"\xff"])


@given(st.binary(max_size=120) | st.lists(words, max_size=14).map(b" ".join))
def test_garbage_is_an_error_or_a_row_with_all_its_parts(line: bytes) -> None:
    try:
        row = parse_row(line)
    except ValueError:
        return
    assert row.root
    assert row.mount_point
    assert row.type


@given(rows, st.data())
def test_a_row_cut_before_its_source_is_an_error(row: MountRow, data: st.DataObject) -> None:
    line = kernel_line(row)
    needed = line.index(b" - ") + 3 + len(mangle(row.type))
    cut = data.draw(st.integers(0, needed))
    try:
        found = parse_row(line[:cut])
    except ValueError:
        return
    raise AssertionError(f"{line[:cut]!r} was taken for {found}")


@given(rows)
def test_the_identity_of_every_row_can_be_written_as_utf8_json(row: MountRow) -> None:
    json.dumps(asdict(row.identity), ensure_ascii=False).encode()
