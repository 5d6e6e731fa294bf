"""Drawing of the demo: a progress bar per incarnation, the table, the proof, and one refusal."""

from __future__ import annotations

import sys
import time
from typing import Any

from ckptctl import settings
from ckptctl.actions.demo import DemoEvent, DemoResult
from ckptctl.actions.demo import demo as play
from ckptctl.cli import output


def demo(root: str, steps: int, accept_class: str | None, as_json: bool) -> int:
    """Play the demo and show what came of it. Exit 0 when both runs ended bit for bit the same and a node was lost mid-save."""
    accepted = settings.load({"accept_class": accept_class}).accepted
    begun = time.monotonic()
    with _Stage(live=sys.stdout.isatty() and not as_json, silent=as_json) as stage:
        result = play(root, steps, stage.show, accepted)
    well = result.identical and result.receipts_at_kill > 0
    if as_json:
        output.print_json({**output.jsonable(result), "identical": result.identical})
        return 0 if well else 1
    _report(result, time.monotonic() - begun)
    return 0 if well else 1


def _report(result: DemoResult, seconds: float) -> None:
    print(f"checkpoint root: {result.root}\n  placement: {result.placement}")
    output.table(
        "Incarnations",
        ("generation", "nodes", "ended by", "resumed at", "reached", "lost steps", "seconds"),
        [
            (row.generation, " ".join(row.nodes), row.cause, row.resumed, row.reached, row.lost_steps, f"{row.seconds:.1f}")
            for row in result.incarnations
        ],
    )
    if result.receipts_at_kill:
        print(
            f"Node {result.victim} was killed in the save of step {result.mid_save_step}, "
            f"with {result.receipts_at_kill} receipt of 2;\n  set aside: {', '.join(result.quarantined)}"
        )
    else:
        print("No save was caught in the middle: every one was faster than the killer. Run it again.")
    word = "bit for bit the same" if result.identical else "DIFFERENT"
    print(f"Final parameters: {word}\n  undisturbed  {result.undisturbed}\n  after a loss {result.fingerprint}")
    refused = result.refusal.verdict
    print(f"\n$ ckptctl check /dev/shm/x\n/dev/shm/x: REFUSED: {refused.placement.value}: {refused.reason}")
    print(f"  to do: {refused.remedy}\n  exit code {result.refusal.exit_code}")
    print(f"\nDone in {seconds:.0f} s. Look around: ckptctl list {result.root}")


class _Stage:
    """Progress bars on a terminal; elsewhere one line per change of incarnation."""

    def __init__(self, *, live: bool, silent: bool) -> None:
        self._bars: Any = None
        self._tasks: dict[tuple[str, int], Any] = {}
        self._live, self._silent = live, silent

    def __enter__(self) -> _Stage:
        if self._live:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bars = Progress(*columns)
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def show(self, event: DemoEvent) -> None:
        """Show one event."""
        key = (event.run, event.restart)
        title = f"{event.run} run, incarnation {event.restart + 1}"
        if self._bars is not None:
            if event.text:
                self._bars.console.print(event.text)
            if key not in self._tasks:
                self._tasks[key] = self._bars.add_task(title, total=event.total)
            self._bars.update(self._tasks[key], completed=event.step)
        elif not self._silent and (event.text or key not in self._tasks):
            self._tasks[key] = True
            print(event.text or f"{title}: from step {event.step} to {event.total}", flush=True)
