"""Folders that a check makes for a moment in somebody's folder: unique names, and what killed checks left of them."""

from __future__ import annotations

import os
import secrets
import shutil
import time

_LEFTOVER_S = 3600.0
_LISTED_AT_MOST = 10_000


def new_name(folder: str, prefix: str) -> str:
    """Return a name in `folder` that nobody has used or looked up before."""
    return os.path.join(folder, prefix + secrets.token_hex(8))


def remove_leftovers(folder: str, prefix: str) -> None:
    """Remove the folders of this user that begin with `prefix` and are an hour old: their makers were killed.

    Looks at 10,000 names at most. Can hang.
    """
    try:
        with os.scandir(folder) as entries:
            for _, entry in zip(range(_LISTED_AT_MOST), entries, strict=False):
                if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False):
                    seen = entry.stat(follow_symlinks=False)
                    if seen.st_uid == os.geteuid() and time.time() - seen.st_mtime > _LEFTOVER_S:
                        shutil.rmtree(entry.path, ignore_errors=True)
    except OSError:
        return
