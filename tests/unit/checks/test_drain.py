"""Bytes of a JuiceFS mount that are not uploaded yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptctl.checks.drain import staged
from ckptctl.model.mount import MountRow


def row(folder: Path, kind: str = "fuse.juicefs") -> MountRow:
    """Return a row of a mount at a folder."""
    return MountRow(9, 1, 0, 60, "/", str(folder), ("rw",), (), kind, "JuiceFS:x", ("rw",))


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("juicefs_staging_blocks 0\njuicefs_uptime 3\n", 0),
        ("juicefs_staging_blocks 12\njuicefs_staging_block_bytes 99\n", 12),
        ('juicefs_staging_blocks{mp="/jfs",vol_name="x"} 3\n', 3),
        ("juicefs_uptime 3\n", 0),
    ],
)
def test_blocks_that_are_on_this_node_only(tmp_path: Path, text: str, blocks: int) -> None:
    (tmp_path / ".stats").write_text(text)
    found = [finding.facts["blocks"] for finding in staged(row(tmp_path), deadline_s=10)]
    assert found == ([blocks] if blocks else [])
    assert staged(row(tmp_path, "fuse.other"), deadline_s=10) == ()


def test_without_its_statistics_nothing_is_said(tmp_path: Path) -> None:
    assert staged(row(tmp_path), deadline_s=10) == ()
