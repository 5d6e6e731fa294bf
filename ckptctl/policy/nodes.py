"""What the answers of all nodes about one checkpoint root mean. Pure; all nodes are heard before anybody is judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NodesVerdict:
    """Either the root is fine on all nodes, or it is refused on all (`refused`), or single nodes are at fault (`blamed`).

    `refused` is the exit code with the reason; `blamed` maps a node to its reason; `storage_only` says that no node was
    at fault for being silent.
    """

    blamed: Mapping[str, str]
    refused: tuple[int, str, str] | None = None
    summary: str = ""
    provable: bool = False
    """Whether all nodes refuse it only because nobody knows the file system: a proof may still allow it."""

    @property
    def fine(self) -> bool:
        """Whether the job may start here."""
        return not self.blamed and self.refused is None


def judge(answers: Mapping[str, Mapping[str, Any]], silent: Mapping[str, str]) -> NodesVerdict:
    """Judge the nodes' answers (see `actions.check.probe_node` for their keys) and the `silent` nodes' problems.

    Refused everywhere is the user's mistake, whoever asks; refused on some nodes only is those nodes' fault, the batch host
    included. Of nodes that see different volumes or lineages the smaller party is at fault.
    """
    for node, answer in answers.items():
        if answer.get("server_is_local"):
            reason = f"its server is {node}, a node of this job, which can be lost with it: {answer['reason']}"
            return NodesVerdict({}, (10, reason, "use storage that is served by nodes which run no jobs"))
    blamed = {node: f"no answer: {problem}" for node, problem in silent.items()}
    good = {node: answer for node, answer in answers.items() if _fault(answer) is None}
    bad = {node: fault for node, answer in answers.items() if (fault := _fault(answer)) is not None}
    if not good:
        if not bad:
            return NodesVerdict(blamed, (50, "no node of the job answered", "look at the nodes' slurmd logs"))
        first = next(iter(bad))
        code, reason, remedy = bad[first]
        where = f"on all {len(bad)} nodes that answered" if len(answers) > 1 else f"on {first}"
        provable = not silent and all(answer.get("provable") and answer["writable"] for answer in answers.values())
        return NodesVerdict({}, (code, f"{where}: {reason}", remedy), provable=provable)
    blamed.update({node: reason for node, (_, reason, _) in bad.items()})
    for key, what in ((_identity, "volume"), (_lineage, "lineage")):
        views = {node: key(answer) for node, answer in good.items() if node not in blamed}
        common = Counter(views.values()).most_common(1)[0][0]
        blamed.update(
            {node: f"sees another {what} there: {view}, not {common}" for node, view in views.items() if view != common}
        )
    first_good = next(node for node in good if node not in blamed)
    sees = f"{good[first_good]['placement']} ({good[first_good]['reason']})"
    summary = f"{len(good) - len(set(good) & set(blamed))}/{len(answers) + len(silent)} nodes: {sees}"
    return NodesVerdict(blamed, None, summary)


def name_them(blamed: Mapping[str, str], limit: int = 5) -> str:
    """Return the blamed nodes with their reasons in one line; of many, the first few."""
    shown = [f"{node} {reason}" for node, reason in list(blamed.items())[:limit]]
    more = len(blamed) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")


def _fault(answer: Mapping[str, Any]) -> tuple[int, str, str] | None:
    if not answer["allowed"]:
        return (int(answer["exit_code"]) or 10, f"{answer['placement']}: {answer['reason']}", str(answer["remedy"]))
    if not answer["writable"]:
        return (14, "the root is not writable for this user", "give this user write permission on the checkpoint root")
    return None


def _identity(answer: Mapping[str, Any]) -> str:
    identity = answer["identity"] or {}
    return f"{identity.get('type')} {identity.get('source')} {identity.get('root')}"


def _lineage(answer: Mapping[str, Any]) -> str:
    return str(answer["lineage_id"] or "none")


def refusal_count(words: Sequence[str]) -> int:
    """Return how often a job was sent back before training, from its comment's words (`ckptctl_refused=N`)."""
    for word in words:
        key, _, value = word.partition("=")
        if key == "ckptctl_refused" and value.isdigit():
            return int(value)
    return 0
