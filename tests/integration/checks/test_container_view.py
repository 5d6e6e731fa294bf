"""A rank in a container: the root bound elsewhere is the root, a layer over it is not, whatever it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.namespaces import inside, unavailable

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "-")

RANK = """
import os, subprocess, sys
from ckptctl.errors import NotShared
from ckptctl.saving.posix import PosixEngine
from ckptctl.saving.session import Session
from ckptctl.storage import mounts
from tests.support.lineage import begin
folder, setup = sys.argv[1:3]
told = begin(folder + "/team/run1").leader.incarnation
before = mounts.place(told.root)
subprocess.run(["bash", "-c", "set -e; cd " + folder + "; " + setup], check=True)
try:
    Session(told, rank=0, placement=("n1",), engine=PosixEngine()).verify()
    print("same", mounts.place(told.root) == before)
except NotShared as exc:
    print("refused", exc.message)
"""


def test_a_layer_over_the_root_shows_its_files_and_is_refused(tmp_path: Path) -> None:
    setup = "mkdir mem; mount -t tmpfs x mem; mkdir mem/up mem/work; "
    setup += "mount -t overlay over -o lowerdir=team,upperdir=mem/up,workdir=mem/work team"
    said = inside(tmp_path, "true", RANK, str(tmp_path), setup)
    assert said.startswith("refused node n1 (rank 0) does not see the checkpoint root as the batch host does"), said
    assert "through another mount, overlay from" in said


@pytest.mark.parametrize("what", ["team", "team/run1"])
def test_a_bind_of_a_part_at_the_same_path_is_the_same(tmp_path: Path, what: str) -> None:
    assert inside(tmp_path, "true", RANK, str(tmp_path), f"mount --bind {what} {what}") == "same True\n"


def test_a_bind_of_another_folder_there_is_seen_by_its_lineage(tmp_path: Path) -> None:
    said = inside(tmp_path, "mkdir -p other/run1", RANK, str(tmp_path), "mount --bind other team")
    assert said.startswith("refused"), said
