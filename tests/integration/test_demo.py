"""`ckptctl demo` as a newcomer runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_the_demo_loses_a_node_in_mid_save_and_ends_bit_for_bit_the_same(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CKPTCTL_", "SLURM_"))}
    done = subprocess.run(
        [sys.executable, "-m", "ckptctl.cli.main", "demo", "--root", str(tmp_path / "demo"), "--json"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout)
    assert seen["identical"]
    assert seen["fingerprint"] == seen["undisturbed"]
    assert seen["receipts_at_kill"] == 1, "one of two nodes had left its receipt"
    first, second = seen["incarnations"]
    assert seen["victim"] in first["nodes"]
    assert seen["victim"] not in second["nodes"]
    assert second["resumed"] == seen["mid_save_step"] - 4
    assert first["lost_steps"] <= 4
    assert "single machine" in seen["placement"]
    assert seen["refusal"]["exit_code"] == 10
    assert seen["quarantined"]
