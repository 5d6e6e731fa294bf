"""The commands as a user types them: what they print, where, and the exit code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ckptctl.model.checkpoint import PROOF
from tests.support.lineage import begin

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("CKPTCTL_", "SLURM_"))}


def ckptctl(*arguments: str | Path, **env: str) -> tuple[int, str, str]:
    """Run the command and return exit code, stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "ckptctl.cli.main", *map(str, arguments)],
        env={**ENVIRONMENT, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


def as_json(*arguments: str | Path) -> tuple[int, Any]:
    """Run the command with --json and return exit code and what it printed."""
    code, out, err = ckptctl(*arguments, "--json")
    assert out, err
    return code, json.loads(out)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkpoint root with steps 4 and 8 complete and a torn save."""
    run = begin(tmp_path / "run1")
    run.save(4)
    run.save(8)
    run.until_receipts(12, nodes=["n1"])
    return tmp_path / "run1"


def test_the_version_is_printed() -> None:
    assert ckptctl("--version")[:2] == (0, "ckptctl 0.1.0\n")


def test_help_names_every_command() -> None:
    code, out, _ = ckptctl("--help")
    assert code == 0
    assert all(name in out for name in ("check", "list", "verify", "select", "run", "demo"))


@pytest.mark.parametrize("arguments", [("no-such",), ("check",), ("run", "--root", "/x"), ("verify", "--jobs", "0", "/x")])
def test_a_wrong_command_line_is_exit_2(arguments: tuple[str, ...]) -> None:
    assert ckptctl(*arguments)[0] == 2


# --- check ---------------------------------------------------------------------------------------------------------


def test_check_refuses_memory_and_says_what_to_do() -> None:
    code, out, _ = ckptctl("check", "/dev/shm/x")
    assert code == 10
    assert "REFUSED: VOLATILE" in out
    assert "to do:" in out
    code, seen = as_json("check", "/dev/shm/x")
    assert code == 10
    assert seen["verdict"]["placement"] == "VOLATILE"
    assert seen["path"] == "/dev/shm/x"
    assert not Path("/dev/shm/x").exists()


def test_check_with_a_declaration_allows_a_local_disk_and_creates_nothing(tmp_path: Path) -> None:
    code, seen = as_json("check", tmp_path / "a" / "b", "--single-machine")
    if code == 10:  # the tests themselves run on an overlay
        assert seen["verdict"]["placement"] in ("CONTAINER_EPHEMERAL", "VOLATILE")
        return
    assert code == 0
    assert seen["verdict"]["allowed"]
    assert not (tmp_path / "a").exists()


# --- list ----------------------------------------------------------------------------------------------------------


def test_list_shows_the_checkpoints_newest_first(root: Path) -> None:
    code, rows = as_json("list", root)
    assert code == 0
    assert [(row["step"], row["verdict"], row["world_size"]) for row in rows] == [(8, "COMPLETE", 2), (4, "COMPLETE", 2)]
    code, out, _ = ckptctl("list", root)
    assert code == 0
    assert "2 complete" in out
    assert "step-00000008.g0001" in out


def test_list_shows_the_incarnations(root: Path) -> None:
    _, rows = as_json("list", root, "--incarnations")
    assert [(row["generation"], row["job"], row["last_complete"]) for row in rows] == [(1, "1", 8)]
    assert "1 incarnations" in ckptctl("list", root, "--incarnations")[1]


def test_list_of_what_is_no_root(tmp_path: Path) -> None:
    code, _, err = ckptctl("list", tmp_path / "none")
    assert code == 14
    assert "there is no such folder" in err
    code, _, err = ckptctl("list", tmp_path)
    assert code == 20
    assert "not a checkpoint root" in err
    assert "to do:" in err


# --- verify --------------------------------------------------------------------------------------------------------


def test_verify_of_a_whole_checkpoint(root: Path) -> None:
    folder = root / "step-00000008.g0001"
    assert ckptctl("verify", folder)[0] == 0
    code, seen = as_json("verify", folder, "--deep")
    assert code == 0
    assert (seen["verdict"], seen["grade"], seen["files"], seen["problems"]) == ("COMPLETE", "L3", 3, [])
    assert "GB/s" in ckptctl("verify", folder, "--deep")[1]


def change_a_byte(folder: Path) -> None:
    """Flip one bit of a shard."""
    shard = folder / "__1_0.distcp"
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)


def edit(path: Path, **changes: object) -> None:
    """Change fields of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("harm", "deep", "code", "verdict", "word"),
    [
        (change_a_byte, False, 0, "COMPLETE", ""),
        (change_a_byte, True, 21, "CORRUPT", "__1_0.distcp"),
        (lambda folder: os.truncate(folder / "__1_0.distcp", 9), False, 21, "CORRUPT", "__1_0.distcp has 9 bytes"),
        (lambda folder: (folder / "__0_0.distcp").unlink(), False, 21, "CORRUPT", "__0_0.distcp is missing"),
        (lambda folder: (folder / PROOF / "COMMIT").unlink(), False, 20, "INCOMPLETE", "no COMMIT"),
        (lambda folder: edit(folder / PROOF / "COMMIT", format=99), False, 20, "UNKNOWN", "format 99 is newer"),
        (lambda folder: (folder / PROOF / "COMMIT").write_text("{"), False, 21, "CORRUPT", "not a ckptctl commit"),
        (lambda folder: next((folder / PROOF).glob("MANIFEST.*")).write_text("{}"), False, 21, "CORRUPT", "manifest"),
    ],
)
def test_verify_names_the_damage(root: Path, harm: Any, deep: bool, code: int, verdict: str, word: str) -> None:
    folder = root / "step-00000008.g0001"
    harm(folder)
    found, seen = as_json("verify", folder, *(["--deep"] if deep else []))
    assert (found, seen["verdict"], seen["exit_code"]) == (code, verdict, code)
    assert word in " ".join(seen["problems"])
    if not deep:
        expected = 8 if verdict == "COMPLETE" else 4
        assert as_json("select", root)[1]["step"] == expected


