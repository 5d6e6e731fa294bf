"""Settings: later sources win, each value knows where it came from, and a mistake is named with its source."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptctl import settings
from ckptctl.errors import SettingsInvalid
from ckptctl.model.verdict import Placement
from ckptctl.policy.site import Artifact, Durability, Mode


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The paths of the system's and the user's file; neither exists."""
    system, user = tmp_path / "etc.toml", tmp_path / "config" / "ckptctl" / "config.toml"
    user.parent.mkdir(parents=True)
    monkeypatch.setattr(settings, "SYSTEM_FILE", str(system))
    return system, user


def load(files: tuple[Path, Path], flags: dict[str, object] | None = None, **environment: str) -> settings.Settings:
    """Load with a small environment."""
    return settings.load(flags, {"XDG_CONFIG_HOME": str(files[1].parents[1]), **environment})


def test_without_any_source_the_built_in_values_hold(files: tuple[Path, Path]) -> None:
    assert load(files) == settings.Settings()


def test_later_sources_win_and_each_value_knows_its_origin(files: tuple[Path, Path]) -> None:
    system, user = files
    system.write_text("keep_last = 3\nkeep_every = 4\nsettle_s = 1\nwriter_threads = 9\n")
    user.write_text("keep_every = 5\nsettle_s = 2\nwriter_threads = 8\n")
    found = load(files, {"writer_threads": 2, "silent_s": None}, CKPTCTL_SETTLE_S="3.5", CKPTCTL_WRITER_THREADS="7")
    assert (found.keep_last, found.keep_every, found.settle_s, found.writer_threads) == (3, 5, 3.5, 2)
    assert found.origins == {
        "keep_last": str(system),
        "keep_every": str(user),
        "settle_s": "environment",
        "writer_threads": "flag",
    }


def test_home_is_used_without_xdg(files: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / ".config" / "ckptctl" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text("keep_last = 7\n")
    assert settings.load(None, {"HOME": str(tmp_path)}).keep_last == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("colour = 1\n", "unknown setting 'colour'"),
        ("keep_last = 'many'\n", "keep_last is not a int"),
        ("keep_last = true\n", "keep_last is not a int"),
        ("keep_last = [1]\n", "keep_last is not a int"),
        ("keep_last = 1\n", "keep_last must be at least 2"),
        ("settle_s = -1\n", "settle_s must be at least 0"),
        ("settle_s = nan\n", "settle_s must be at least 0"),
        ("budget_application = 0\n", "budget_application must be at least 1"),
        ("keep_last = \n", "cannot read the settings"),
    ],
)
def test_a_mistake_in_a_file_names_the_file(files: tuple[Path, Path], text: str, message: str) -> None:
    files[1].write_text(text)
    with pytest.raises(SettingsInvalid, match=message) as caught:
        load(files)
    assert caught.value.context == str(files[1])
    assert caught.value.exit_code == 60


def test_a_mistake_in_the_environment_names_the_variable(files: tuple[Path, Path]) -> None:
    with pytest.raises(SettingsInvalid, match="CKPTCTL_KEEP_LAST is not a int: 'x'"):
        load(files, CKPTCTL_KEEP_LAST="x")


def test_variables_that_are_no_settings_are_left_alone(files: tuple[Path, Path]) -> None:
    assert load(files, CKPTCTL_ROOT="/x", CKPTCTL_GENERATION="3") == settings.Settings()


def test_accepted_classes_are_a_list_of_names(files: tuple[Path, Path]) -> None:
    found = load(files, {"accept_class": "node_local, CONTAINER_EPHEMERAL"})
    assert found.accepted == {Placement.NODE_LOCAL, Placement.CONTAINER_EPHEMERAL}
    assert load(files).accepted == frozenset()
    with pytest.raises(SettingsInvalid, match="no placement class"):
        _ = load(files, {"accept_class": "FAST"}).accepted


SITE = """
[policy]
mode = "warn"
ephemeral_globs = ["/scratch/tmp/*"]
[policy.allow]
checkpoint = ["SHARED_PARALLEL"]
[[mount]]
path = "/lustre/"
type = "lustre"
source = "*:/scratch"
purge_days = 30
durability = "scratch"
forbid_options = ["soft"]
"""


def test_the_site_policy_is_read_from_all_system_files_in_order(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "conf.d"
    folder.mkdir()
    monkeypatch.setattr(settings, "SYSTEM_FOLDER", str(folder))
    files[0].write_text(SITE)
    (folder / "20-more.toml").write_text('[[mount]]\npath = "/gpfs"\n[policy]\nmode = "enforce"\n')
    (folder / "10-less.toml").write_text('[policy]\nmode = "audit"\n')
    found = load(files)
    assert found.site.mode is Mode.ENFORCE
    assert [mount.path for mount in found.site.mounts] == ["/lustre", "/gpfs"]
    assert found.site.mounts[0].purge_days == 30
    assert [mount.durability for mount in found.site.mounts] == [Durability.SCRATCH, Durability.DURABLE]
    assert found.site.allowed(Artifact.CHECKPOINT) == {Placement.SHARED_PARALLEL}
    assert found.origins["policy.mode"] == str(folder / "20-more.toml")
    assert found.origins["mount /lustre/"] == str(files[0])


def test_a_users_file_tightens_and_never_loosens(files: tuple[Path, Path]) -> None:
    files[0].write_text(SITE)
    files[1].write_text('keep_last = 5\n[policy]\nmode = "audit"\nallow = { checkpoint = ["NODE_LOCAL", "SHARED_PARALLEL"] }\n')
    found = load(files)
    assert found.keep_last == 5
    assert found.site.mode is Mode.WARN
    assert found.site.allowed(Artifact.CHECKPOINT) == {Placement.SHARED_PARALLEL}
    files[1].write_text('[policy]\nmode = "enforce"\nephemeral_globs = ["/x"]\n')
    assert load(files).site.mode is Mode.ENFORCE
    assert load(files).site.ephemeral_globs == ("/scratch/tmp/*", "/x")


@pytest.mark.parametrize(
    "text",
    [
        '[policy]\nmode = "lax"\n',
        '[policy]\ncolour = "blue"\n',
        '[policy.allow]\nmodels = ["NODE_LOCAL"]\n',
        '[policy.allow]\ncheckpoint = ["FAST"]\n',
        '[[mount]]\ntype = "lustre"\n',
        '[[mount]]\npath = "lustre"\n',
        '[[mount]]\npath = "/x"\ndeclare = "GOOD"\n',
        '[[mount]]\npath = "/x"\nsize = 3\n',
        '[[mount]]\npath = "/x"\ndurability = "forever"\n',
        "mount = 3\n",
        "policy = 3\n",
    ],
)
def test_a_mistake_in_the_site_policy_names_the_file(files: tuple[Path, Path], text: str) -> None:
    files[0].write_text(text)
    with pytest.raises(SettingsInvalid, match="wrong site policy") as caught:
        load(files)
    assert caught.value.context == str(files[0])
