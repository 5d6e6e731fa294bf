"""What this node has of GPUDirect Storage, from `/proc`, `/run` and cufile.json. Reads only."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

from ckptctl.policy.gds import GdsHost

_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*')  # cufile.json has comments; what is inside a text stays
_CONFIG = "/etc/cufile.json"
_MOST_BYTES = 1024 * 1024


def host(environment: Mapping[str, str], root: str = "/") -> GdsHost:
    """Return what there is. `root` is where `/proc`, `/run` and `/etc` are looked for."""
    config = environment.get("CUFILE_ENV_PATH_JSON") or os.path.join(root, _CONFIG.lstrip("/"))
    text, problem, allow = _read(config), "", None
    if text:
        try:
            properties = json.loads(_COMMENT.sub(lambda match: match[1] or "", text)).get("properties", {})
            allow = properties.get("allow_compat_mode")
        except (ValueError, AttributeError) as exc:
            problem = f"it is not JSON: {exc}"
    return GdsHost(
        driver=_first_line(os.path.join(root, "proc/driver/nvidia/version")),
        nvidia_fs=_first_line(os.path.join(root, "proc/driver/nvidia-fs/version")),
        udev=os.path.isdir(os.path.join(root, "run/udev")),
        config=config if text else "",
        config_problem=problem,
        allow_compat=allow if isinstance(allow, bool) else None,
    )


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_BYTES)
    except OSError:
        return ""


def _first_line(path: str) -> str:
    return _read(path).partition("\n")[0].strip()
