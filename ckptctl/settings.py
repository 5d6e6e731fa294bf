"""Settings: TOML files, environment, flags; frozen, each value with its origin.

Later sources win: built-in, `/etc/ckptctl/config.toml`, `/etc/ckptctl/conf.d/*.toml`, `~/.config/ckptctl/config.toml`,
`CKPTCTL_<NAME>`, flags. Of the site policy (tables `policy` and `mount`) the system's files are the word; a user's file may
only tighten it.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ckptctl.errors import SettingsInvalid
from ckptctl.model.verdict import Placement
from ckptctl.policy.site import Artifact, Durability, ExpectedMount, Mode, SitePolicy

SYSTEM_FILE = "/etc/ckptctl/config.toml"
SYSTEM_FOLDER = "/etc/ckptctl/conf.d"


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
    proof_ttl_s: float = 3600.0
    node_poll_s: float = 2.0
    suspect_grace_s: float = 60.0
    end_grace_s: float = 10.0
    budget_application: int = 3
    budget_infrastructure: int = 10
    exclude_hours: float = 24.0
    writer_threads: int = 4
    accept_class: str = ""
    site: SitePolicy = field(default_factory=SitePolicy)
    origins: Mapping[str, str] = field(default_factory=dict)

    def for_ranks(self) -> dict[str, str]:
        """Return as variables what the ranks need to know and this process was told by its flags."""
        names = ("keep_last", "keep_every", "save_deadline_s", "writer_threads")
        return {"CKPTCTL_" + name.upper(): str(getattr(self, name)) for name in names}

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
_FIELDS = {spec.name: _KINDS[str(spec.type)] for spec in fields(Settings) if spec.name not in ("origins", "site")}
_AT_LEAST = {"keep_last": 2, "keep_every": 0, "budget_application": 1, "budget_infrastructure": 1, "writer_threads": 1}


def load(flags: Mapping[str, Any] | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings from all sources. `flags` that are None count as not given. Raises `SettingsInvalid`."""
    environment = os.environ if environment is None else environment
    found = Settings()
    home = environment.get("XDG_CONFIG_HOME") or os.path.join(environment.get("HOME", "/"), ".config")
    for path in (SYSTEM_FILE, *sorted(glob.glob(os.path.join(SYSTEM_FOLDER, "*.toml")))):
        found = _merge_file(found, path, trusted=True)
    found = _merge_file(found, os.path.join(home, "ckptctl", "config.toml"), trusted=False)
    from_environment = {name: text for name in _FIELDS if (text := environment.get("CKPTCTL_" + name.upper())) is not None}
    found = _merge(found, from_environment, "environment", prefix="CKPTCTL_")
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    return _merge(found, given, "flag")


def _file(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            import tomli  # here: most commands find no file, and reading none should cost nothing

            return tomli.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise SettingsInvalid(f"cannot read the settings: {exc}", context=path, hint="correct or remove the file") from exc


def _merge_file(base: Settings, path: str, *, trusted: bool) -> Settings:
    table = _file(path)
    policy, mounts = table.pop("policy", None), table.pop("mount", None)
    merged = _merge(base, table, path)
    if policy is None and mounts is None:
        return merged
    word = _site(policy or {}, mounts or [], path, merged.site if trusted else replace(SitePolicy(), mode=Mode.AUDIT))
    origins = dict(merged.origins)
    origins.update({f"policy.{name}": path for name in policy or {}})
    origins.update({f"mount {mount.get('path')}": path for mount in mounts or []})
    return replace(merged, site=word if trusted else merged.site.tightened(word), origins=origins)


def _site(policy: dict[str, Any], mounts: list[dict[str, Any]], path: str, base: SitePolicy) -> SitePolicy:
    """Return `base` with a file's tables: later files replace single words, add mounts, or replace one of the same path."""
    try:
        _only(policy, {"mode", "ephemeral_globs", "allow"}, "policy")
        allow = dict(base.allow)
        for kind, classes in dict(policy.get("allow", {})).items():
            allow[Artifact(kind)] = frozenset(Placement(word) for word in classes)
        made = {mount.path: mount for mount in base.mounts}
        for table in mounts:
            _only(table, {spec.name for spec in fields(ExpectedMount)}, "mount")
            declared = table.get("declare")
            mount = ExpectedMount(
                path=os.path.normpath(_text(table, "path")),
                type=_text(table, "type", ""),
                source=_text(table, "source", ""),
                declare=Placement(declared) if declared is not None else None,
                purge_days=int(table.get("purge_days", 0)),
                forbid_options=tuple(map(str, table.get("forbid_options", ()))),
                durability=Durability(table.get("durability", Durability.DURABLE)),
            )
            made[mount.path] = mount
        return SitePolicy(
            mode=Mode(policy["mode"]) if "mode" in policy else base.mode,
            mounts=tuple(made.values()),
            ephemeral_globs=tuple(dict.fromkeys((*base.ephemeral_globs, *map(str, policy.get("ephemeral_globs", ()))))),
            allow=allow,
        )
    except (ValueError, TypeError, AttributeError) as exc:
        hint = "see docs/reference/settings.md, site policy"
        raise SettingsInvalid(f"wrong site policy: {exc}", context=path, hint=hint) from exc


def _only(table: Mapping[str, Any], known: set[str], what: str) -> None:
    strange = sorted(set(table) - known)
    if strange:
        raise ValueError(f"unknown {what} key {strange[0]!r}; known: {', '.join(sorted(known))}")


def _text(table: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = table.get(key, default)
    if not isinstance(value, str) or (key == "path" and not value.startswith("/")):
        raise ValueError(f"{key} of a mount must be {'an absolute path' if key == 'path' else 'a text'}, not {value!r}")
    return value


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
