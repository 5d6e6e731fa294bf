"""Rows of real mount tables, and what the storage room makes of paths and devices."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import pytest

from ckptctl.errors import StorageFault, UsageError
from ckptctl.model.manifest import FilesystemIdentity
from ckptctl.model.mount import BlockDevice, MountRow, PathFacts
from ckptctl.storage.mounts import _behind_loop, _server_is_local, examine, find_row, identity, parse_row

ROOT = Path(__file__).resolve().parents[3]
# As Linux 6.18 printed them.
TABLE = rb"""63 43 0:39 / /mnt/x rw,relatime - tmpfs none rw
64 63 0:40 / /mnt/x/b rw,relatime - tmpfs first rw
65 64 0:41 / /mnt/x/b rw,relatime - tmpfs second rw
66 63 0:42 / /mnt/x/sp\040ace\011tab\012line#hash\134back rw,relatime - tmpfs  rw
67 63 0:39 /a/sub//deleted /mnt/x/dst rw,relatime - tmpfs none rw
70 63 0:43 / /mnt/x/mrg rw,relatime - overlay overlay rw,lowerdir=low,upperdir=up,workdir=work,uuid=on
73 63 0:45 / /mnt/x/mrg2 rw,relatime - overlay overlay rw,lowerdir=low,upperdir=/u\054p\040x,workdir=wrk2,uuid=on
74 63 0:47 / /mnt/x/low rw,relatime - tmpfs a\043b,c rw
75 63 7:0 / /mnt/x/up rw,relatime - ext4 /dev/loop0 rw
76 63 0:39 /a /mnt/x/a ro,relatime shared:1 - tmpfs none rw
77 63 0:39 /a /mnt/x/c rw,relatime shared:1 master:7 propagate_from:2 new-tag:x unbindable - tmpfs none ro,size=4k
78 27 0:50 / /lustre rw,noatime - lustre 10.0.0.1@o2ib:10.0.0.2@o2ib:/scratch rw,flock,lazystatfs
79 27 0:51 / /data rw,relatime - nfs4 [fd00::1]:/export rw,vers=4.2,hard,proto=tcp6,addr=fd00::1
80 27 0:52 / /shared rw,relatime - fuse.glusterfs gs1:/ckpt rw,user_id=0,group_id=0,allow_other,max_read=131072
"""


def row(mount_id: int) -> MountRow:
    found = find_row(TABLE, mount_id)
    assert found is not None
    return found


def test_the_row_is_the_one_with_the_mount_id_not_the_first_at_its_path() -> None:
    assert row(64).mount_point == row(65).mount_point == "/mnt/x/b"
    assert (row(65).source, row(65).parent) == ("second", 64)


def test_names_are_unescaped_once() -> None:
    assert row(66).mount_point == "/mnt/x/sp ace\ttab\nline#hash\\back"
    assert row(74).source == "a#b,c"
    assert parse_row(rb"1 0 0:1 / /a\134040b rw - tmpfs x rw").mount_point == "/a\\040b"


def test_an_empty_source_is_an_empty_name_not_the_options() -> None:
    assert row(66).source == ""
    assert row(66).super_options == ("rw",)


def test_an_escaped_comma_does_not_end_an_option() -> None:
    assert row(73).option("upperdir") == "/u,p x"
    assert row(73).option("workdir") == "wrk2"
    assert row(73).option("index") is None
    assert row(70).option("uuid") == "on"
    assert row(78).option("flock") == ""


@pytest.mark.parametrize(("mount_id", "read_only"), [(75, False), (76, True), (77, True)])
def test_either_option_field_makes_it_read_only(mount_id: int, read_only: bool) -> None:
    assert row(mount_id).read_only is read_only


@pytest.mark.parametrize("word", ["emergency_ro", "shutdown"])
def test_an_ext4_that_has_stopped_is_read_only_though_its_options_begin_with_rw(word: str) -> None:
    line = f"64 43 7:0 / /mnt/d rw,relatime - ext4 /dev/loop0 rw,errors=remount-ro,{word}"
    assert parse_row(line.encode()).read_only


def test_optional_tags_are_kept_and_unknown_ones_do_no_harm() -> None:
    assert row(75).tags == ()
    assert row(77).tags == ("shared:1", "master:7", "propagate_from:2", "new-tag:x", "unbindable")
    assert row(77).type == "tmpfs"


def test_a_bind_mount_keeps_its_folder_and_a_deleted_one_is_known() -> None:
    assert (row(76).root, row(76).deleted) == ("/a", False)
    assert (row(67).root, row(67).deleted) == ("/a/sub//deleted", True)


def test_type_and_source_of_network_file_systems() -> None:
    assert (row(78).type, row(78).source) == ("lustre", "10.0.0.1@o2ib:10.0.0.2@o2ib:/scratch")
    assert (row(79).source, row(79).option("addr")) == ("[fd00::1]:/export", "fd00::1")
    assert row(80).type == "fuse.glusterfs"


def test_a_mount_id_is_not_the_beginning_of_another() -> None:
    assert find_row(TABLE, 6) is None
    assert find_row(TABLE, 7) is None


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"63",
        b"63 43 0:39 / /mnt/x rw,relatime tmpfs none rw",
        b"63 43 0:39 / - rw - tmpfs",
        b"63 43 0:39 / /mnt/x - tmpfs none rw",
        b"x 43 0:39 / /mnt/x rw - tmpfs none rw",
        b"63 43 39 / /mnt/x rw - tmpfs none rw",
        b"63 43 0:39  /mnt/x rw - tmpfs none rw",
        b"63 43 0:39 / /mnt/x rw -  none rw",
        b"+63 43 0:39 / /mnt/x rw - tmpfs none rw",
    ],
)
def test_a_row_that_is_not_understood_is_an_error(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"row|separator"):
        parse_row(line)


def test_a_broken_row_of_another_mount_does_not_matter() -> None:
    assert find_row(b"garbage\n64 rubbish\n" + TABLE, 65) == row(65)


def test_identity_of_bytes_that_are_no_utf8_can_be_written_as_json() -> None:
    found = parse_row(b"1 0 0:1 /a\xff /b rw - nfs4 s:/\xfe rw")
    assert found.root == os.fsdecode(b"/a\xff")
    assert found.identity == FilesystemIdentity("nfs4", "s:/\\xfe", "/a\\xff")
    json.dumps(asdict(found.identity)).encode()


# --- real paths -----------------------------------------------------------------------------------------------------


def test_an_existing_folder(tmp_path: Path) -> None:
    facts = examine(str(tmp_path))
    assert (facts.asked, facts.real, facts.existing, facts.missing) == (str(tmp_path),) * 3 + (False,)
    assert facts.writable
    assert facts.free_bytes <= facts.total_bytes
    assert identity(str(tmp_path)) == facts.mount.identity


def test_the_real_mount_is_the_one_that_the_kernel_names(tmp_path: Path) -> None:
    facts = examine(str(tmp_path))
    found = subprocess.run(["stat", "--file-system", "--format=%t", str(tmp_path)], capture_output=True, text=True, check=True)
    assert facts.magic == int(found.stdout, 16)
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert f"mnt_id:\t{facts.mount.id}\n" in Path(f"/proc/self/fdinfo/{fd}").read_text()
        assert identity(fd) == facts.mount.identity
    finally:
        os.close(fd)


def test_facts_survive_json(tmp_path: Path) -> None:
    facts = examine(str(tmp_path))
    assert PathFacts.from_dict(json.loads(json.dumps(asdict(facts)))) == facts


def test_a_missing_path_is_looked_at_by_its_nearest_ancestor(tmp_path: Path) -> None:
    facts = examine(f"{tmp_path}/run/7/checkpoints")
    assert (facts.real, facts.existing, facts.missing) == (f"{tmp_path}/run/7/checkpoints", str(tmp_path), True)
    assert facts.dangling_link == ""


def test_a_symlink_shows_both_names(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "here").symlink_to("there")
    facts = examine(str(tmp_path / "here"))
    assert (facts.asked, facts.real, facts.missing) == (f"{tmp_path}/here", f"{tmp_path}/there", False)


def test_a_dangling_symlink_is_followed_and_named(tmp_path: Path) -> None:
    (tmp_path / "here").symlink_to("gone")
    facts = examine(f"{tmp_path}/here/run")
    assert (facts.real, facts.existing) == (f"{tmp_path}/gone/run", str(tmp_path))
    assert facts.dangling_link == f"{tmp_path}/here"


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert examine(f"{tmp_path}/file").writable_errno == errno.ENOTDIR
    below = examine(f"{tmp_path}/file/run")
    assert (below.existing, below.writable_errno) == (f"{tmp_path}/file", errno.ENOTDIR)


def test_a_name_of_strange_bytes(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"a b\n\\134\xff")
    folder.mkdir()
    assert examine(str(folder)).existing == str(folder)


def test_a_loop_of_symlinks_is_ours_once(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(StorageFault) as caught:
        examine(str(tmp_path / "a"))
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ELOOP
    with pytest.raises(StorageFault):
        identity(str(tmp_path / "missing"))


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_what_is_no_path(path: str) -> None:
    with pytest.raises(UsageError):
        examine(path)


def test_two_leading_slashes_and_the_root_itself() -> None:
    assert examine("//").existing == "/"
    assert not examine("//").missing
    assert examine("//surely-missing-here/x").existing == "/"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to look as another user")
def test_permissions_are_those_of_the_effective_user() -> None:
    # In a process of its own, which can't get its uid back; not in tmp_path, which only its owner may enter.
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[2]); from ckptctl.storage.mounts import examine\n"
        "os.setegid(65534); os.seteuid(65534); facts = examine(sys.argv[1]); print(facts.uid, facts.writable_errno)"
    )
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        done = subprocess.run([sys.executable, "-c", code, folder, str(ROOT)], capture_output=True, text=True)
    assert done.stdout.split() == ["65534", str(errno.EACCES)], done.stderr


def test_looking_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; from ckptctl.actions.check import check, probe_node\n"
        "check(sys.argv[1], probe=True); probe_node(sys.argv[1])\n"
        "print(sorted({'msgspec', 'typer', 'rich', 'torch', 'numpy', 'socket', 'subprocess'} & set(sys.modules)))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, env=env)
    assert done.stdout == "[]\n", done.stderr


def test_an_address_of_this_machine_is_known_and_another_is_not() -> None:
    def local(fs_type: str, options: str) -> bool:
        return _server_is_local(parse_row(f"1 0 0:1 / /n rw - {fs_type} s:/x {options}".encode()))

    assert local("nfs4", "rw,addr=127.0.0.1")
    assert local("cifs", "rw,addr=127.0.0.1")
    assert not local("nfs4", "rw,addr=192.0.2.1")  # an address for documentation
    assert not local("nfs4", "rw,addr=27.0.0.1")
    assert not local("nfs4", "rw,addr=2001:db8::1")
    assert not local("nfs4", "rw,addr=::no-address")
    assert not local("nfs4", "rw")
    assert not local("ceph", "rw,addr=127.0.0.1")


@pytest.mark.skipif(
    "lo" not in (Path("/proc/net/if_inet6").read_text() if os.path.exists("/proc/net/if_inet6") else ""),
    reason="needs IPv6",
)
def test_an_ipv6_address_of_this_machine() -> None:
    assert _server_is_local(parse_row(b"1 0 0:1 / /n rw - nfs4 s:/x rw,addr=::1"))


# --- behind a loop device ---------------------------------------------------------------------------------------------


def test_a_file_with_the_name_of_a_removed_image_is_not_taken_for_it(tmp_path: Path) -> None:
    image = tmp_path / "disk.img"
    for name in (image, tmp_path / "disk.img (deleted)"):
        name.touch()
    found = _behind_loop((BlockDevice("loop0", backing_file=str(image)),), 1)
    assert found is not None
    assert found.real == str(image)
    assert _behind_loop((BlockDevice("loop0", backing_file=f"{image} (deleted)"),), 1) is None
