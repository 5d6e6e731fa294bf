"""How results look: tables for people, JSON for programs, and the one place where an exception becomes an exit code."""

from __future__ import annotations

import dataclasses
import json
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

from ckptctl.errors import CkptctlError


def jsonable(value: Any) -> Any:
    """Return a result as plain JSON values: dataclasses as objects, enums as their values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [jsonable(item) for item in value]
    return value


def print_json(value: Any) -> None:
    """Print a result as JSON on stdout."""
    print(json.dumps(jsonable(value), indent=2, sort_keys=True))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table on stdout; plain when stdout is no terminal."""
    from rich.console import Console
    from rich.table import Table

    console = Console(soft_wrap=False, width=None if sys.stdout.isatty() else 160)
    drawn = Table(title=title, title_justify="left", box=None if not sys.stdout.isatty() else _box(), pad_edge=False)
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for row in rows:
        drawn.add_row(*("" if cell is None else str(cell) for cell in row))
    console.print(drawn)


def _box() -> Any:
    from rich import box

    return box.SIMPLE_HEAD


def size(count: int | None) -> str:
    """Return a number of bytes for people."""
    if count is None:
        return ""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return ""


def guarded(action: Callable[[], int], *, as_json: bool) -> int:
    """Run a command and turn whatever it raises into an exit code; the only catch-all of the program.

    With `--json` the last line on stderr is an `exit_error` object.
    """
    try:
        return action()
    except CkptctlError as exc:
        code, reference, message, context, hint = exc.exit_code, exc.reference, exc.message, exc.context, exc.hint
        if not as_json:
            print(f"ckptctl: {exc.render()}", file=sys.stderr)
    except BrokenPipeError:
        return 141
    except KeyboardInterrupt:
        code, reference, message, context, hint = 130, "interrupted", "interrupted", "", ""
        if not as_json:
            print("ckptctl: interrupted", file=sys.stderr)
    except Exception as exc:  # noqa: BLE001 - the one catch-all: a bug becomes exit code 1 with its traceback
        traceback.print_exc()
        code, reference, message, context = 1, "bug", f"a bug in ckptctl: {type(exc).__name__}: {exc}", ""
        hint = "please report it with the lines above"
        if not as_json:
            print(f"ckptctl: {message}\n  to do: {hint}", file=sys.stderr)
    if as_json:
        error = {"type": "exit_error", "code": code, "reference": reference, "message": message}
        print(json.dumps({**error, "context": context, "hint": hint}, sort_keys=True), file=sys.stderr)
    return code
