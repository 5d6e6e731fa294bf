"""`check` and `probe_node` as functions: exit codes, findings, and that looking changes nothing."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from ckptctl.actions.check import CheckResult, check, probe_node
from ckptctl.checks.capabilities import probe
from ckptctl.checks.path import findings
from ckptctl.errors import UsageError
from ckptctl.model.verdict import Confidence, Placement
from ckptctl.storage.mounts import examine

ROOT = Path(__file__).resolve().parents[3]
MIB = 1024 * 1024
# What lets a test's folder pass on any machine where it is on a disk or in a container.
LOCAL: dict[str, Any] = {"single_machine": True, "accept": frozenset({Placement.CONTAINER_EPHEMERAL})}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    result = check(str(tmp_path), **LOCAL)
    if not result.verdict.allowed:
        pytest.skip(f"the temporary folder of this machine is {result.verdict.placement.value}")
    return str(tmp_path)


def names(result: CheckResult) -> list[str]:
    return [finding.name for finding in result.report.findings]


def test_a_folder_of_a_single_machine(folder: str) -> None:
    result = check(folder, **LOCAL)
    assert (result.exit_code, result.verdict.confidence) == (0, Confidence.DECLARED)
    assert result.facts is not None
    assert result.facts == replace(examine(folder), free_bytes=result.facts.free_bytes, free_inodes=result.facts.free_inodes)
    assert names(result)[0] == "placement"
    assert result.report.worst.value in ("info", "warning")  # a disk can be nearly full
    assert result.report.subject == folder


def test_the_same_folder_is_refused_for_many_machines(folder: str) -> None:
    result = check(folder)
    assert (result.exit_code, result.verdict.allowed) == (10, False)
    assert result.report.findings[0].severity.value == "error"
    assert result.report.findings[0].remedy


def test_a_result_is_json(folder: str) -> None:
    result = check(folder, **LOCAL)
    assert json.loads(json.dumps(asdict(result)))["verdict"]["placement"] == result.verdict.placement.value


def test_looking_and_probing_leave_nothing(folder: str) -> None:
    before = os.stat(folder).st_mtime_ns
    check(folder, **LOCAL)
    probe_node(folder)
    assert os.stat(folder).st_mtime_ns == before
    result = check(folder, probe=True, **LOCAL)
    assert os.listdir(folder) == []
    assert {"probed", "no-direct-io"} & set(names(result))
    assert result.exit_code == 0


def test_nothing_is_written_where_the_path_is_refused_or_missing(folder: str) -> None:
    before = os.stat(folder).st_mtime_ns
    assert "not-probed" in names(check(folder, probe=True))
    assert "not-probed" in names(check(f"{folder}/later", probe=True, **LOCAL))
    assert os.stat(folder).st_mtime_ns == before


def test_a_missing_folder_passes_with_a_word(folder: str) -> None:
    result = check(f"{folder}/later/run", **LOCAL)
    assert result.exit_code == 0
    assert "missing-folder" in names(result)


def test_a_dangling_symlink_is_warned_about(folder: str) -> None:
    os.symlink(f"{folder}/gone", f"{folder}/link")
    result = check(f"{folder}/link", **LOCAL)
    found = next(finding for finding in result.report.findings if finding.name == "dangling-link")
    assert (result.exit_code, found.where, found.severity.value) == (0, f"{folder}/link", "warning")


def test_a_file_is_refused_with_14(folder: str) -> None:
    Path(folder, "file").touch()
    result = check(f"{folder}/file", **LOCAL)
    assert (result.exit_code, "not-writable" in names(result)) == (14, True)


def test_a_folder_of_the_job_is_only_a_matter_of_shared_storage(folder: str) -> None:
    assert check(f"{folder}/4711", job_ids=("4711",), **LOCAL).exit_code == 0


def test_a_loop_of_symlinks_is_refused(folder: str) -> None:
    os.symlink("b", f"{folder}/a")
    os.symlink("a", f"{folder}/b")
    result = check(f"{folder}/a", **LOCAL)
    assert (result.exit_code, result.verdict.placement, result.facts) == (14, Placement.UNKNOWN, None)
    assert result.report.findings[1].facts == {"errno": errno.ELOOP}


def test_what_is_no_path_is_the_callers_mistake() -> None:
    with pytest.raises(UsageError):
        check("")


def test_a_deadline_that_is_too_short_is_unreachable(folder: str) -> None:
    started = time.monotonic()
    result = check(folder, deadline_s=0.0)
    assert (result.exit_code, result.verdict.placement) == (14, Placement.UNREACHABLE)
    assert "not-reachable" in names(result)
    assert probe_node(folder, deadline_s=0.0)["placement"] == "UNREACHABLE"
    assert time.monotonic() - started < 2


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to look as another user")
@pytest.mark.parametrize(("mode", "name", "placement"), [(0o700, "not-accessible", "UNKNOWN"), (0o755, "not-writable", "")])
def test_permissions_give_14_and_never_a_verdict_on_another_folder(mode: int, name: str, placement: str) -> None:
    code = (
        "import json, os, sys; from ckptctl.actions.check import check, probe_node\n"
        "from ckptctl.model.verdict import Placement; accept = frozenset({Placement.CONTAINER_EPHEMERAL})\n"
        "os.setegid(65534); os.seteuid(65534); result = check(sys.argv[1], single_machine=True, accept=accept)\n"
        "print(json.dumps([result.exit_code, result.verdict.placement.value, result.verdict.allowed,\n"
        "  [finding.name for finding in result.report.findings], probe_node(sys.argv[1])]))"
    )
    with tempfile.TemporaryDirectory() as above:
        os.chmod(above, mode)
        path = f"{above}/run"
        if check(above, **LOCAL).exit_code:
            pytest.skip("the temporary folder of this machine is in memory")
        os.mkdir(path, 0o755)
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, env=env)
    exit_code, found, allowed, seen, node = json.loads(done.stdout or "null")
    assert exit_code == 14, done.stderr
    assert name in seen
    assert (found == placement) if placement else allowed
    assert node["writable"] is False
    if placement:
        assert (node["real"], node["identity"], node["exit_code"]) == (None, None, 14)
    else:
        assert node["writable_errno"] == errno.EACCES


# --- space, from facts ---


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"free_bytes": 0}, {"no-space": "error"}),
        ({"free_bytes": MIB - 1}, {"no-space": "error"}),
        ({"free_bytes": MIB}, {"low-space": "warning"}),
        ({"free_bytes": 99 * MIB}, {"low-space": "warning"}),
        ({"free_bytes": 100 * MIB}, {}),
        ({"free_inodes": 0, "total_inodes": 10}, {"no-inodes": "error"}),
        ({"free_inodes": 0, "total_inodes": None}, {}),  # BeeGFS counts none: unknown, not full
        ({"free_inodes": None, "total_inodes": None}, {}),
        ({"free_bytes": 0, "total_bytes": 0}, {}),
    ],
)
def test_space(tmp_path: Path, changes: dict[str, int | None], expected: dict[str, str]) -> None:
    some: dict[str, Any] = {"free_bytes": 900 * MIB, "total_bytes": 1000 * MIB, "free_inodes": 5, "total_inodes": 10}
    facts = replace(examine(str(tmp_path)), **{**some, **changes})
    found = {finding.name: finding.severity.value for finding in findings(facts)}
    assert {name: level for name, level in found.items() if "space" in name or "inodes" in name} == expected


def test_the_inodes_that_an_object_store_makes_up_are_not_looked_at(tmp_path: Path) -> None:
    facts = replace(examine(str(tmp_path)), free_inodes=0, total_inodes=1_000_000_000)  # as rclone says it
    on_rclone = replace(facts, mount=replace(facts.mount, type="fuse.rclone"))
    assert "no-inodes" in {finding.name for finding in findings(facts)}
    assert "no-inodes" not in {finding.name for finding in findings(on_rclone)}


def test_a_probe_of_a_folder_that_is_gone(tmp_path: Path) -> None:
    found = probe(f"{tmp_path}/gone", deadline_s=10)
    assert [(finding.name, finding.severity.value) for finding in found] == [("not-writable", "error")]
    assert found[0].facts["errno"] == errno.ENOENT


# --- one node's answer ---


def test_the_answer_of_a_node(folder: str) -> None:
    answer = probe_node(folder, **LOCAL)
    assert json.loads(json.dumps(answer)) == answer
    assert set(answer) == {
        *("path", "real", "placement", "confidence", "allowed", "provable", "reason", "remedy", "exit_code", "identity"),
        *("missing", "writable", "writable_errno", "lineage_visible", "lineage_id", "lineage_problem", "server_is_local"),
    }
    assert (answer["real"], answer["allowed"], answer["exit_code"], answer["missing"]) == (folder, True, 0, False)
    assert answer["identity"] == asdict(examine(folder).mount.identity)
    assert (answer["writable"], answer["writable_errno"]) == (True, 0)
    assert (answer["lineage_visible"], answer["lineage_id"], answer["lineage_problem"]) == (False, None, "")


@pytest.mark.parametrize(
    ("text", "lineage_id", "problem"),
    [
        ('{"format": 1, "id": "01J9"}', "01J9", ""),
        ('{"format": 9, "id": "01J9", "new": []}', "01J9", ""),
        ('{"format": 1, "id": 7}', None, "no id"),
        ("[]", None, "no id"),
        ("", None, "JSON"),
        ('{"id": "01', None, "JSON"),
        ("\udcff", None, "JSON"),
    ],
)
def test_the_lineage_that_a_node_sees(folder: str, text: str, lineage_id: str | None, problem: str) -> None:
    os.mkdir(f"{folder}/.ckptctl")
    Path(folder, ".ckptctl", "lineage.json").write_bytes(os.fsencode(text))
    answer = probe_node(folder, **LOCAL)
    assert (answer["lineage_visible"], answer["lineage_id"]) == (True, lineage_id)
    assert problem in answer["lineage_problem"]


def test_a_lineage_is_looked_for_where_the_path_really_is(folder: str) -> None:
    os.makedirs(f"{folder}/there/.ckptctl")
    Path(folder, "there", ".ckptctl", "lineage.json").write_text('{"id": "x"}')
    os.symlink("there", f"{folder}/here")
    answer = probe_node(f"{folder}/here")
    assert (answer["path"], answer["real"], answer["lineage_id"]) == (f"{folder}/here", f"{folder}/there", "x")
