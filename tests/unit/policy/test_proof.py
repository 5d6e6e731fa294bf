"""Who reads whose token, and what the readings mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptctl.policy.proof import ALL_TO_ALL_NODES, NEIGHBOURS, Proof, groups, judge, peers


def names(count: int) -> list[str]:
    """Return node names."""
    return [f"n{number}" for number in range(1, count + 1)]


@given(st.integers(1, 300))
def test_everybody_is_connected_to_everybody_by_the_readings(count: int) -> None:
    nodes = names(count)
    assert len(groups(nodes, {node: peers(node, nodes) for node in nodes})) == 1


@given(st.integers(ALL_TO_ALL_NODES + 1, 400), st.data())
def test_above_the_limit_each_nodes_readings_are_bounded_but_the_leaders(count: int, data: st.DataObject) -> None:
    nodes = names(count)
    me = data.draw(st.sampled_from(nodes[1:]))
    assert len(peers(me, nodes)) <= NEIGHBOURS + 1
    assert nodes[0] in peers(me, nodes)
    assert me not in peers(me, nodes)
    assert len(peers(nodes[0], nodes)) == count - 1


@given(st.lists(st.integers(0, 3), min_size=2, max_size=120))
def test_nodes_are_grouped_by_what_they_share_whatever_the_split(shares: list[int]) -> None:
    nodes = names(len(shares))
    where = dict(zip(nodes, shares, strict=True))
    seen = {node: [peer for peer in peers(node, nodes) if where[peer] == where[node]] for node in nodes}
    found = groups(nodes, seen)
    assert sorted(node for group in found for node in group) == sorted(nodes)
    assert all(len({where[node] for node in group}) == 1 for group in found), "never two shares in one group"
    assert [len(group) for group in found] == sorted((len(group) for group in found), reverse=True)
    if len(nodes) <= ALL_TO_ALL_NODES:
        assert len(found) == len(set(shares))


def verdict(shares: dict[str, int], silent: dict[str, str] | None = None, one_boot: bool = False) -> object:
    """Judge nodes that see folders by number."""
    nodes = list(shares)
    seen = {node: [peer for peer in nodes if peer != node and shares[peer] == shares[node]] for node in nodes}
    boots = {node: "same" if one_boot else node for node in nodes}
    return judge(nodes, seen, silent or {}, boots, {node: f"folder {shares[node]}" for node in nodes})


def test_all_share() -> None:
    found = verdict({"n1": 1, "n2": 1, "n3": 1})
    assert (found.proof, found.exit_code, found.blamed) == (Proof.PROVED, 0, {})
    assert found.reason == "3/3 nodes share it"


def test_the_smaller_groups_are_named_with_what_they_see() -> None:
    found = verdict({"n1": 1, "n2": 2, "n3": 1, "n4": 1, "n5": 3})
    assert (found.proof, found.exit_code) == (Proof.SPLIT, 11)
    assert found.blamed == {"n2": "does not share it: sees folder 2", "n5": "does not share it: sees folder 3"}
    assert not found.widespread
    assert found.reason == "3/5 nodes share it"


def test_silent_nodes_are_named_with_their_problem() -> None:
    found = verdict({"n1": 1, "n2": 1}, {"n3": "the node is DOWN"})
    assert found.proof is Proof.SPLIT
    assert found.blamed == {"n3": "no answer: the node is DOWN"}


def test_when_most_nodes_are_outside_the_largest_group_the_file_system_is_at_fault() -> None:
    assert verdict({f"n{number}": number for number in range(5)}).widespread
    assert not verdict({"n1": 1, "n2": 2}).widespread


@pytest.mark.parametrize("shares", [{"n1": 1}, {"n1": 1, "n2": 1}])
def test_one_machine_alone_proves_nothing(shares: dict[str, int]) -> None:
    found = verdict(shares, one_boot=True)
    assert (found.proof, found.exit_code, found.blamed) == (Proof.UNPROVED_SINGLE_NODE, 12, {})


def test_nobody_answers() -> None:
    found = judge([], {}, {"n1": "x"}, {}, {})
    assert (found.proof, found.exit_code) == (Proof.INCONCLUSIVE, 12)
