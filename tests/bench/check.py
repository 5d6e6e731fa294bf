"""`ckptctl check PATH` as a whole process against a bare typer application of two commands, turn by turn in one run.

`python tests/bench/check.py [ROUNDS]` prints medians and their ratio.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

BARE = """
import typer
app = typer.Typer()
@app.command()
def one(path: str) -> None:
    print(path)
@app.command()
def two(path: str) -> None:
    print(path)
app()
"""


def seconds(command: list[str]) -> float:
    """Return how long a command takes, whole process.

    Not by `subprocess.run(timeout=…)`: its wait looks every 50 ms only, which is the difference to be measured.
    """
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    process.wait()
    taken = time.perf_counter() - begun
    watchdog.cancel()
    return taken


def main() -> None:
    """Print the figures."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "bare.py"
        bare.write_text(BARE)
        commands = {
            "bare typer app": [sys.executable, str(bare), "one", "/tmp"],
            "ckptctl check": [str(Path(sys.executable).with_name("ckptctl")), "check", "/tmp"],
        }
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                taken[name].append(seconds(command))
    medians = {name: statistics.median(values[2:] or values) for name, values in taken.items()}
    for name, median in medians.items():
        print(f"{name:16s} {1000 * median:7.1f} ms")
    print(f"ratio {medians['ckptctl check'] / medians['bare typer app']:.2f}")


if __name__ == "__main__":
    main()
