"""What `ckptctl run` starts once on every node: one JSON line about the checkpoint root as that node sees it.

Kept out of the typer application: it runs on a thousand nodes at once and must start fast.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from ckptctl import registry, settings
from ckptctl.actions.check import probe_node
from ckptctl.checks import proof
from ckptctl.model.verdict import Placement
from ckptctl.policy.proof import peers


def main(argv: list[str] | None = None) -> int:
    """Print this node's answer: about a path, or its part in a proof (`checks.proof`)."""
    parser = argparse.ArgumentParser(prog="ckptctl probe", description=__doc__)
    parser.add_argument("path", nargs="?", default="")
    parser.add_argument("--single-machine", action="store_true")
    parser.add_argument("--accept", action="append", default=[])
    parser.add_argument("--job", action="append", default=[])
    parser.add_argument("--temporary", action="append", default=[])
    parser.add_argument("--deadline", type=float, default=10.0)
    parser.add_argument("--write-token", default="")
    parser.add_argument("--read-tokens", default="")
    parser.add_argument("--nodes", default="")
    parser.add_argument("--absent", default="")
    parser.add_argument("--visible", type=float, default=0.0)
    parser.add_argument("--scheduler", default="auto")
    asked = parser.parse_args(argv)
    if asked.write_token or asked.read_tokens:
        answer = _prove(asked)
    else:
        answer = probe_node(
            asked.path,
            single_machine=asked.single_machine,
            accept=frozenset(Placement(word) for word in asked.accept),
            deadline_s=asked.deadline,
            job_ids=asked.job,
            temporary_dirs=tuple(asked.temporary),
            site=settings.load().site,
        )
    print(json.dumps(answer, sort_keys=True))
    return 0


def _prove(asked: argparse.Namespace) -> dict[str, Any]:
    me, secret = registry.scheduler(asked.scheduler).this_node(), os.environ[proof.SECRET_VARIABLE]
    if asked.write_token:
        return proof.write_token(asked.write_token, me.name, secret, me.boot_id, deadline_s=asked.deadline)
    absent = set(asked.absent.split(","))
    wanted = [node for node in peers(me.name, asked.nodes.split(",")) if node not in absent]
    return proof.read_tokens(asked.read_tokens, wanted, secret, visible_s=asked.visible, deadline_s=asked.deadline)


if __name__ == "__main__":
    sys.exit(main())
