"""The reference names everything there is, and links lead somewhere."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from pathlib import Path

import click
import pytest
import typer

from ckptctl.cli.main import app
from ckptctl.errors import CkptctlError
from ckptctl.model import manifest
from ckptctl.model.verdict import Placement
from ckptctl.policy.placement import MEANINGS
from ckptctl.policy.site import Artifact, ExpectedMount, Mode, SitePolicy
from ckptctl.saving.session import Incarnation
from ckptctl.settings import Settings
from ckptctl.storage import journal

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
COMMANDS: dict[str, click.Command] = {}
for _name, _command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
    COMMANDS |= {f"{_name} {inner}": one for inner, one in getattr(_command, "commands", {"": _command}).items()}
COMMANDS = {name.strip(): command for name, command in COMMANDS.items()}


def errors(of: type[CkptctlError] = CkptctlError) -> list[type[CkptctlError]]:
    """Return all errors of ours."""
    return [one for child in of.__subclasses__() for one in (child, *errors(child)) if child.__module__ == "ckptctl.errors"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page}: {target}"


def test_every_setting_is_described_with_its_default() -> None:
    text = (REFERENCE / "settings.md").read_text()
    for field in dataclasses.fields(Settings):
        if field.name not in ("origins", "site"):
            row = re.search(rf"^\| `{field.name}` \| (\S+) \|", text, re.MULTILINE)
            assert row, field.name
            assert row[1] == (f"{field.default:g}" if not isinstance(field.default, str) else '""'), field.name


def test_every_word_of_the_site_policy_is_described() -> None:
    text = (REFERENCE / "settings.md").read_text()
    for field in (*dataclasses.fields(ExpectedMount), *dataclasses.fields(SitePolicy)):
        assert f"`{field.name}`" in text or field.name in ("mounts", "untightened"), field.name
    for word in (*Artifact, *Mode):
        assert f"`{word.value}`" in text


def test_every_variable_that_run_sets_is_described() -> None:
    text = (REFERENCE / "settings.md").read_text()
    for name in Incarnation("/r", "1.0", "l", 1, "n", 0, "", "", 0).environment():
        assert f"`{name}`" in text


def test_every_exit_code_is_described_with_its_reference() -> None:
    text = (REFERENCE / "exit-codes.md").read_text()
    for error in errors():
        assert f"| {error.exit_code} | `{error.reference}` |" in text, error


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_is_described_with_all_its_options_and_no_others(name: str) -> None:
    text = (REFERENCE / "commands.md").read_text()
    section = re.search(rf"^## ckptctl {name}\b.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section, name
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts if option.startswith("--")}
    assert set(re.findall(r"^\| `(--[\w-]+)` \|", section[0], re.MULTILINE)) == options


@pytest.mark.parametrize(
    "kind",
    [
        manifest.Commit, manifest.Manifest, manifest.Receipt, manifest.RankReceipt, manifest.WrittenFile, manifest.SavePlan,
        manifest.ResumePoint, manifest.Skipped, manifest.Generation, manifest.Lineage, manifest.FileEntry, manifest.RankEntry,
        manifest.FilesystemIdentity,
    ],
)  # fmt: skip
def test_every_field_of_our_files_is_in_the_format(kind: type) -> None:
    text = (REFERENCE / "format.md").read_text()
    for field in dataclasses.fields(kind):
        assert f"`{field.name}`" in text, field.name


def test_every_journal_event_is_in_the_format() -> None:
    text = (REFERENCE / "format.md").read_text()
    names = [value for key, value in vars(journal).items() if key.isupper() and isinstance(value, str)]
    assert len(names) > 5
    assert all(f"`{name}`" in text for name in names)


def test_the_pages_that_are_made_from_the_code_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, page in module.PAGES.items():
        assert (ROOT / "docs" / name).read_text() == page(), f"{name}: run `make docs`"


def test_every_class_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Placement)