def test_verify_of_what_is_no_checkpoint_folder(root: Path, tmp_path: Path) -> None:
    assert ckptctl("verify", root)[0] == 2
    assert ckptctl("verify", tmp_path / "step-00000008.g0001")[0] == 14


# --- select --------------------------------------------------------------------------------------------------------


def test_select_says_what_a_start_would_take(root: Path) -> None:
    code, seen = as_json("select", root)
    assert (code, seen["step"], seen["folder"], seen["skipped"]) == (0, 8, "step-00000008.g0001", [])
    assert ckptctl("select", root)[1].strip() == str(root / "step-00000008.g0001")


def test_select_for_a_shell_can_be_evaluated(tmp_path: Path) -> None:
    odd = tmp_path / "it's a root; $HOME"
    begin(odd).save(4)
    _, out, _ = ckptctl("select", odd, "--shell")
    script = f'{out}\nprintf "%s|%s" "$CKPTCTL_SELECTED_STEP" "$CKPTCTL_SELECTED_PATH"'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=10)
    assert done.stdout == f"4|{odd}/step-00000004.g0001"


def test_select_of_a_new_root_is_step_0_and_of_one_that_lost_all_is_exit_20(root: Path, tmp_path: Path) -> None:
    begin(tmp_path / "new")
    assert ckptctl("select", tmp_path / "new")[:2] == (0, "step 0: nothing was ever committed here\n")
    for folder in root.glob("step-*"):
        shutil.rmtree(folder)
    code, _, err = ckptctl("select", root)
    assert code == 20
    assert "none of them is complete any more" in err


def test_select_says_why_not_the_newer_ones(root: Path) -> None:
    (root / "step-00000008.g0001" / PROOF / "COMMIT").unlink()
    code, out, _ = ckptctl("select", root)
    assert code == 0
    assert "not step 8 of generation 1: no COMMIT" in out


# --- run and errors ------------------------------------------------------------------------------------------------


def test_run_outside_a_job_says_what_to_do() -> None:
    code, _, err = ckptctl("run", "--root", "/x", "--", "true")
    assert code == 2
    assert "not inside a slurm job" in err
    assert "--scheduler local" in err


def test_an_unknown_scheduler_is_exit_61() -> None:
    code, _, err = ckptctl("run", "--scheduler", "pbs", "--root", "/x", "--", "true")
    assert code == 61
    assert "local, slurm" in err


def test_a_wrong_setting_is_exit_60_and_names_the_variable() -> None:
    code, _, err = ckptctl("check", "/tmp", CKPTCTL_KEEP_LAST="many")
    assert code == 60
    assert "CKPTCTL_KEEP_LAST" in err


def test_with_json_the_last_line_on_stderr_is_the_error(tmp_path: Path) -> None:
    code, out, err = ckptctl("list", tmp_path, "--json")
    assert (code, out) == (20, "")
    seen = json.loads(err.splitlines()[-1])
    assert (seen["type"], seen["code"], seen["reference"]) == ("exit_error", 20, "no-checkpoint")
    assert seen["message"]
    assert seen["hint"]
    assert seen["context"] == str(tmp_path)


