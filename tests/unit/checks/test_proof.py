"""Tokens: written by one node, read by another, and nothing else is taken for one."""

from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ckptctl.checks import proof
from ckptctl.policy.proof import Proof, judge, peers

SECRET = "s" * 32


def write(folder: Path, node: str, secret: str = SECRET) -> dict[str, object]:
    """Write a node's token."""
    return proof.write_token(str(folder), node, secret, f"boot-{node}", deadline_s=10)


def read(folder: Path, *writers: str, visible_s: float = 0.0) -> dict[str, dict[str, object]]:
    """Read tokens."""
    return proof.read_tokens(str(folder), writers, SECRET, visible_s=visible_s, deadline_s=20)


def test_a_token_is_read_by_another_node(tmp_path: Path) -> None:
    answer = write(tmp_path, "n1")
    assert answer["written"]
    assert answer["boot_id"] == "boot-n1"
    assert " from " in str(answer["view"])
    found = read(tmp_path, "n1")
    assert list(found["seconds"]) == ["n1"]
    assert found["problems"] == {}


def test_a_node_that_does_not_see_the_folder_says_what_it_sees(tmp_path: Path) -> None:
    answer = write(tmp_path / "missing", "n1")
    assert not answer["written"]
    assert "No such file" in str(answer["problem"])
    assert " from " in str(answer["view"])


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (lambda path: path.unlink(), "no token"),
        (lambda path: path.write_text('{"node": "n'), "half a token"),
        (lambda path: path.write_text(json.dumps({"node": "n1", "proof": "0" * 64})), "a token that nobody here wrote"),
        (lambda path: (path.unlink(), path.mkdir()), "Is a directory"),
    ],
)
def test_what_is_no_token_of_this_proof_is_told(tmp_path: Path, harm: object, problem: str) -> None:
    write(tmp_path, "n1")
    harm(tmp_path / "n1.token")  # type: ignore[operator]
    assert read(tmp_path, "n1") == {"seconds": {}, "problems": {"n1": problem}}


def test_a_copy_from_another_proof_or_node_does_not_pass(tmp_path: Path) -> None:
    write(tmp_path, "n1", secret="another")
    write(tmp_path, "n2")
    shutil.copy(tmp_path / "n2.token", tmp_path / "n3.token")
    assert set(read(tmp_path, "n1", "n3")["problems"]) == {"n1", "n3"}


def test_a_token_that_becomes_visible_late_is_waited_for(tmp_path: Path) -> None:
    late = threading.Timer(0.3, lambda: write(tmp_path, "n1"))
    late.start()
    try:
        found = read(tmp_path, "n1", visible_s=10)
    finally:
        late.join()
    assert float(str(found["seconds"]["n1"])) > 0.1


def test_two_nodes_of_one_name_are_found(tmp_path: Path) -> None:
    assert write(tmp_path, "n1")["written"]
    again = write(tmp_path, "n1")
    assert not again["written"]
    assert again["problem"] == "another node is named n1 too"


def test_many_nodes_two_of_which_see_another_folder(tmp_path: Path) -> None:
    nodes = [f"n{number}" for number in range(40)]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    where = {node: tmp_path / ("b" if node in ("n7", "n31") else "a") for node in nodes}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda node: write(where[node], node), nodes))
        answers = dict(zip(nodes, pool.map(lambda node: read(where[node], *peers(node, nodes)), nodes), strict=True))
    seen = {node: list(answers[node]["seconds"]) for node in nodes}
    found = judge(nodes, seen, {}, {node: node for node in nodes}, {})
    assert found.proof is Proof.SPLIT
    assert set(found.blamed) == {"n7", "n31"}
    assert found.groups[1] == ("n7", "n31")
