"""Writes the reference pages that are made from the code: `python docs/generate.py` (or `make docs`)."""

from __future__ import annotations

from pathlib import Path

from ckptctl.model.verdict import Placement
from ckptctl.policy.filesystems import FILE_SYSTEMS, OPTION_LINTS, OPTION_NOTES, WRITEBACK_OPTIONS
from ckptctl.policy.placement import ACCEPTABLE, FAULTS, MEANINGS, SHARED, SINGLE_MACHINE
from ckptctl.policy.site import Artifact, SitePolicy

HERE = Path(__file__).parent


def verdicts() -> str:
    """Return the page of placement verdicts, file system types and mount options."""
    lines = [
        "# Placement verdicts",
        "",
        "Made from the code by `make docs`; don't edit it by hand.",
        "What no verdict can tell: [what no static check can tell](../explanation/static-checks.md).",
        "",
        "| verdict | means | a checkpoint may live there | exit code of `check` |",
        "|---|---|---|---|",
    ]
    for placement in Placement:
        if placement in SHARED:
            may, code = "yes", 0
        elif placement in FAULTS:
            may, code = "no: a fault of this node", 14
        else:
            words = ["with `--single-machine`"] if placement in SINGLE_MACHINE else []
            words += ["with `--accept-class`"] if placement in ACCEPTABLE else []
            words += ["when the site declares it"] if placement is Placement.UNKNOWN else []
            may, code = " or ".join(words) or "no", 10
        lines.append(f"| {placement.value} | {MEANINGS[placement]} | {may} | {code} |")
    caches = ", ".join(sorted(one.value for one in SitePolicy().allowed(Artifact.DATASET_CACHE)))
    lines += ["", f"Caches and logs (`--kind dataset-cache` and the like) may live in {caches}.", ""]
    lines += ["## File system types", "", "A type that is not here is UNKNOWN, and so is one whose magic number disagrees.", ""]
    lines += ["| type | class before devices and options are looked at | magic |", "|---|---|---|"]
    for name, known in sorted(FILE_SYSTEMS.items()):
        magics = ", ".join(f"`{magic:#010x}`" for magic in sorted(known.magics))
        lines.append(f"| `{name}` | {known.placement.value} | {magics} |")
    lines += ["", "## Mount options that weaken a shared file system", "", "| type | option | what follows |", "|---|---|---|"]
    for name, lints in sorted(OPTION_LINTS.items()):
        lines += [f"| `{name}` | `{option}` | {effect} |" for option, effect in lints]
    lines += [f"| `{name}` | `{option}` | SHARED_WRITEBACK |" for name, option in sorted(WRITEBACK_OPTIONS.items())]
    lines += ["", "Options that weaken nothing and are told:", "", "| type | option | what follows |", "|---|---|---|"]
    for name, notes in sorted(OPTION_NOTES.items()):
        lines += [f"| `{name}` | `{option}` | {effect} |" for option, effect in notes]
    return "\n".join(lines) + "\n"


PAGES = {"reference/verdicts.md": verdicts}


def main() -> None:
    """Write all pages."""
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
