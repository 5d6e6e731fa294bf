"""One node's part in the proof that nodes share a folder: write a token, then read the others'. The leader makes the folder.

Names and secret come from outside, never through the file system, so that nobody has looked the names up before (no negative
lookup is cached) and no copy of a folder passes. Tokens are opened, not looked for: opening revalidates on close-to-open file
systems, `stat` and listings may be served from a cache (nfs(5)). All of it happens in children with a deadline.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ckptctl.checks import scratch
from ckptctl.checks.child import run_in_child
from ckptctl.errors import CkptctlError, DeadlineExceeded, StorageFault
from ckptctl.storage import files, mounts

SECRET_VARIABLE = "CKPTCTL_PROOF_SECRET"  # noqa: S105 - a name
"""Where the nodes find the secret: in their environment, which only their user can read, never in their arguments."""
_PREFIX = ".ckptctl-proof-"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 1.0
_REMOVE_S = 10.0


def open_folder(path: str, *, deadline_s: float) -> str:
    """Make the folder for the tokens (leader), in `path` or its nearest existing parent; return its name.

    Also removes what killed proofs of this user left there. Raises `StorageFault`, also where the path does not answer.
    """
    try:
        folder: str = run_in_child(lambda: _open(path), deadline_s=deadline_s)
    except DeadlineExceeded as exc:
        hint = "look at its mount on this node: `ckptctl check` says more"
        raise StorageFault(f"the path does not answer on this node: {exc.message}", context=path, hint=hint) from exc
    return folder


def _open(path: str) -> str:
    parent = os.path.abspath(path)
    while not os.path.isdir(parent):
        parent = os.path.dirname(parent)
    scratch.remove_leftovers(parent, _PREFIX)
    folder = scratch.new_name(parent, _PREFIX)
    files.make_folder(folder, private=True)
    return folder


def close_folder(folder: str) -> None:
    """Remove the folder with its tokens; what can't be removed now is left to the next proof there."""
    with contextlib.suppress(CkptctlError):
        run_in_child(lambda: files.remove_tree(folder), deadline_s=_REMOVE_S)


def write_token(folder: str, node: str, secret: str, boot_id: str, *, deadline_s: float) -> dict[str, Any]:
    """Write this node's token into the proof folder.

    Returns `written`, `boot_id`, `view` (what is mounted here, for people), `mount` (the mount itself, until it is mounted
    anew) and `problem`. A folder that is not there is an answer, not an error: this node does not see what the leader made.
    """
    try:
        answer: dict[str, Any] = run_in_child(lambda: write_here(folder, node, secret, boot_id), deadline_s=deadline_s)
    except (DeadlineExceeded, StorageFault) as exc:
        return _not_written(boot_id, "a mount that does not answer", exc.message)
    return answer


def read_tokens(folder: str, writers: Iterable[str], secret: str, *, visible_s: float, deadline_s: float) -> dict[str, Any]:
    """Read the tokens of `writers`, each again and again with a fresh open until it is there or `visible_s` has passed.

    Returns `seconds` (writer → time until its token was read) and `problems` (writer → what was there instead).
    """
    wanted = tuple(writers)
    try:
        answer: dict[str, Any] = run_in_child(lambda: read_here(folder, wanted, secret, visible_s), deadline_s=deadline_s)
    except (DeadlineExceeded, StorageFault) as exc:
        return {"seconds": {}, "problems": dict.fromkeys(wanted, exc.message)}
    return answer


def write_here(folder: str, node: str, secret: str, boot_id: str) -> dict[str, Any]:
    """Do the part of `write_token` that may hang."""
    view = mount = "nothing"
    try:
        nearest = folder
        while not os.path.lexists(nearest) and nearest != os.path.dirname(nearest):
            nearest = os.path.dirname(nearest)
        row = mounts.row_at(nearest)
        seen = row.identity
        view = f"{seen.type} from {seen.source or '(no source)'}" + ("" if seen.root == "/" else f", folder {seen.root}")
        mount = f"{row.id} {row.major}:{row.minor} {seen.type} {seen.source} {seen.root}"
        body = json.dumps({"node": node, "proof": _sign(secret, node), "boot_id": boot_id}).encode()
        files.create_in_staging(os.path.join(folder, _name(node)), body)
    except FileExistsError:
        return _not_written(boot_id, view, f"another node is named {node} too")
    except CkptctlError as exc:
        return _not_written(boot_id, view, exc.message)
    return {"written": True, "boot_id": boot_id, "view": view, "mount": mount, "problem": ""}


def _not_written(boot_id: str, view: str, problem: str) -> dict[str, Any]:
    return {"written": False, "boot_id": boot_id, "view": view, "mount": "", "problem": problem}


def read_here(folder: str, wanted: Sequence[str], secret: str, visible_s: float) -> dict[str, Any]:
    """Do the part of `read_tokens` that may hang."""
    begun = time.monotonic()
    left: dict[str, str] = dict.fromkeys(wanted, "nothing")
    seconds: dict[str, float] = {}
    pause = _FIRST_PAUSE_S
    while True:
        for writer in list(left):
            problem = _read_one(os.path.join(folder, _name(writer)), writer, secret)
            if problem:
                left[writer] = problem
            else:
                seconds[writer] = round(time.monotonic() - begun, 4)
                del left[writer]
        if not left or time.monotonic() - begun >= visible_s:
            return {"seconds": seconds, "problems": left}
        time.sleep(min(pause, max(0.0, visible_s - (time.monotonic() - begun))))
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _read_one(path: str, writer: str, secret: str) -> str:
    """Return an empty string when the token is there and right, else what is there."""
    try:
        with open(path, "rb") as file:
            body: Mapping[str, Any] = json.loads(file.read())
    except FileNotFoundError:
        return "no token"
    except OSError as exc:
        return os.strerror(exc.errno or 0)
    except ValueError:
        return "half a token"
    return "" if hmac.compare_digest(str(body.get("proof")), _sign(secret, writer)) else "a token that nobody here wrote"


def _name(node: str) -> str:
    return f"{node}.token"


def _sign(secret: str, node: str) -> str:
    return hmac.new(secret.encode(), node.encode(), "sha256").hexdigest()