def test_a_closed_pipe_is_no_traceback(root: Path) -> None:
    line = f"{sys.executable} -m ckptctl.cli.main list {root} --json | true"
    done = subprocess.run(["sh", "-c", line], env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr


# --- site policy ---------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A user's configuration folder."""
    (tmp_path / "config" / "ckptctl").mkdir(parents=True)
    return tmp_path / "config"


def test_config_show_tells_each_value_and_its_origin(home: Path) -> None:
    file = home / "ckptctl" / "config.toml"
    file.write_text('keep_last = 4\n[policy]\nephemeral_globs = ["/x/*"]\n[[mount]]\npath = "/lustre"\ntype = "lustre"\n')
    code, out, _ = ckptctl("config", "show", "--origin", XDG_CONFIG_HOME=str(home), CKPTCTL_KEEP_EVERY="3")
    assert code == 0
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert lines["keep_last"].split()[1:] == ["4", f"[{file}]"]
    assert lines["keep_every"].split()[1:] == ["3", "[environment]"]
    assert lines["settle_s"].endswith("[built-in]")
    assert "/x/*" in lines["policy.ephemeral_globs"]
    assert "mount /lustre" in out
    code, out, _ = ckptctl("config", "show", "--json", XDG_CONFIG_HOME=str(home))
    assert json.loads(out)["settings"]["keep_last"] == 4


def test_check_obeys_the_site_policy(home: Path, tmp_path: Path) -> None:
    (home / "ckptctl" / "config.toml").write_text(f'[[mount]]\npath = "{tmp_path}"\ntype = "lustre"\n')
    code, out, _ = ckptctl("check", tmp_path / "x", XDG_CONFIG_HOME=str(home))
    assert code == 14
    assert f"MISSING_MOUNT (static)\n  why:   expected lustre at {tmp_path}, found" in out


def test_a_cache_may_lie_in_memory_and_a_checkpoint_may_not() -> None:
    assert ckptctl("check", "/dev/shm/x", "--kind", "dataset-cache")[0] == 0
    assert ckptctl("check", "/dev/shm/x", "--kind", "optimizer")[0] == 10
    assert ckptctl("check", "/dev/shm/x", "--kind", "toys")[0] == 2


def test_a_local_stage_needs_a_durable_target() -> None:
    code, seen = as_json("check", "/dev/shm/x", "--flush-to", "/dev/shm/y")
    assert code == 10
    assert [one["name"] for one in seen["report"]["findings"] if one["name"].startswith("tier")] == ["tier-target-refused"]
    code, seen = as_json("check", "/dev/shm/x", "--local-tier", "/dev/shm/y")
    assert code == 10


# --- capacity, node-check ------------------------------------------------------------------------------------------


def test_checkpoints_that_do_not_fit_are_exit_13_or_the_refusals_own(home: Path, tmp_path: Path) -> None:
    code, out, _ = ckptctl("check", tmp_path, "--single-machine", "--accept-class", "CONTAINER_EPHEMERAL", "--params", "900T")
    assert code == 13
    assert "12 bytes per parameter with fsdp" in out
    code, out, _ = ckptctl("check", tmp_path, "--single-machine", "--accept-class", "CONTAINER_EPHEMERAL", "--size", "1kB")
    assert code == 0
    assert ckptctl("check", tmp_path, "--size", "much")[0] == 2


def test_the_size_of_the_last_checkpoint_is_used_where_there_is_one(root: Path) -> None:
    out = ckptctl("check", root, "--single-machine", "--accept-class", "CONTAINER_EPHEMERAL")[1]
    assert "3 checkpoints of 10.0 kB (as the last one)" in out


def test_node_check_tells_of_every_promised_mount(home: Path) -> None:
    file = home / "ckptctl" / "config.toml"
    assert ckptctl("node-check", XDG_CONFIG_HOME=str(home))[:2] == (0, "ckptctl: 0 promised mount(s), all well\n")
    file.write_text('[[mount]]\npath = "/dev/shm"\ntype = "tmpfs"\n')
    code, out, _ = ckptctl("node-check", XDG_CONFIG_HOME=str(home))
    assert code == 0
    assert "/dev/shm: well" in out
    file.write_text('[[mount]]\npath = "/dev/shm"\n[[mount]]\npath = "/no/such"\ntype = "lustre"\n')
    code, out, _ = ckptctl("node-check", XDG_CONFIG_HOME=str(home))
    assert code == 14
    assert out.splitlines()[-1] == "ckptctl: /no/such MISSING_MOUNT"
    code, out, _ = ckptctl("node-check", "--json", XDG_CONFIG_HOME=str(home))
    seen = json.loads(out)
    assert (seen["well"], seen["reason"]) == (False, "ckptctl: /no/such MISSING_MOUNT")
