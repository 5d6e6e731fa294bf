"""Proofs that still hold, and what ends them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ckptctl.checks import proof_cache

NODES = {"n1": ("boot1", "40 0:50 lustre s /"), "n2": ("boot2", "41 0:50 lustre s /")}


def key(**changes: object) -> str:
    """Return a key that differs in something."""
    values: dict[str, object] = {"user": 7, "job": "12", "restart": 0, "folder": "/s/run", "nodes": NODES, **changes}
    return proof_cache.key(**values)  # type: ignore[arg-type]


def test_a_proof_is_of_one_incarnation_its_nodes_boots_and_mounts() -> None:
    others = [
        {"user": 8},
        {"job": "13"},
        {"restart": 1},
        {"folder": "/s/run2"},
        {"nodes": {"n1": NODES["n1"]}},
        {"nodes": {**NODES, "n3": ("boot3", "x")}},
        {"nodes": {**NODES, "n2": ("boot9", NODES["n2"][1])}},
        {"nodes": {**NODES, "n2": ("boot2", "42 0:51 lustre s /")}},
    ]
    assert key() == key(nodes=dict(reversed(NODES.items())))
    assert len({key(), *(key(**other) for other in others)}) == 1 + len(others)


def test_what_is_stored_is_found_until_it_is_too_old(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert proof_cache.load(key(), 3600, home) is None
    proof_cache.store(key(), {"visible_max_s": 0.5}, 3600, home)
    found = proof_cache.load(key(), 3600, home)
    assert found is not None
    assert found[0]["visible_max_s"] == 0.5
    assert 0 <= found[1] < 60
    assert proof_cache.load(key(), 0.0, home) is None
    assert proof_cache.load(key(job="13"), 3600, home) is None
    assert proof_cache.load(key(), 3600, {"XDG_CACHE_HOME": str(tmp_path / ".cache")}) is not None


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"at": "x"}', '{"at": 99999999999}', '{"at": null}', "\0"])
def test_what_is_no_proof_or_from_the_future_is_none(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "ckptctl" / "proofs"
    folder.mkdir(parents=True)
    (folder / key()).write_text(text)
    assert proof_cache.load(key(), 3600, {"XDG_CACHE_HOME": str(tmp_path)}) is None


def test_a_link_or_somebody_elses_file_is_not_believed(tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    proof_cache.store(key(), {}, 3600, cache)
    path = tmp_path / "ckptctl" / "proofs" / key()
    if os.geteuid() == 0:
        os.chown(path, 4711, -1)
        assert proof_cache.load(key(), 3600, cache) is None
        os.chown(path, 0, -1)
    path.rename(tmp_path / "real")
    path.symlink_to(tmp_path / "real")
    assert proof_cache.load(key(), 3600, cache) is None


def test_old_proofs_are_removed_and_nobody_else_can_read_one(tmp_path: Path) -> None:
    cache, folder = {"XDG_CACHE_HOME": str(tmp_path)}, tmp_path / "ckptctl" / "proofs"
    for job in ("1", "2"):
        proof_cache.store(key(job=job), {}, 3600, cache)
    os.utime(folder / key(job="1"), (time.time() - 7200,) * 2)
    proof_cache.store(key(job="3"), {}, 3600, cache)
    assert {path.name for path in folder.iterdir()} == {key(job="2"), key(job="3")}
    assert (folder / key(job="3")).stat().st_mode & 0o077 == 0


def test_a_home_that_can_not_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / ".cache").touch()
    proof_cache.store(key(), {}, 3600, {"HOME": str(tmp_path)})
    assert proof_cache.load(key(), 3600, {"HOME": str(tmp_path)}) is None
    proof_cache.store(key(), {}, 3600, {})
