"""Proofs that still hold: of this job's incarnation, these nodes, boots and mounts, for a limited time.

They lie in the user's cache folder, one small file each. A proof that can't be read or written is made again: nothing here
ever fails.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import time
from collections.abc import Mapping
from typing import Any

from ckptctl.checks.child import run_in_child
from ckptctl.errors import CkptctlError

_DEADLINE_S = 2.0  # a home folder may hang too
_LARGEST_BYTES = 4096


def key(user: int, job: str, restart: int, folder: str, nodes: Mapping[str, tuple[str, str]]) -> str:
    """Return the name of a proof: what it was about, and all that ends it but time.

    `nodes` maps each node to its boot id and its mount. Another incarnation of the job, node, boot or mount is another proof.
    """
    body = json.dumps([user, job, restart, folder, sorted((node, *what) for node, what in nodes.items())])
    return hashlib.sha256(body.encode("utf-8", "surrogateescape")).hexdigest()


def load(name: str, ttl_s: float, environment: Mapping[str, str]) -> tuple[dict[str, Any], float] | None:
    """Return what was stored under a name and its age in seconds; None when there is nothing younger than `ttl_s`."""
    path = os.path.join(_folder(environment), name)
    try:
        found: dict[str, Any] = run_in_child(lambda: _read(path), deadline_s=_DEADLINE_S)
        age_s = time.time() - float(found["at"])
    except (CkptctlError, RuntimeError, KeyError, TypeError, ValueError):
        return None
    return (found, age_s) if 0 <= age_s < ttl_s else None


def store(name: str, facts: Mapping[str, Any], ttl_s: float, environment: Mapping[str, str]) -> None:
    """Store facts (JSON) under a name; older proofs are removed."""
    folder, body = _folder(environment), json.dumps({**facts, "at": time.time()}).encode()
    with contextlib.suppress(CkptctlError, RuntimeError):
        run_in_child(lambda: _write(folder, name, body, ttl_s), deadline_s=_DEADLINE_S)


def _folder(environment: Mapping[str, str]) -> str:
    cache = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME") or "/nonexistent", ".cache")
    return os.path.join(cache, "ckptctl", "proofs")


def _read(path: str) -> Any:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with open(fd, "rb") as file:
        if os.fstat(fd).st_uid != os.geteuid():  # somebody else's word
            return None
        return json.loads(file.read(_LARGEST_BYTES))


def _write(folder: str, name: str, body: bytes, ttl_s: float) -> None:
    with contextlib.suppress(OSError):
        os.makedirs(folder, 0o700, exist_ok=True)
        with os.scandir(folder) as entries:
            for entry in entries:
                if time.time() - entry.stat(follow_symlinks=False).st_mtime > ttl_s:
                    os.unlink(entry.path)
        temporary = os.path.join(folder, f".{secrets.token_hex(8)}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(body)
        os.rename(temporary, os.path.join(folder, name))
