"""`prove` on simulated nodes: threads over one file system, each doing what a node does.

`python tests/bench/prove.py [NODES] [FOLDER]` prints the seconds for all tokens to be written and read, the tokens that a node
reads, and the ratio of 1,024 nodes to 64.
"""

from __future__ import annotations

import secrets
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ckptctl.checks import proof
from ckptctl.policy.proof import Proof, judge, peers


def simulate(count: int, base: str | None) -> tuple[float, float, float]:
    """Return seconds of writing, of reading, and the mean number of tokens that a node other than the leader reads."""
    nodes = [f"node{number:04d}" for number in range(count)]
    secret = secrets.token_hex(16)
    folder = tempfile.mkdtemp(prefix="ckptctl-bench-", dir=base)
    try:
        with ThreadPoolExecutor(64) as pool:
            begun = time.monotonic()
            list(pool.map(lambda node: proof.write_here(folder, node, secret, node), nodes))
            written = time.monotonic()
            found = list(pool.map(lambda node: proof.read_here(folder, peers(node, nodes), secret, 90.0), nodes))
            read = time.monotonic()
        seen = {node: list(answer["seconds"]) for node, answer in zip(nodes, found, strict=True)}
        verdict = judge(nodes, seen, {}, {node: node for node in nodes}, {})
        if verdict.proof is not Proof.PROVED:
            raise SystemExit(f"not proved: {verdict.reason}")
        others = [len(peers(node, nodes)) for node in nodes[1:]]
        return written - begun, read - written, sum(others) / len(others)
    finally:
        shutil.rmtree(folder)


def main() -> None:
    """Print the table."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
    base = str(Path(sys.argv[2]).resolve()) if len(sys.argv) > 2 else None
    rows = [(nodes, *simulate(nodes, base)) for nodes in (64, 256, count)]
    print(f"{'nodes':>6} {'write s':>9} {'read s':>9} {'both s':>9} {'tokens read per node':>22}")
    for nodes, write_s, read_s, tokens in rows:
        print(f"{nodes:6d} {write_s:9.2f} {read_s:9.2f} {write_s + read_s:9.2f} {tokens:22.1f}")
    small, large = rows[0][1] + rows[0][2], rows[-1][1] + rows[-1][2]
    print(f"{count} nodes take {large / small:.1f} x as long as 64 ({count / 64:.0f} x as many nodes)")


if __name__ == "__main__":
    main()
