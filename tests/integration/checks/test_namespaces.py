"""`check` on real mounts, each made in a mount namespace of its own that ends with the test's process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.namespaces import disk_class, image_class, inside, looked, names, placement, unavailable

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "-")


def test_memory_is_volatile_also_on_a_single_machine(tmp_path: Path) -> None:
    [memory, below, shm] = looked(
        tmp_path,
        "mkdir m; mount -t tmpfs some-name m; mkdir -p m/a; mount -t tmpfs shm /dev/shm; mkdir /dev/shm/x",
        *(f"{tmp_path}/m", f"{tmp_path}/m/a/later", "/dev/shm/x"),
    )
    for result in (memory, below, shm):
        assert (placement(result), result["exit_code"], result["strict"]) == ("VOLATILE", 10, 10)
    assert memory["node"]["identity"] == {"type": "tmpfs", "source": "some-name", "root": "/"}
    assert below["facts"]["existing"] == f"{tmp_path}/m/a"


def test_space_is_that_of_the_file_system(tmp_path: Path) -> None:
    setup = "mkdir m n; mount -t tmpfs -o size=8m,nr_inodes=100 x m; head -c 1M /dev/zero > m/fill; mount -t ramfs y n"
    [some, none] = looked(tmp_path, setup, f"{tmp_path}/m", f"{tmp_path}/n")
    mib = 1024 * 1024
    assert (some["facts"]["total_bytes"], some["facts"]["free_bytes"]) == (8 * mib, 7 * mib)
    assert (some["facts"]["total_inodes"], some["facts"]["free_inodes"]) == (100, 98)
    assert (none["facts"]["total_inodes"], none["facts"]["free_inodes"]) == (None, None)


def test_the_upper_one_of_stacked_mounts_counts(tmp_path: Path) -> None:
    [result] = looked(tmp_path, "mkdir a; mount -t tmpfs first a; mount -t tmpfs second a; mkdir a/run", f"{tmp_path}/a/run")
    assert result["node"]["identity"]["source"] == "second"


def test_a_mount_that_is_entered_before_another_covers_it_stays_what_it_is(tmp_path: Path) -> None:
    # A relative path is resolved from where the process is: in the covered mount.
    code = (
        "import os, subprocess; from ckptctl.storage.mounts import identity\n"
        "os.chdir('a'); subprocess.run(['mount', '-t', 'tmpfs', 'second', os.getcwd()], check=True)\n"
        "fd = os.open('.', os.O_RDONLY); print(identity('.').source, identity(fd).source, identity(os.getcwd()).source)"
    )
    assert inside(tmp_path, "mkdir a; mount -t tmpfs first a", code) == "first first second\n"


def test_a_bind_mount_is_where_its_source_is(tmp_path: Path) -> None:
    setup = "mkdir -p src/sub dst mem; mount -t tmpfs mem mem; mkdir -p mem/in src/in; mount --bind src/sub dst; "
    setup += "mount --bind mem/in src/in"
    [disk, memory] = looked(tmp_path, setup, f"{tmp_path}/dst", f"{tmp_path}/src/in")
    assert placement(disk) == disk_class(tmp_path)
    assert disk["node"]["identity"]["root"].endswith("/src/sub")
    assert placement(memory) == "VOLATILE"
    assert memory["node"]["identity"] == {"type": "tmpfs", "source": "mem", "root": "/in"}


def test_a_bind_mount_whose_source_is_removed(tmp_path: Path) -> None:
    setup = "mkdir m; mount -t tmpfs x m; mkdir m/src m/dst; mount --bind m/src m/dst; rmdir m/src"
    [result] = looked(tmp_path, setup, f"{tmp_path}/m/dst")
    assert (placement(result), result["exit_code"]) == ("CONTAINER_EPHEMERAL", 10)
    assert "ENOENT" in result["verdict"]["reason"]


def test_an_overlay_names_where_its_files_go(tmp_path: Path) -> None:
    setup = "mkdir m; mount -t tmpfs x m; cd m; mkdir low 'up per' work mrg; "
    setup += "mount -t overlay over -o 'lowerdir=low,upperdir=up per,workdir=work' mrg; mkdir mrg/run"
    [result] = looked(tmp_path, setup, f"{tmp_path}/m/mrg/run")
    assert placement(result) == "CONTAINER_EPHEMERAL"
    assert "up per" in " ".join(result["verdict"]["evidence"])
    assert (result["exit_code"], result["strict"]) == (0, 10)  # accepted by name, on a single machine


@pytest.mark.skipif(shutil.which("mkfs.ext4") is None, reason="needs mkfs.ext4")
def test_an_image_file_is_as_good_as_the_storage_below_it_and_never_shared(tmp_path: Path) -> None:
    setup = """
        mkdir mem on-disk in-memory; mount -t tmpfs x mem
        for where in . mem; do truncate -s 8M $where/img; mkfs.ext4 -q $where/img; done
        mount -o loop img on-disk; mount -o loop mem/img in-memory; mkdir on-disk/run in-memory/run"""
    [disk, memory] = looked(tmp_path, setup, f"{tmp_path}/on-disk/run", f"{tmp_path}/in-memory/run")
    assert placement(disk) == image_class(tmp_path)
    assert disk["facts"]["mount"]["type"] == "ext4"
    assert disk["facts"]["devices"][0]["backing_file"] == f"{tmp_path}/img"
    assert disk["facts"]["backing"]["real"] == f"{tmp_path}/img"
    assert disk["strict"] == 10
    assert (placement(memory), memory["exit_code"]) == ("VOLATILE", 10)


@pytest.mark.skipif(shutil.which("mkfs.ext4") is None, reason="needs mkfs.ext4")
def test_an_image_file_that_is_removed_is_not_judged_by_its_folder(tmp_path: Path) -> None:
    setup = "truncate -s 8M img; mkfs.ext4 -q img; mkdir d; mount -o loop img d; rm img"
    [result] = looked(tmp_path, setup, f"{tmp_path}/d")
    assert (placement(result), result["exit_code"]) == ("UNKNOWN", 10)


@pytest.mark.skipif(shutil.which("mkfs.ext4") is None, reason="needs mkfs.ext4")
def test_a_full_disk_gives_13(tmp_path: Path) -> None:
    setup = "truncate -s 8M img; mkfs.ext4 -q -m 0 img; mkdir d; mount -o loop img d; "
    setup += "for n in 1 2 3; do cat /dev/zero > d/fill$n || sync; done"
    [result] = looked(tmp_path, setup, f"{tmp_path}/d")
    if not result["verdict"]["allowed"]:
        pytest.skip(f"the temporary folder of this machine is {disk_class(tmp_path)}")
    assert (result["exit_code"], "no-space" in names(result)) == (13, True)


def test_read_only_mounts_and_file_systems(tmp_path: Path) -> None:
    setup = "mkdir a b c; mount --bind a a; mount -o remount,ro,bind a; mount -t tmpfs -o ro x b; "
    setup += "mount -t tmpfs y c; mkdir c/run; mount -o remount,ro c"
    for result in looked(tmp_path, setup, *(f"{tmp_path}/{name}" for name in ("a", "b", "c/run", "c/later"))):
        assert (placement(result), result["exit_code"], result["strict"]) == ("READ_ONLY", 14, 14)
        assert result["facts"]["writable_errno"] == 30
        assert result["node"]["writable"] is False


def test_names_that_must_be_escaped(tmp_path: Path) -> None:
    name = "sp ace\ttab\nline#hash\\back"
    setup = f"mkdir $'{name.encode('unicode_escape').decode()}'; mount -t tmpfs $'so urce#1' *ace*"
    [result] = looked(tmp_path, setup, f"{tmp_path}/{name}")
    assert result["facts"]["mount"]["mount_point"] == f"{tmp_path}/{name}"
    assert result["node"]["identity"]["source"] == "so urce#1"
    assert "\n" not in result["verdict"]["reason"]


def test_a_mount_that_is_detached_while_a_process_is_in_it(tmp_path: Path) -> None:
    out = inside(
        tmp_path,
        "mkdir a; mount -t tmpfs gone a",
        "import os, subprocess\nfrom ckptctl.actions.check import check\n"
        "os.chdir('a'); subprocess.run(['umount', '-l', os.getcwd()], check=True)\n"
        "from ckptctl.storage.mounts import identity\nfrom ckptctl.errors import StorageFault\n"
        "try: print(identity('.'))\nexcept StorageFault as exc: print('fault', exc.message)",
    )
    assert out.startswith("fault mount ")
    assert "not in the mount table" in out


def test_direct_io_that_is_refused_and_space_that_is_gone_are_found_by_a_probe(tmp_path: Path) -> None:
    code = """
import json, os, sys
from ckptctl.checks.capabilities import probe
for folder in sys.argv[1:]:
    print(json.dumps([[finding.name for finding in probe(folder, deadline_s=10)], os.listdir(folder)]))
"""
    setup = "mkdir none full; mount -t ramfs x none; mount -t tmpfs -o size=4k y full; "
    setup += "head -c 4096 /dev/zero > full/fill"
    out = inside(tmp_path, setup, code, f"{tmp_path}/none", f"{tmp_path}/full")
    assert [json.loads(line) for line in out.splitlines()] == [
        [["probed", "no-direct-io"], []],
        [["no-space"], ["fill"]],
    ]
