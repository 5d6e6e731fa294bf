"""`prove` with nodes that are folders: who is asked, when the second question is left out, and what is left behind."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ckptctl.actions.prove import prove
from ckptctl.checks import proof
from ckptctl.cli import probe as command
from ckptctl.errors import CkptctlError, ProofInconclusive, StorageFault
from ckptctl.interfaces import SchedulerCapabilities
from ckptctl.model.job import Job, JobState, Node, TaskAnswer
from ckptctl.policy.proof import Proof
from ckptctl.settings import Settings


class Nodes:
    """Nodes of one job, each with its own view of paths: `elsewhere` maps a node to a folder it sees instead of all."""

    name = "slurm"
    capabilities = SchedulerCapabilities(single_machine=False, launches_tasks=False)

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, names: Sequence[str]) -> None:
        self.capsys, self.monkeypatch = capsys, monkeypatch
        self.names = tuple(names)
        self.boots = {name: f"boot-{name}" for name in names}
        self.blind: set[str] = set()
        self.asked: list[str] = []
        self.arguments: list[str] = []
        self.now = names[0]
        monkeypatch.setattr("ckptctl.registry.scheduler", lambda name: self)

    def this_node(self) -> Node:
        """The node whose task runs now."""
        return Node(self.now, self.boots[self.now])

    def ask_nodes(
        self,
        job: Job,
        argv: Sequence[str],
        *,
        deadline_s: float,
        env: Mapping[str, str] | None = None,
    ) -> list[TaskAnswer]:
        """Run the probe's code for every node, one after the other."""
        self.asked.append(argv[3])
        self.arguments += argv
        answers = []
        for node in job.nodes:
            self.now = node
            words = [word if node not in self.blind else word.replace("/shared", "/elsewhere") for word in argv[3:]]
            with self.monkeypatch.context() as patch:
                for name, value in (env or {}).items():
                    patch.setenv(name, value)
                self.capsys.readouterr()
                command.main(words)
            answers.append(TaskAnswer(node, 0, self.capsys.readouterr().out))
        return answers


@pytest.fixture
def nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """Three nodes and an empty cache."""
    (tmp_path / "shared").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Nodes(capsys, monkeypatch, ("n1", "n2", "n3"))


def job(nodes: Nodes, restart: int = 0) -> Job:
    """Return the job of all nodes."""
    return Job("12", restart, "me", JobState.RUNNING, nodes.names, nodes.names[0])


SETTINGS = Settings(visible_s=0.2, probe_deadline_s=10)


def ask(nodes: Nodes, tmp_path: Path, *, restart: int = 0, settings: Settings = SETTINGS, **options: Any) -> Any:
    """Prove, and return the result with the questions that were asked."""
    nodes.asked.clear()
    result = prove(nodes, job(nodes, restart), str(tmp_path / "shared" / "run"), settings, **options)  # type: ignore[arg-type]
    assert os.listdir(tmp_path / "shared") == []
    return result


def test_a_proof_holds_for_the_incarnation_and_is_made_again_after_it(nodes: Nodes, tmp_path: Path) -> None:
    both, one = ["--write-token", "--read-tokens"], ["--write-token"]
    first = ask(nodes, tmp_path)
    assert (first.verdict.proof, first.age_s, nodes.asked) == (Proof.PROVED, None, both)
    again = ask(nodes, tmp_path)
    assert (again.verdict, nodes.asked) == (first.verdict, one)
    assert again.age_s is not None
    assert again.visible_max_s == first.visible_max_s
    assert (ask(nodes, tmp_path, fresh=True).age_s, nodes.asked) == (None, both)
    assert (ask(nodes, tmp_path, restart=1).age_s, nodes.asked) == (None, both)
    assert (ask(nodes, tmp_path, settings=Settings(visible_s=0.2, proof_ttl_s=0)).age_s, nodes.asked) == (None, both)
    nodes.boots["n3"] = "another"
    assert (ask(nodes, tmp_path).age_s, nodes.asked) == (None, both)


def test_a_node_that_sees_something_else_is_named_whatever_was_proved_before(nodes: Nodes, tmp_path: Path) -> None:
    ask(nodes, tmp_path)
    nodes.blind.add("n2")
    for _ in range(2):  # a split is never remembered
        found = ask(nodes, tmp_path)
        assert (found.verdict.proof, set(found.verdict.blamed), found.age_s) == (Proof.SPLIT, {"n2"}, None)
        assert nodes.asked == ["--write-token", "--read-tokens"]


def test_one_boot_id_on_all_nodes_is_never_a_proof_nor_remembered(nodes: Nodes, tmp_path: Path) -> None:
    nodes.boots = dict.fromkeys(nodes.names, "same")
    for _ in range(2):
        found = ask(nodes, tmp_path)
        assert (found.verdict.proof, found.age_s) == (Proof.UNPROVED_SINGLE_NODE, None)


def test_the_secret_is_in_no_argument(nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckptctl.actions.prove.secrets.token_hex", lambda count: "5ec" * count if count == 16 else "0" * count)
    ask(nodes, tmp_path)
    assert nodes.arguments
    assert not any("5ec5ec" in word for word in nodes.arguments)


def test_many_nodes_fit_into_the_arguments() -> None:
    longest = 128 * 1024  # of one argument, in bytes (MAX_ARG_STRLEN)
    assert len(",".join(f"gpu-rack{number:05d}" for number in range(8192))) < longest


@pytest.mark.parametrize(
    ("user", "number", "expected"), [(0, 13, ProofInconclusive), (1000, 13, StorageFault), (0, 30, StorageFault)]
)
def test_a_root_that_is_squashed_proves_nothing(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, number: int, expected: type[CkptctlError]
) -> None:
    def refused(path: str, deadline_s: float) -> str:
        raise StorageFault("no", context=path) from OSError(number, f"within {deadline_s}")

    monkeypatch.setattr(proof, "open_folder", refused)
    monkeypatch.setattr("ckptctl.actions.prove.os.geteuid", lambda: user)
    with pytest.raises(expected):
        ask(nodes, tmp_path)


def test_the_folder_is_its_users_alone_and_old_ones_are_removed(tmp_path: Path) -> None:
    old = tmp_path / ".ckptctl-proof-old"
    old.mkdir()
    os.utime(old, (1, 1))
    folder = proof.open_folder(str(tmp_path / "a" / "b"), deadline_s=10)
    assert Path(folder).parent == tmp_path
    assert Path(folder).stat().st_mode & 0o077 == 0
    assert not old.exists()
    proof.close_folder(folder)
    assert list(tmp_path.iterdir()) == []
    proof.close_folder(folder)
