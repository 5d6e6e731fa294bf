"""What `ckptctl run` starts once on every node: one JSON line about the checkpoint root as that node sees it.

Kept out of the typer application: it runs on a thousand nodes at once and must start fast.
"""

from __future__ import annotations

import argparse
import json
import sys

from ckptctl.actions.check import probe_node
from ckptctl.checks.child import run_in_child
from ckptctl.errors import CkptctlError
from ckptctl.model.verdict import Placement
from ckptctl.storage import files


def main(argv: list[str] | None = None) -> int:
    """Print this node's answer, or whether it reads the nonce in `--nonce-file`."""
    parser = argparse.ArgumentParser(prog="ckptctl probe", description=__doc__)
    parser.add_argument("path")
    parser.add_argument("--nonce-file", default="")
    parser.add_argument("--single-machine", action="store_true")
    parser.add_argument("--accept", action="append", default=[])
    parser.add_argument("--job", default=None)
    parser.add_argument("--temporary", action="append", default=[])
    parser.add_argument("--deadline", type=float, default=10.0)
    asked = parser.parse_args(argv)
    if asked.nonce_file:
        print(json.dumps({"nonce": _nonce(asked.nonce_file, asked.deadline)}))
        return 0
    answer = probe_node(
        asked.path,
        single_machine=asked.single_machine,
        accept=frozenset(Placement(word) for word in asked.accept),
        deadline_s=asked.deadline,
        job_id=asked.job,
        temporary_dirs=tuple(asked.temporary),
    )
    print(json.dumps(answer, sort_keys=True))
    return 0


def _nonce(path: str, deadline_s: float) -> str:
    try:
        found = run_in_child(lambda: files.read(path).decode(), deadline_s=deadline_s)
    except CkptctlError as exc:
        return f"not read: {exc.message}"
    return str(found)


if __name__ == "__main__":
    sys.exit(main())
