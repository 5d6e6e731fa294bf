"""One node's part in the proof that nodes share a folder: write a token, then read the others'.

Names and secret come from outside, never through the file system, so that nobody has looked the names up before (no negative
lookup is cached) and no copy of a folder passes. Tokens are opened, not looked for: opening revalidates on close-to-open file
systems, `stat` and listings may be served from a cache (nfs(5)).
"""

from __future__ import annotations

import hmac
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ckptctl.checks.child import run_in_child
from ckptctl.errors import CkptctlError, DeadlineExceeded, StorageFault
from ckptctl.storage import files, mounts

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 1.0


def write_token(folder: str, node: str, secret: str, boot_id: str, *, deadline_s: float) -> dict[str, Any]:
    """Write this node's token into the proof folder. Returns `written`, `boot_id`, `view` (what is mounted here), `problem`.

    A folder that is not there is an answer, not an error: this node does not see what the leader made.
    """

    try:
        answer: dict[str, Any] = run_in_child(lambda: write_here(folder, node, secret, boot_id), deadline_s=deadline_s)
    except (DeadlineExceeded, StorageFault) as exc:
        return {"written": False, "boot_id": boot_id, "view": "a mount that does not answer", "problem": exc.message}
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
    view = "nothing"
    try:
        nearest = folder
        while not os.path.lexists(nearest) and nearest != os.path.dirname(nearest):
            nearest = os.path.dirname(nearest)
        seen = mounts.identity(nearest)
        view = f"{seen.type} from {seen.source or '(no source)'}" + ("" if seen.root == "/" else f", folder {seen.root}")
        body = json.dumps({"node": node, "proof": _sign(secret, node), "boot_id": boot_id}).encode()
        files.create_in_staging(os.path.join(folder, _name(node)), body)
    except FileExistsError:
        return {"written": False, "boot_id": boot_id, "view": view, "problem": f"another node is named {node} too"}
    except CkptctlError as exc:
        return {"written": False, "boot_id": boot_id, "view": view, "problem": exc.message}
    return {"written": True, "boot_id": boot_id, "view": view, "problem": ""}


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
