"""The list of durable operations is complete: strace sees no fsync, rename, link or exclusive create outside it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "traced_save.py"
CALLS = "fsync,fdatasync,sync_file_range,syncfs,rename,renameat,renameat2,link,linkat,open,openat,openat2,creat,mkdir,mkdirat"
_CALL = re.compile(r"^(?:\[pid\s+\d+\] |\d+ +)?(\w+)\((.*)\)\s+= (\S+)")
_NAME = re.compile(r'"((?:[^"\\]|\\.)*)"')
_DESCRIPTOR = re.compile(r"^\d+<(.*?)>")
KINDS = {
    "fsync": "fsync",
    "fdatasync": "fsync",
    "sync_file_range": "fsync",
    "syncfs": "fsync",
    "rename": "rename",
    "renameat": "rename",
    "renameat2": "rename",
    "link": "link",
    "linkat": "link",
    "mkdir": "mkdir",
    "mkdirat": "mkdir",
}


def traced(text: str, root: str) -> list[tuple[str, str]]:
    """Return what strace saw under `root` that succeeded, in the words of the announcements."""
    found = []
    for line in text.splitlines():
        match = _CALL.match(line)
        if match is None or match[3].startswith("-1"):
            continue
        call, arguments = match[1], match[2]
        if call in ("open", "openat", "openat2", "creat") and ("O_EXCL" not in arguments or "O_CREAT" not in arguments):
            assert "O_CREAT" not in arguments or root not in arguments, f"a file is created without O_EXCL: {line}"
            continue
        if root not in line:
            continue
        kind = KINDS.get(call, "create")
        names = _NAME.findall(arguments)
        path = _DESCRIPTOR.match(arguments)[1] if kind == "fsync" else names[-1]  # type: ignore[index]
        found.append((kind, os.path.basename(path)))
    return found


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_strace_sees_no_durable_operation_that_was_not_announced(tmp_path: Path) -> None:
    root, out, log = tmp_path / "root", tmp_path / "announced.json", tmp_path / "strace.log"
    command = ["strace", "-f", "-y", "-s", "4096", "--seccomp-bpf", "-e", f"trace={CALLS}", "-o", str(log)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CKPTCTL_", "SLURM_"))}
    done = subprocess.run(
        [*command, sys.executable, str(SCRIPT), str(root), str(out)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
    )
    if done.returncode and "ptrace" in done.stderr.lower() and not out.exists():
        pytest.skip(f"strace may not trace here: {done.stderr.strip().splitlines()[0]}")
    assert done.returncode == 0, done.stderr[-3000:]
    announced = Counter(
        (kind, os.path.basename(path))
        for kind, path in json.loads(out.read_text())
        if kind != "mkdir"  # several are announced that find the folder made already
    )
    seen = Counter(pair for pair in traced(log.read_text(), str(root)) if pair[0] != "mkdir")
    assert sum(seen.values()) > 100
    assert seen - announced == Counter(), "the kernel saw what was not announced"
    assert announced - seen == Counter(), "what was announced did not happen"
