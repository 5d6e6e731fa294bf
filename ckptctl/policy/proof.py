"""Who has to read whose token, and what the readings mean: which nodes truly share a folder. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

ALL_TO_ALL_NODES = 64
"""Up to this many nodes everybody reads everybody; above, the leader reads all, and each node the leader and neighbours."""
NEIGHBOURS = 8


class Proof(str, Enum):
    """What the nodes' readings of each other's tokens prove."""

    PROVED = "PROVED"
    SPLIT = "SPLIT"
    UNPROVED_SINGLE_NODE = "UNPROVED_SINGLE_NODE"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True)
class ProofVerdict:
    """The verdict, the groups of nodes that share the folder (largest first), and the nodes at fault with their reasons.

    `widespread` says that more nodes are outside the largest group than in it: the file system is at fault then, and no
    node is to be excluded.
    """

    proof: Proof
    groups: tuple[tuple[str, ...], ...]
    blamed: Mapping[str, str]
    reason: str
    widespread: bool = False

    @property
    def exit_code(self) -> int:
        """0 proved, 11 split, 12 anything else."""
        return {Proof.PROVED: 0, Proof.SPLIT: 11}.get(self.proof, 12)


def peers(me: str, nodes: Sequence[str]) -> tuple[str, ...]:
    """Return whose tokens `me` reads; the first of `nodes` leads. The graph of all readings is connected.

    Each node's work is bounded above `ALL_TO_ALL_NODES`, the leader's grows with the nodes.
    """
    if len(nodes) <= ALL_TO_ALL_NODES or me == nodes[0]:
        return tuple(node for node in nodes if node != me)
    place = nodes.index(me)
    near = (nodes[(place + offset) % len(nodes)] for offset in range(1, NEIGHBOURS + 1))
    return tuple(dict.fromkeys(node for node in (nodes[0], *near) if node != me))


def groups(nodes: Sequence[str], seen: Mapping[str, Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Return the connected components of "has read the token of", largest first, of equals the one with the earliest node.

    A token is written under one node's view of the path and read under another's: one direction is enough.
    """
    parent = {node: node for node in nodes}

    def root(node: str) -> str:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for reader, written_by in seen.items():
        for writer in written_by:
            parent[root(writer)] = root(reader)
    order = {node: number for number, node in enumerate(nodes)}
    found: dict[str, list[str]] = {}
    for node in nodes:
        found.setdefault(root(node), []).append(node)
    return tuple(tuple(group) for group in sorted(found.values(), key=lambda group: (-len(group), order[group[0]])))


def judge(
    nodes: Sequence[str],
    seen: Mapping[str, Sequence[str]],
    silent: Mapping[str, str],
    boots: Mapping[str, str],
    views: Mapping[str, str],
) -> ProofVerdict:
    """Judge the readings of `nodes` that answered; `silent` maps the others to their problem.

    `boots` are the nodes' boot ids: where there is only one, nothing was proved across machines. `views` say what a node
    sees at the path, for the reason.
    """
    parts = groups(nodes, seen)
    blamed = {node: f"no answer: {problem}" for node, problem in silent.items()}
    if not nodes:
        return ProofVerdict(Proof.INCONCLUSIVE, (), blamed, "no node answered")
    largest = parts[0]
    total = len(nodes) + len(silent)
    if len(parts) > 1 or silent:
        for group in parts[1:]:
            blamed.update({node: f"does not share it: sees {views.get(node, 'something else')}" for node in group})
        reason = f"{len(largest)}/{total} nodes share it"
        return ProofVerdict(Proof.SPLIT, parts, blamed, reason, widespread=2 * len(blamed) > total)
    if total < 2 or len({boots.get(node, "") for node in nodes}) < 2:
        what = "one node alone proves nothing" if total < 2 else "all nodes have the same boot id: they are one machine"
        return ProofVerdict(Proof.UNPROVED_SINGLE_NODE, parts, {}, what)
    return ProofVerdict(Proof.PROVED, parts, {}, f"{total}/{total} nodes share it")
