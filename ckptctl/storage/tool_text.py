"""What the tools of file systems print: quotas, Lustre layouts, Lustre's client cache. Pure; what is not understood is None.

Formats: `lfs quota -q`, `lfs getstripe -d`, `lfs project -d` and `lfs pcc state` as lustre/utils/lfs.c and liblustreapi.c print
them (2.12 to 2.17); `quota -w -p` of the Linux quota tools 4; `mmlsquota -Y` and `mmlsattr -L` of IBM Storage Scale.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from ckptctl.model.quota import Component, Quota

_KIB = 1024
_NUMBER = r"\[?(\d+)\]?\*?"  # brackets: a server did not answer, and it is at least that much; a star: over a limit
_HALF = rf"{_NUMBER}\s+{_NUMBER}\s+{_NUMBER}\s+(\S+)"
_QUOTA_ROW = re.compile(rf"{_HALF}\s+{_HALF}\s*$", re.MULTILINE)
_NO_GRACE = ("-", "0", "none")
_COMPONENT = re.compile(
    r"lcme_extent\.e_start:\s+(\d+)|lcme_extent\.e_end:\s+(\d+|EOF)|(?<!\S)(?:lmm_)?stripe_count:\s+(-?\d+)"
)


def quota_row(text: str, name: str) -> Quota | None:
    """Parse the row of `lfs quota -q` or `quota -w -p`: blocks of 1 KiB, used, soft, hard, grace, then the same of files."""
    found = _QUOTA_ROW.search(text)
    if found is None:
        return None
    used, soft, hard = (int(found[place]) * _KIB for place in (1, 2, 3))
    files, soft_files, hard_files = (int(found[place]) for place in (5, 6, 7))
    grace = next((word for word in (found[4], found[8]) if word not in _NO_GRACE), "")
    return Quota(name, used, soft or None, hard or None, files, soft_files or None, hard_files or None, grace)


def mmlsquota(text: str) -> list[Quota]:
    """Parse `mmlsquota -Y`: columns by the names in its header, values percent-encoded, blocks of 1 KiB."""
    header: list[str] = []
    found = []
    for line in text.splitlines():
        fields = line.split(":")
        if len(fields) > 3 and fields[2] == "HEADER":
            header = fields
            continue
        row = dict(zip(header, (unquote(field) for field in fields), strict=False))
        kind = {"USR": "user", "GRP": "group", "FILESET": "fileset"}.get(row.get("quotaType", ""))
        numbers = [
            row.get(key, "") for key in ("blockUsage", "blockQuota", "blockLimit", "filesUsage", "filesQuota", "filesLimit")
        ]
        if kind is None or not all(number.isdigit() for number in numbers):
            continue
        used, soft, hard, files, soft_files, hard_files = map(int, numbers)
        grace = next((word for key in ("blockGrace", "filesGrace") if (word := row.get(key, "none")) not in _NO_GRACE), "")
        name = f"{kind} {row.get('name') or row.get('id', '')}".strip()
        soft_bytes, hard_bytes = soft * _KIB or None, hard * _KIB or None
        found.append(Quota(name, used * _KIB, soft_bytes, hard_bytes, files, soft_files or None, hard_files or None, grace))
    return found


def fileset(text: str) -> str:
    """Parse `mmlsattr -L PATH`: the fileset that a path belongs to, empty when it is not said."""
    found = re.search(r"^fileset name:\s+(\S+)\s*$", text, re.MULTILINE)
    return found[1] if found else ""


def lustre_project(text: str) -> int:
    """Parse `lfs project -d PATH`: the project's number, 0 for none."""
    found = re.match(r"\s*(\d+)\s+[P-]", text)
    return int(found[1]) if found else 0


def lustre_layout(text: str) -> tuple[Component, ...]:
    """Parse `lfs getstripe -d PATH`: the layout of files made there, one component for a plain one; () when it is not said.

    A part that is kept on the metadata server has 0 stripes.
    """
    parts: list[Component] = []
    start, end = 0, None
    for found in _COMPONENT.finditer(text):
        if found[1] is not None:
            start = int(found[1])
        elif found[2] is not None:
            end = None if found[2] == "EOF" else int(found[2])
        else:
            parts.append(Component(start, end, int(found[3])))
            start, end = end or 0, None
    return tuple(parts)


def pcc_state(text: str) -> str:
    """Parse `lfs pcc state FILE`: `none`, `readonly` or `readwrite`; empty when it is not said."""
    found = re.search(r"\btype:\s*(none|readonly|readwrite)\b", text)
    return found[1] if found else ""
