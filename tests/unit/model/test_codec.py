"""JSON of our files: what is written is read back; what is newer, cut or changed is named."""

from __future__ import annotations

import json

import pytest

from ckptctl.errors import DamagedCheckpoint, ManifestTooNew
from ckptctl.model import codec
from ckptctl.model.manifest import Commit

COMMIT = Commit("0" * 32, 3, 1200, 7, 4, "MANIFEST.0123456789abcdef.json", "ab" * 32)


def test_a_file_is_one_line_with_sorted_keys_and_a_newline() -> None:
    data = codec.encode(COMMIT)
    assert data.endswith(b"}\n")
    assert data.count(b"\n") == 1
    assert list(json.loads(data)) == sorted(json.loads(data))
    assert codec.decode(Commit, data, "x") == COMMIT


def test_a_reader_ignores_keys_it_does_not_know() -> None:
    body = json.loads(codec.encode(COMMIT))
    assert codec.decode(Commit, json.dumps({**body, "colour": "blue"}).encode(), "x") == COMMIT


def test_a_newer_format_is_named_and_is_not_damage_of_the_usual_kind() -> None:
    body = json.loads(codec.encode(COMMIT))
    with pytest.raises(ManifestTooNew, match="format 2 is newer") as caught:
        codec.decode(Commit, json.dumps({**body, "format": 2, "step": "of a new kind"}).encode(), "/root/COMMIT")
    assert caught.value.context == "/root/COMMIT"
    assert caught.value.exit_code == 21


@pytest.mark.parametrize("length", [0, 1, 20, 100, len(codec.encode(COMMIT)) - 2])
def test_a_cut_file_is_damaged(length: int) -> None:
    with pytest.raises(DamagedCheckpoint):
        codec.decode(Commit, codec.encode(COMMIT)[:length], "x")


@pytest.mark.parametrize(
    "change", [{"format": 0}, {"format": "1"}, {"step": "12"}, {"step": None}, {"lineage": 3}, {"world_size": 1.5}]
)
def test_a_field_of_the_wrong_kind_is_damage(change: dict[str, object]) -> None:
    body = json.loads(codec.encode(COMMIT))
    with pytest.raises(DamagedCheckpoint):
        codec.decode(Commit, json.dumps({**body, **change}).encode(), "x")


def test_a_missing_field_is_damage_that_names_it() -> None:
    body = json.loads(codec.encode(COMMIT))
    del body["manifest_digest"]
    with pytest.raises(DamagedCheckpoint, match="manifest_digest"):
        codec.decode(Commit, json.dumps(body).encode(), "x")
