"""Everything that ckptctl writes beside the bytes comes back as it was, whatever the names and numbers."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptctl.errors import DamagedCheckpoint
from ckptctl.model import codec, manifest

KINDS = [
    manifest.Receipt,
    manifest.SavePlan,
    manifest.Manifest,
    manifest.Commit,
    manifest.Lineage,
    manifest.Generation,
    manifest.ResumePoint,
]
WORDS = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
NUMBERS = st.integers(0, 2**63 - 1)
st.register_type_strategy(str, WORDS)
st.register_type_strategy(int, NUMBERS)


def instances(kind: type) -> st.SearchStrategy[object]:
    """Return instances of a dataclass of ours, at the format that this version writes."""
    return st.from_type(kind).map(lambda value: dataclasses.replace(value, format=codec.FORMAT_VERSION))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_what_is_encoded_is_decoded(kind: type, data: st.DataObject) -> None:
    value = data.draw(instances(kind))
    encoded = codec.encode(value)
    assert codec.decode(kind, encoded, "x") == value
    assert codec.encode(codec.decode(kind, encoded, "x")) == encoded


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_a_cut_file_is_never_taken_for_a_whole_one(kind: type, data: st.DataObject) -> None:
    encoded = codec.encode(data.draw(instances(kind)))
    length = data.draw(st.integers(0, len(encoded) - 2))
    with pytest.raises(DamagedCheckpoint):
        codec.decode(kind, encoded[:length], "x")


@given(st.lists(st.integers(0, 2**32 - 1), max_size=8).map(tuple), st.integers(0, 7), st.integers(1, 2**32 - 1))
def test_a_file_digest_depends_on_every_block(blocks: tuple[int, ...], place: int, change: int) -> None:
    other = list(blocks) or [0]
    other[place % len(other)] ^= change
    assert manifest.blocks_digest(tuple(other)) != manifest.blocks_digest(blocks)
    assert manifest.blocks_digest((*blocks, 0)) != manifest.blocks_digest(blocks)


@given(st.binary(max_size=200))
def test_any_bytes_are_either_decoded_or_named_as_damage(data: bytes) -> None:
    with pytest.raises(DamagedCheckpoint):
        codec.decode(manifest.Commit, data, "x")
