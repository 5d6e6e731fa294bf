"""What the answers of all nodes mean: refused everywhere, refused on some, silent, or seeing something else."""

from __future__ import annotations

from typing import Any

import pytest

from ckptctl.policy.nodes import judge, name_them, refusal_count


def answer(**changes: Any) -> dict[str, Any]:
    """Return a node's answer about a root that is fine."""
    fine = {
        "allowed": True,
        "exit_code": 0,
        "placement": "SHARED_SERVER",
        "reason": "gluster",
        "remedy": "",
        "writable": True,
        "identity": {"type": "fuse.glusterfs", "source": "srv:/v", "root": "/"},
        "lineage_id": "",
    }
    return {**fine, **changes}


LOCAL = {"allowed": False, "exit_code": 10, "placement": "NODE_LOCAL", "reason": "a disk of this node", "remedy": "use /shared"}


def test_all_fine_is_fine_and_says_what_they_see() -> None:
    verdict = judge({"n1": answer(), "n2": answer()}, {})
    assert verdict.fine
    assert verdict.summary == "2/2 nodes: SHARED_SERVER (gluster)"


@pytest.mark.parametrize("count", [1, 3])
def test_refused_everywhere_is_the_users_mistake_with_its_own_code(count: int) -> None:
    verdict = judge({f"n{number}": answer(**LOCAL) for number in range(count)}, {})
    assert not verdict.blamed
    assert verdict.refused is not None
    assert verdict.refused[0] == 10
    assert "a disk of this node" in verdict.refused[1]
    assert verdict.refused[2] == "use /shared"


def test_refused_on_some_is_those_nodes_fault() -> None:
    verdict = judge({"n1": answer(**LOCAL), "n2": answer(), "n3": answer()}, {})
    assert verdict.blamed == {"n1": "NODE_LOCAL: a disk of this node"}
    assert verdict.refused is None


def test_a_root_that_some_cannot_write_is_those_nodes_fault_and_everywhere_a_fault_of_storage() -> None:
    assert list(judge({"n1": answer(), "n2": answer(writable=False)}, {}).blamed) == ["n2"]
    refused = judge({"n1": answer(writable=False)}, {}).refused
    assert refused is not None
    assert refused[0] == 14


def test_a_silent_node_is_at_fault_with_its_problem() -> None:
    assert judge({"n1": answer()}, {"n2": "not done within 60 s"}).blamed == {"n2": "no answer: not done within 60 s"}


def test_when_nobody_answers_the_scheduler_is_in_question() -> None:
    refused = judge({}, {"n1": "x", "n2": "y"}).refused
    assert refused is not None
    assert refused[0] == 50


@pytest.mark.parametrize(
    ("change", "word"),
    [({"identity": {"type": "nfs", "source": "b:/v", "root": "/"}}, "volume"), ({"lineage_id": "other"}, "lineage")],
)
def test_of_nodes_that_see_different_things_the_smaller_party_is_at_fault(change: dict[str, Any], word: str) -> None:
    verdict = judge({"n1": answer(**change), "n2": answer(), "n3": answer()}, {})
    assert list(verdict.blamed) == ["n1"]
    assert f"another {word}" in verdict.blamed["n1"]


def test_of_many_nodes_the_first_few_are_named_and_the_rest_counted() -> None:
    line = name_them({f"n{number}": "is DOWN" for number in range(9)})
    assert line.startswith("n0 is DOWN; n1 is DOWN")
    assert line.endswith("and 4 more")
    assert name_them({"n1": "is DOWN"}) == "n1 is DOWN"


@pytest.mark.parametrize(
    ("words", "count"), [([], 0), (["x=1", "ckptctl_refused=3"], 3), (["ckptctl_refused=many"], 0), (["ckptctl_refused="], 0)]
)
def test_refusals_are_counted_from_the_comment(words: list[str], count: int) -> None:
    assert refusal_count(words) == count


def test_storage_that_nobody_knows_may_still_be_proved_unless_a_node_knows_worse() -> None:
    strange = {**LOCAL, "placement": "UNKNOWN", "reason": "nobody knows", "provable": True}
    assert judge({"n1": answer(**strange), "n2": answer(**strange)}, {}).provable
    assert not judge({"n1": answer(**strange), "n2": answer(**LOCAL)}, {}).provable
    assert not judge({"n1": answer(**strange)}, {"n2": "silent"}).provable
    assert not judge({"n1": answer(**strange, writable=False)}, {}).provable


def test_storage_that_a_node_of_the_job_serves_is_refused_on_all_and_blames_nobody() -> None:
    served = answer(allowed=False, exit_code=10, placement="UNKNOWN", reason="its server", server_is_local=True, provable=False)
    verdict = judge({"n1": answer(server_is_local=False), "n2": served, "n3": answer()}, {"n4": "silent"})
    assert verdict.refused is not None
    assert (verdict.refused[0], verdict.blamed) == (10, {})
    assert "n2, a node of this job" in verdict.refused[1]
