"""The journal of a lineage: one small file per event, created once; nothing is appended to by two writers.

The facts that a start needs (event, generation, step) are in the file's name, so that reading the journal is one listing:
`<milliseconds>-g<generation>-s<step>-<event>-<random>.json`.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from dataclasses import dataclass
from typing import Any

from ckptctl.errors import CkptctlError
from ckptctl.storage import files

COMMIT = "commit"
GENERATION = "generation"
RESUME = "resume"
RECOVER = "recover"
QUARANTINE = "quarantine"
PRUNE = "prune"
STOPPED = "stopped"
DECISION = "decision"
NEVER = "never_restart"

_NAME = re.compile(r"(\d{13,})-g(\d{4,})-s(\d{8,})-([a-z_]+)-[0-9a-f]+\.json")


@dataclass(frozen=True)
class Event:
    """One event as its file's name tells it; `path` holds the rest."""

    time_ms: int
    generation: int
    step: int
    name: str
    path: str


class Journal:
    """The journal folder of one checkpoint root."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def write(self, name: str, generation: int, step: int = 0, **facts: Any) -> None:
        """Record one event durably. Raises `StorageFault` or `OutOfSpace` when that fails."""
        stamp = time.time_ns() // 1_000_000
        file = f"{stamp:013d}-g{generation:04d}-s{step:08d}-{name}-{secrets.token_hex(3)}.json"
        body = {"event": name, "generation": generation, "step": step, "time_ms": stamp, **facts}
        data = json.dumps(body, sort_keys=True, default=str).encode() + b"\n"
        files.create_once(os.path.join(self.folder, file), data)

    def events(self, *wanted: str) -> list[Event]:
        """Return the events (of the wanted names, or all) in the order of their times; foreign files are ignored."""
        found = []
        for file in files.names(self.folder):
            match = _NAME.fullmatch(file)
            if match and (not wanted or match[4] in wanted):
                found.append(Event(int(match[1]), int(match[2]), int(match[3]), match[4], os.path.join(self.folder, file)))
        return sorted(found, key=lambda event: (event.time_ms, event.generation, event.step))

    def facts(self, event: Event) -> dict[str, Any]:
        """Return everything an event recorded; an unreadable file gives only what its name tells."""
        try:
            body = json.loads(files.read(event.path))
        except (CkptctlError, ValueError):
            body = None
        known = {"event": event.name, "generation": event.generation, "step": event.step, "time_ms": event.time_ms}
        return {**body, **known} if isinstance(body, dict) else known
