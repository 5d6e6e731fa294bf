"""`ckptctl run` where Slurm's commands are not: in a container. A root that this node alone shows to be wrong is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("CKPTCTL_", "SLURM_"))}
JOB = {
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURMD_NODENAME": "n1",
    "SLURM_JOB_USER": "ada",
    "PATH": "/nowhere",
}


def test_a_refused_root_is_refused_all_the_same(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ckptctl.cli.main", "run", "--root", "/dev/shm/ckptctl-container", "--", "/bin/true"],
        cwd=tmp_path, env={**ENVIRONMENT, **JOB}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 10, done.stdout
    assert "there is no scontrol here; run ckptctl outside the container" in done.stdout
    assert "only this node is judged" in done.stdout
    assert "VOLATILE" in done.stdout
