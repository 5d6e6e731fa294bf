"""Asking the tools of a file system: which one, for whom, by when. The tools are scripts here, `quota` also the real one."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ckptctl.actions.check import check
from ckptctl.checks import tools
from ckptctl.model.mount import MountRow, PathFacts
from ckptctl.model.quota import Component
from ckptctl.storage.mounts import examine

K = 1024


def facts(folder: Path, kind: str, options: tuple[str, ...] = ("rw",), source: str = "s") -> PathFacts:
    """Return facts of a real folder as if another file system were there."""
    seen = examine(str(folder))
    row = MountRow(9, 1, 0, 60, "/", "/m", ("rw",), (), kind, source, options)
    return replace(seen, mount=row)


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that puts a script with a name first in PATH; it logs its arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(name: str, body: str) -> Path:
        log = tmp_path / f"{name}.log"
        script = folder / name
        script.write_text(f'#!/bin/sh\necho "$@" >>{log}\n{body}\n')
        script.chmod(0o755)
        return log

    return make


def test_lustre_is_asked_for_the_user_the_group_and_the_project(tmp_path: Path, tool) -> None:
    body = """case "$1 $3" in
"project "*) echo "  77 P $3" ;;
"quota -u") echo "/m 10 0 100 - 5 0 0 -" ;;
"quota -g") echo "/m 10 0 0 - 5 0 0 -" ;;
"quota -p") echo "/m 20* 10 40 6d - 5 0 50 -" | sed 's/6d - /6d /' ;;
esac"""
    log = tool("lfs", body)
    found, unknown = tools.quotas(facts(tmp_path, "lustre"), deadline_s=10)
    assert unknown == ""
    user = f"user {os.geteuid()}"
    assert [(quota.name, quota.limit_bytes, quota.grace) for quota in found] == [
        (user, 100 * K, ""),
        ("project 77", 40 * K, "6d"),
    ]
    assert f"quota -q -g {os.getegid()} {tmp_path}" in log.read_text()


def test_a_folder_that_hands_its_group_down_is_asked_for_that_group(tmp_path: Path, tool) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root (another group)")
    log = tool("lfs", "")
    os.chown(tmp_path, -1, 4711)
    os.chmod(tmp_path, 0o2755)
    tools.quotas(facts(tmp_path, "lustre"), deadline_s=10)
    assert "-g 4711" in log.read_text()


def test_gpfs_is_asked_for_the_fileset_of_the_path(tmp_path: Path, tool) -> None:
    tool("mmlsattr", 'echo "fileset name:   team-a"')
    header = "mmlsquota::HEADER:quotaType:name:blockUsage:blockQuota:blockLimit:filesUsage:filesQuota:filesLimit:"
    log = tool("mmlsquota", f'echo "{header}"; case "$2" in -j) echo "mmlsquota::0:FILESET:$3:1:0:9:1:0:0:" ;; esac')
    found, _ = tools.quotas(facts(tmp_path, "gpfs", source="/dev/gpfs0"), deadline_s=10)
    assert [(quota.name, quota.hard_bytes) for quota in found] == [("fileset team-a", 9 * K)]
    assert "-Y -j team-a gpfs0" in log.read_text()


@pytest.mark.parametrize(
    ("kind", "options", "asked"),
    [
        ("nfs4", ("rw",), True),
        ("ext4", ("rw",), False),
        ("ext4", ("rw", "usrquota"), True),
        ("ext4", ("rw", "usrjquota=aquota.user"), True),
        ("xfs", ("rw", "noquota"), False),
        ("xfs", ("rw", "prjquota"), True),
        ("beegfs", ("rw", "quota"), False),
    ],
)
def test_local_disks_are_asked_only_when_they_keep_quotas(
    tmp_path: Path,
    tool,
    kind: str,
    options: tuple[str, ...],
    asked: bool,
) -> None:
    tool("quota", 'echo "x"; echo " /m 1 0 2 0 1 0 0 0"; exit 1')
    found, unknown = tools.quotas(facts(tmp_path, kind, options), deadline_s=10)
    assert [quota.hard_bytes for quota in found] == ([2 * K, 2 * K] if asked else [])
    assert unknown == ""


def test_a_tool_that_is_not_there_is_told(tmp_path: Path) -> None:
    if tools.find("mmlsquota"):
        pytest.skip("this machine has Storage Scale")
    assert tools.quotas(facts(tmp_path, "gpfs"), deadline_s=10) == ([], "no `mmlsquota` on this node")


def test_a_tool_that_does_not_answer_is_killed_in_time(tmp_path: Path, tool) -> None:
    pid = tmp_path / "pid"
    tool("quota", f"echo $$ >{pid}; exec sleep 600")
    begun = time.monotonic()
    assert tools.quotas(facts(tmp_path, "nfs4"), deadline_s=1.5)[0] == []
    assert time.monotonic() - begun < 3
    limit = time.monotonic() + 5
    while os.path.exists(f"/proc/{pid.read_text().strip()}"):
        assert time.monotonic() < limit, "the tool runs on"
        time.sleep(0.02)


@pytest.mark.skipif(shutil.which("quota") is None, reason="needs quota (Debian: quota)")
def test_the_real_quota_takes_these_options(tmp_path: Path) -> None:
    words = ["quota", "-w", "-p", "-Q", "--show-mntpoint", "--hide-device", "--filesystem=/", "-u", str(os.geteuid())]
    done = subprocess.run(words, capture_output=True, text=True)
    assert "no quota enabled" in done.stderr or "Disk quotas for" in done.stdout, done.stderr
    tools.quotas(facts(tmp_path, "xfs", ("rw", "usrquota")), deadline_s=10)


def test_the_layout_of_a_lustre_folder(tmp_path: Path, tool) -> None:
    log = tool("lfs", 'echo "stripe_count:  4 stripe_size: 1048576 stripe_offset: -1"')
    assert tools.layout(facts(tmp_path, "lustre"), deadline_s=10) == (Component(0, None, 4),)
    assert log.read_text() == f"getstripe -d {tmp_path}\n"
    assert tools.layout(facts(tmp_path, "ext4"), deadline_s=10) == ()


def seen_as(monkeypatch: pytest.MonkeyPatch, seen: PathFacts) -> None:
    """Have `check` see these facts."""
    monkeypatch.setattr("ckptctl.actions.check.look", lambda path, deadline_s: seen)


def test_check_counts_quotas_and_tells_a_layout(tmp_path: Path, tool, monkeypatch: pytest.MonkeyPatch) -> None:
    body = 'case "$1 $3" in "quota -u") echo "/m 95 0 100 - 5 0 0 -" ;; "getstripe "*) echo "stripe_count: -1 x" ;; esac'
    tool("lfs", body)
    seen_as(monkeypatch, replace(facts(tmp_path, "lustre"), magic=0x0BD00BD0))
    found = check(str(tmp_path))
    names = {finding.name: finding for finding in found.report.findings}
    assert found.exit_code == 0
    assert "nearly used up" in names["low-quota"].message
    assert "all OSTs" in names["lustre-layout"].message
    tool("lfs", 'case "$1 $3" in "quota -u") echo "/m 100* 0 100 - 5 0 0 -" ;; esac')
    found = check(str(tmp_path))
    assert (found.exit_code, "no-quota" in {finding.name for finding in found.report.findings}) == (13, True)


def test_a_probe_on_lustre_finds_files_that_stay_on_this_node(tmp_path: Path, tool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen_as(monkeypatch, replace(facts(tmp_path, "lustre"), magic=0x0BD00BD0))
    tool("lfs", 'case "$1" in pcc) echo "file: $3, type: readwrite, PCC_file: /x" ;; esac')
    found = check(str(tmp_path), probe=True)
    assert (found.verdict.placement.value, found.verdict.allowed, found.exit_code) == ("SHARED_WRITEBACK", False, 10)
    assert "PCC" in found.verdict.reason
    tool("lfs", 'case "$1" in pcc) echo "file: $3, type: none" ;; esac')
    assert check(str(tmp_path), probe=True).exit_code == 0
