"""A file system that really hangs: its FUSE server takes requests and never answers, so that even SIGKILL waits."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# Answers FUSE_INIT, then reads requests and keeps them. A process that waits for the answer to a request that was read
# is in state D and reacts to no signal until the connection ends.
SCENE = r"""
import ctypes, json, os, signal, struct, subprocess, sys, time
folder = sys.argv[1]
fuse = os.open("/dev/fuse", os.O_RDWR)
options = b"fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % fuse
if ctypes.CDLL(None, use_errno=True).mount(b"stuck", folder.encode(), b"fuse", 0, options):
    sys.exit(77)
server = os.fork()
if server == 0:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # ends with the scene, whatever ends that: nothing stays stuck
    while True:
        request = os.read(fuse, 1 << 20)
        opcode, unique = struct.unpack_from("<IQ", request, 4)
        if opcode == 26:
            init = struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 12, 9, 4096, 1, 0, 0, 0)
            os.write(fuse, struct.pack("<IiQ", 16 + len(init), 0, unique) + init)
os.close(fuse)
look = '''
import json, sys, time
from ckptctl.actions.check import check, probe_node
started = time.monotonic()
result = check(sys.argv[1], deadline_s=float(sys.argv[2]))
node = probe_node(sys.argv[1], deadline_s=float(sys.argv[2])) if sys.argv[3] == "twice" else None
took = time.monotonic() - started
print(json.dumps([result.verdict.placement.value, result.exit_code, took, node and node["placement"]]))
'''
def run(*arguments):
    # Reads up to the end of its output: a stuck child that held on to that would be noticed here.
    command = [sys.executable, "-c", look, *arguments]
    started = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=20, text=True)
    return [*json.loads(done.stdout), time.monotonic() - started]
def stuck():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            state = open(f"/proc/{pid}/stat").read().rpartition(") ")[2][0]
            line = open(f"/proc/{pid}/cmdline", "rb").read().decode(errors="replace")
        except OSError:
            continue
        if state == "D" and folder in line:
            found.append(int(pid))
    return found
hung = run(folder + "/run", "0.5", "twice")
in_d = stuck()
os.kill(server, signal.SIGKILL)
os.waitpid(server, 0)
ended = run(folder + "/run", "10", "once")
limit = time.monotonic() + 10
while stuck() and time.monotonic() < limit:
    time.sleep(0.02)
print(json.dumps({"hung": hung, "stuck": len(in_d), "ended": ended, "left": len(stuck())}))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root (mounts)")
@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="needs /dev/fuse")
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_a_mount_that_hangs_or_has_lost_its_client_is_unreachable_by_the_deadline(tmp_path: Path) -> None:
    (tmp_path / "stuck").mkdir()
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", sys.executable, "-c", SCENE, str(tmp_path / "stuck")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    if done.returncode == 77 or "may not" in done.stderr:
        pytest.skip("this machine can't mount FUSE")
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    placement, exit_code, took_s, node, whole_s = seen["hung"]
    assert (placement, exit_code, node) == ("UNREACHABLE", 14, "UNREACHABLE")
    assert took_s < 2  # twice half a second
    assert whole_s < 4
    assert seen["stuck"] == 2  # else this test proves nothing
    # The server has ended: ENOTCONN, at once, and the stuck ones are free to die.
    placement, exit_code, took_s, _, _ = seen["ended"]
    assert (placement, exit_code) == ("UNREACHABLE", 14)
    assert took_s < 5
    assert seen["left"] == 0
