"""What a user runs on a login node, or Slurm a thousand times at once, imports no heavy package."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "kvikio", "pyslurm", "numpy", "ckptctl_torch")
_RUN = """
import json, sys
from ckptctl.cli.main import app
sys.argv = ["ckptctl", *json.loads(sys.argv[1])]
try:
    app()
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules)))
"""
_PROBE = """
import json, sys
from ckptctl.cli import probe
probe.main(["/tmp", "--single-machine"])
print(json.dumps(sorted(sys.modules)))
"""


def modules(code: str, *arguments: str) -> set[str]:
    """Run code in a fresh interpreter and return what it had imported at its end."""
    done = subprocess.run([sys.executable, "-c", code, json.dumps(arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("--version",), ("check", "/tmp"), ("check", "/tmp", "--json"), ("list", "/none"), ("run", "--help")],
)
def test_commands_import_no_heavy_package(arguments: tuple[str, ...]) -> None:
    loaded = modules(_RUN, *arguments)
    assert "ckptctl.cli.main" in loaded
    assert not loaded & set(HEAVY)


def test_the_probe_on_every_node_imports_neither_a_heavy_package_nor_typer() -> None:
    assert not modules(_PROBE) & {*HEAVY, "typer", "rich", "click"}
