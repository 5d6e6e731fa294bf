"""Settings: TOML files, environment, flags; frozen, each value with its origin.

Later sources win: built-in, `/etc/ckptctl/config.toml`, `~/.config/ckptctl/config.toml`, `CKPTCTL_<NAME>`, flags.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import tomli

from ckptctl.errors import SettingsInvalid
from ckptctl.model.verdict import Placement

SYSTEM_FILE = "/etc/ckptctl/config.toml"


@dataclass(frozen=True)
class Settings:
    """Everything that can be set. Times end in `_s`; `docs/reference/settings.md` describes each."""

    keep_last: int = 2
    keep_every: int = 10
    save_deadline_s: float = 1800.0
    settle_s: float = 5.0
    silent_s: float = 900.0
    probe_deadline_s: float = 60.0
    visible_s: float = 90.0
    node_poll_s: float = 2.0
    suspect_grace_s: float = 60.0
    end_grace_s: float = 10.0
    budget_application: int = 3
    budget_infrastructure: int = 10
    exclude_hours: float = 24.0
    writer_threads: int = 4
    accept_class: str = ""
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def accepted(self) -> frozenset[Placement]:
        """The placement classes accepted beyond the rules, from a comma-separated `accept_class`."""
        try:
            return frozenset(Placement(word.strip().upper()) for word in self.accept_class.split(",") if word.strip())
        except ValueError:
            raise SettingsInvalid(
                f"accept_class names no placement class: {self.accept_class!r}",
                context=self.origins.get("accept_class", ""),
                hint="one of: " + ", ".join(Placement),
            ) from None


_KINDS: dict[str, type] = {"int": int, "float": float, "str": str}
_FIELDS = {spec.name: _KINDS[str(spec.type)] for spec in fields(Settings) if spec.name != "origins"}
_AT_LEAST = {"keep_last": 2, "keep_every": 0, "budget_application": 1, "budget_infrastructure": 1, "writer_threads": 1}


def load(flags: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings from all sources. `flags` that are None count as not given. Raises `SettingsInvalid`."""
    environment = os.environ if environment is None else environment
    found = Settings()
    home = environment.get("XDG_CONFIG_HOME") or os.path.join(environment.get("HOME", "/"), ".config")
    for path in (SYSTEM_FILE, os.path.join(home, "ckptctl", "config.toml")):
        found = _merge(found, _file(path), path)
    from_environment = {name: text for name in _FIELDS if (text := environment.get("CKPTCTL_" + name.upper())) is not None}
    found = _merge(found, from_environment, "environment", prefix="CKPTCTL_")
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    return _merge(found, given, "flag")


def _file(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomli.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, tomli.TOMLDecodeError) as exc:
        raise SettingsInvalid(f"cannot read the settings: {exc}", context=path, hint="correct or remove the file") from exc


def _merge(base: Settings, values: Mapping[str, Any], origin: str, prefix: str = "") -> Settings:
    changes: dict[str, Any] = {}
    for name, value in values.items():
        kind = _FIELDS.get(name)
        if kind is None:
            raise SettingsInvalid(f"unknown setting {name!r}", context=origin, hint="known: " + ", ".join(sorted(_FIELDS)))
        try:
            if isinstance(value, bool) or (kind is not str and not isinstance(value, (int, float, str))):
                raise ValueError
            changes[name] = kind(value)
        except ValueError:
            shown = prefix + (name.upper() if prefix else name)
            raise SettingsInvalid(f"{shown} is not a {kind.__name__}: {value!r}", context=origin) from None
        low = _AT_LEAST.get(name, 0)
        if kind is not str and not changes[name] >= low:
            raise SettingsInvalid(f"{name} must be at least {low}, not {changes[name]}", context=origin)
    origins = {**base.origins, **dict.fromkeys(changes, origin)}
    return replace(base, **changes, origins=origins)
