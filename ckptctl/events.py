"""Names of log events and how they are written: one timestamped line each on stderr, or JSON lines.

A log record of ours carries an event name (`extra={"event": ...}`) from this module, so that a reader can filter
by name and never has to match prose.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, TextIO

RUN_START = "run.start"
RUN_ABILITY = "run.ability"
RUN_WARNING = "run.warning"
PROBE = "run.probe"
GENERATION = "generation.taken"
RESUME = "resume.chosen"
LAUNCH = "run.launch"
SIGNAL = "run.signal"
NODE_STATE = "run.node_state"
DECISION = "run.decision"
EXIT = "run.exit"
SAVE = "save.committed"
SAVE_FAILED = "save.failed"
FALLBACK = "engine.fallback"
PRUNE = "retention.prune"
QUARANTINE = "quarantine"
STOP = "train.stop"

_LOGGER = "ckptctl"


def logger() -> logging.Logger:
    """Return ckptctl's logger; without `configure` it says warnings and errors on stderr, as logging does."""
    return logging.getLogger(_LOGGER)


def emit(event: str, message: str, *, level: int = logging.INFO, **fields: Any) -> None:
    """Log one event: a sentence for people, fields for machines."""
    logger().log(level, message, extra={"event": event, "fields": fields})


class LineFormatter(logging.Formatter):
    """`2026-01-31T12:00:00Z ckptctl: message`, one line per event."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line (a message of several lines is indented below the first)."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        return f"{stamp} ckptctl: {level}" + record.getMessage().replace("\n", "\n    ")


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, event, message and the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one JSON object."""
        body: dict[str, Any] = dict(getattr(record, "fields", {}))
        body.update(
            time_ms=int(record.created * 1000),
            level=record.levelname.lower(),
            event=getattr(record, "event", "log"),
            message=record.getMessage(),
        )
        return json.dumps(body, sort_keys=True, default=str)


def configure(*, json_lines: bool = False, level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Send ckptctl's events to `stream` (stderr by default). Calling it again replaces the handler."""
    log = logger()
    for old in list(log.handlers):
        log.removeHandler(old)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if json_lines else LineFormatter())
    log.addHandler(handler)
    log.setLevel(level)
    log.propagate = False
