"""`check` on real file systems, daemons and devices: whatever of them the machine has. What it lacks is named by the skip."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ckptctl.model.verdict import Placement
from ckptctl.policy.filesystems import FILE_SYSTEMS
from tests.support.namespaces import (
    disk_class,
    image_class,
    inside,
    looked,
    names,
    need,
    need_loop_devices,
    placement,
    unavailable,
)
from tests.support.processes import wait_for

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "-")
MIB = 1024 * 1024
STEPS = """
import json, os, subprocess, sys
from dataclasses import asdict
from ckptctl.actions.check import check
def look(path, **options):
    result = check(path, single_machine=True, **options)
    print(json.dumps({**asdict(result), "node": None, "strict": check(path).exit_code}))
def do(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
"""
"""Begins code that looks, changes something and looks again."""
# A FUSE server that answers what a look at an empty folder asks, and keeps requests whose opcode is in `kept` for ever.
FUSE = r"""
import ctypes, errno, os, select, signal, struct, sys
def mount_fuse(kind, source, folder):
    fuse = os.open("/dev/fuse", os.O_RDWR)
    options = b"fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % fuse
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), folder.encode(), kind.encode(), 0, options):
        raise OSError(ctypes.get_errno(), f"mount of {kind}")
    return fuse
def serve(connections, kept=()):
    if os.fork():
        for fuse in connections:
            os.close(fuse)
        return
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    folder = struct.pack("<6Q3I7I", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0)
    answers = {
        3: struct.pack("<QII", 0, 0, 0) + folder,  # GETATTR
        17: struct.pack("<5Q4I24x", 1000000, 900000, 900000, 1000, 900, 4096, 255, 4096, 0),  # STATFS
        26: struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, 0, 12, 9, 4096, 1, 0, 0, 0),  # INIT
        34: b"",  # ACCESS
    }
    while True:
        for fuse in select.select(connections, [], [])[0]:
            request = os.read(fuse, 1 << 20)
            opcode, unique = struct.unpack_from("<IQ", request, 4)
            if opcode in kept or opcode in (2, 36, 42):  # FORGET, INTERRUPT and BATCH_FORGET want no answer
                continue
            answer = answers.get(opcode)
            number = 0 if answer is not None else errno.ENOENT if opcode == 1 else errno.ENOSYS
            os.write(fuse, struct.pack("<IiQ", 16 + len(answer or b""), -number, unique) + (answer or b""))
"""


def need_a_disk(folder: Path) -> None:
    """Skip the test where an image in the temporary folder is refused also on a single machine."""
    found = disk_class(folder)
    if found not in ("NODE_LOCAL", "NODE_ATTACHED_NETWORK_BLOCK"):
        pytest.skip(f"the temporary folder of this machine is {found}")


def image(name: str, size: str, make: str, options: str = "") -> str:
    """Return the setup that makes a file system in an image file and mounts it at a folder of that name."""
    return f"truncate -s {size} {name}.img; {make} {name}.img; mkdir {name}; mount -o loop{options} {name}.img {name}\n"


def need_fuse(*commands: str) -> None:
    """Skip the test where FUSE programs can't run."""
    need(*commands, kernel="fuse")
    if not os.path.exists("/dev/fuse"):
        pytest.skip("needs /dev/fuse")


# --- disks -----------------------------------------------------------------------------------------------------------

KINDS = {
    "xfs": ("xfs", image("fs", "300M", "mkfs.xfs -q")),
    "ext4-journalled-data": ("ext4", image("fs", "64M", "mkfs.ext4 -q", ",data=journal")),
    "btrfs": ("btrfs", image("fs", "128M", "mkfs.btrfs -q")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_probe_of_an_image_file_finds_all_that_a_save_needs_and_it_is_never_shared(tmp_path: Path, kind: str) -> None:
    name, setup = KINDS[kind]
    need_loop_devices()
    need(f"mkfs.{name}", kernel=name)
    need_a_disk(tmp_path)
    [result] = looked(tmp_path, setup + "mkdir fs/run", f"{tmp_path}/fs/run", probe=True, sure=True)
    assert placement(result) == image_class(tmp_path)
    assert (result["exit_code"], result["strict"]) == (0, 10)
    assert "probed" in names(result)
    assert not names(result) & {"no-direct-io", "no-link", "not-probed", "probe-remains"}
    assert result["node"]["identity"]["type"] == result["facts"]["mount"]["type"] == name
    assert [device["backing_file"] for device in result["facts"]["devices"]] == [f"{tmp_path}/fs.img"]


QUOTA = """
xfs_quota -f -x -c 'project -s -p {folder}/fs/run 42' -c 'limit -p bhard={limit} ihard=1000 42' {folder}/fs >/dev/null
head -c 1M /dev/zero > fs/run/file; sync -f fs/run/file
"""


@pytest.mark.parametrize("name", ["xfs", "ext4"])
def test_the_limit_of_a_project_is_the_space_of_its_folder(tmp_path: Path, name: str) -> None:
    need_loop_devices()
    need(f"mkfs.{name}", "xfs_quota", kernel=name)
    make = {"xfs": "mkfs.xfs -q", "ext4": "mkfs.ext4 -q -O quota,project -E quotatype=prjquota"}[name]
    none = f" 2>/dev/null || {{ echo {name} has no quotas in this kernel; exit 77; }}\n"
    setup = image("fs", "300M", make, ",prjquota").rstrip() + none
    setup += "mkdir -p fs/run/below fs/beside" + QUOTA.format(folder=tmp_path, limit="20m")
    below, beside, full = (f"{tmp_path}/fs/{name}" for name in ("run/below", "beside", "run"))
    code = STEPS + (
        "for path in sys.argv[1:]: look(path)\n"
        "try:\n    with open(sys.argv[3] + '/fill', 'wb', 0) as file:\n        while True: file.write(bytes(1 << 16))\n"
        "except OSError: os.sync()\n"
        "look(sys.argv[3])"
    )
    out = inside(tmp_path, setup, code, full, beside, below, sure=True)
    first, second, third, last = (json.loads(line)["facts"] | json.loads(line) for line in out.splitlines())
    for result in (first, third):  # the flag is inherited
        assert (result["total_bytes"], result["total_inodes"]) == (20 * MIB, 1000)
        assert 18 * MIB <= result["free_bytes"] <= 19 * MIB
    assert second["total_bytes"] > 200 * MIB
    if last["verdict"]["allowed"]:
        assert (last["exit_code"], "no-space" in names(last)) == (13, True)


def test_a_subvolume_is_found_though_its_files_have_another_device_number(tmp_path: Path) -> None:
    need_loop_devices()
    need("mkfs.btrfs", "btrfs", kernel="btrfs")
    setup = image("fs", "128M", "mkfs.btrfs -q")
    setup += "btrfs subvolume create fs/sub; mkdir at fs/sub/run; mount -o subvol=sub $(findmnt -no SOURCE fs) at"
    code = STEPS + "for path in sys.argv[1:]: look(path); print(os.stat(path).st_dev)"
    out = inside(tmp_path, setup, code, f"{tmp_path}/at/run", f"{tmp_path}/fs/sub/run", sure=True).splitlines()
    mounted, through = json.loads(out[0]), json.loads(out[2])
    for result, device in ((mounted, int(out[1])), (through, int(out[3]))):
        assert placement(result) == image_class(tmp_path)
        row = result["facts"]["mount"]
        assert os.makedev(row["major"], row["minor"]) != device
    assert (mounted["facts"]["mount"]["root"], mounted["facts"]["mount"]["mount_point"]) == ("/sub", f"{tmp_path}/at")
    assert (through["facts"]["mount"]["root"], through["facts"]["mount"]["mount_point"]) == ("/", f"{tmp_path}/fs")


def test_a_btrfs_over_two_devices_shows_both_and_memory_below_either_counts(tmp_path: Path) -> None:
    need_loop_devices()
    need("mkfs.btrfs", kernel="btrfs")
    setup = """
        mkdir mem two; mount -t tmpfs x mem; truncate -s 128M a.img mem/b.img; trap 'losetup -d $a $b' EXIT
        a=$(losetup -f --show a.img); b=$(losetup -f --show mem/b.img); mkfs.btrfs -q -d raid1 -m raid1 $a $b
        mount -t btrfs -o device=$a,device=$b $a two"""
    [result] = looked(tmp_path, setup, f"{tmp_path}/two", sure=True)
    files = {device["backing_file"] for device in result["facts"]["devices"]}
    assert files == {f"{tmp_path}/a.img", f"{tmp_path}/mem/b.img"}
    assert not result["verdict"]["allowed"]  # half of it is memory


def test_a_disk_that_becomes_read_only_after_it_was_looked_at(tmp_path: Path) -> None:
    need_loop_devices()
    need_a_disk(tmp_path)
    code = STEPS + "look(sys.argv[1] + '/run'); do('mount', '-o', 'remount,ro', sys.argv[1]); look(sys.argv[1] + '/run')"
    out = inside(tmp_path, image("fs", "16M", "mkfs.ext4 -q") + "mkdir fs/run", code, f"{tmp_path}/fs", sure=True)
    before, after = map(json.loads, out.splitlines())
    assert (placement(before), before["exit_code"]) == (image_class(tmp_path), 0)
    assert (placement(after), after["exit_code"], after["strict"]) == ("READ_ONLY", 14, 14)


def test_an_xfs_that_shuts_down_is_unreachable(tmp_path: Path) -> None:
    need_loop_devices()
    need("mkfs.xfs", "xfs_io", kernel="xfs")
    code = STEPS + (
        "look(sys.argv[1] + '/run'); do('xfs_io', '-x', '-c', 'shutdown', sys.argv[1])\n"
        "for path in ('', '/run', '/run/later', '/never'): look(sys.argv[1] + path, probe=True)"
    )
    out = inside(tmp_path, image("fs", "300M", "mkfs.xfs -q") + "mkdir fs/run", code, f"{tmp_path}/fs", sure=True)
    before, *after = map(json.loads, out.splitlines())
    assert placement(before) == image_class(tmp_path)
    for result in after:
        assert (placement(result), result["exit_code"], result["strict"]) == ("UNREACHABLE", 14, 14)
        assert "Input/output error" in result["verdict"]["reason"]


# An ext4 that stops answers stat and access as before. Since Linux 6.15 the mount table tells; before, only a write does.
STOPS = {
    "error": 'echo 1 > "/sys/fs/ext4/$(basename $(findmnt -no SOURCE fs))/trigger_fs_error"',
    "shutdown": "xfs_io -x -c shutdown fs",
}


@pytest.mark.parametrize("how", STOPS)
def test_an_ext4_that_stops_after_an_error_is_refused(tmp_path: Path, how: str) -> None:
    need_loop_devices()
    need("findmnt", *(["xfs_io"] if how == "shutdown" else []))
    need_a_disk(tmp_path)
    setup = image("fs", "16M", "mkfs.ext4 -q", ",errors=remount-ro") + "mkdir fs/run\n" + STOPS[how]
    plain, later, probed = (
        looked(tmp_path / folder, setup, f"{tmp_path}/{folder}/fs/{path}", probe=probe, sure=True)[0]
        for folder, path, probe in _folders(tmp_path, ("a", "run", False), ("b", "later", False), ("c", "run", True))
    )
    assert probed["exit_code"] == 14
    told = {"ro", "emergency_ro", "shutdown"} & set(plain["facts"]["mount"]["super_options"])
    if not told:
        pytest.skip(f"this kernel's mount table does not show an ext4 after its {how}: only the probe was tested")
    for result in (plain, later, probed):
        assert (placement(result), result["exit_code"], result["strict"]) == ("READ_ONLY", 14, 14)
        assert "not-writable" in names(result)


def _folders(root: Path, *rows: tuple[str, str, bool]) -> Iterator[tuple[str, str, bool]]:
    for row in rows:
        (root / row[0]).mkdir()
        yield row


@pytest.mark.parametrize(
    ("kind", "make"), [("squashfs", "mksquashfs src img -quiet -no-progress"), ("erofs", "mkfs.erofs --quiet img src")]
)
def test_an_image_that_can_not_be_written_is_read_only(tmp_path: Path, kind: str, make: str) -> None:
    need_loop_devices()
    need(make.split()[0], kernel=kind)
    setup = f"mkdir -p src/run at; head -c 64K /dev/urandom > src/file; {make} >/dev/null; mount -o loop img at"
    for result in looked(tmp_path, setup, f"{tmp_path}/at", f"{tmp_path}/at/run/later", sure=True):
        assert result["facts"]["mount"]["type"] == kind
        assert (placement(result), result["exit_code"], result["strict"]) == ("READ_ONLY", 14, 14)


# --- layers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("upper", ["fs", "mem"])
def test_an_overlay_over_a_disk_is_a_layer_wherever_its_files_go(tmp_path: Path, upper: str) -> None:
    need_loop_devices()
    need(kernel="overlay")
    setup = image("fs", "16M", "mkfs.ext4 -q") + "mkdir mem at; mount -t tmpfs x mem; mkdir -p fs/low/run\n"
    setup += f"cd {upper}; mkdir up work; mount -t overlay over -o lowerdir={tmp_path}/fs/low,upperdir=up,workdir=work ../at"
    [result] = looked(tmp_path, setup, f"{tmp_path}/at/run", sure=True)
    assert (placement(result), result["strict"]) == ("CONTAINER_EPHEMERAL", 10)
    assert "new files go to up " in " ".join(result["verdict"]["evidence"])


def test_a_bind_mount_in_a_chroot_is_where_its_source_is(tmp_path: Path) -> None:
    setup = "mkdir -p jail/data jail/mem jail/proc jail/sys jail/dev store/run; mount --bind store jail/data; "
    setup += "mount -t tmpfs x jail/mem; for name in proc sys dev; do mount --rbind /$name jail/$name; done"
    code = STEPS + (
        "look('/proc')\n"  # loads what is loaded late
        "os.chroot('jail'); os.chdir('/')\n"
        "for path in ('/data/run', '/mem', '/data/../etc'): look(path)"
    )
    _, bound, memory, outside = map(json.loads, inside(tmp_path, setup, code).splitlines())
    assert placement(bound) == disk_class(tmp_path)
    assert (bound["facts"]["mount"]["mount_point"], bound["facts"]["real"]) == ("/data", "/data/run")
    assert bound["facts"]["mount"]["root"].endswith("/store")
    assert placement(memory) == "VOLATILE"
    # The chroot's own folder is on a mount that the table does not show from inside.
    assert (placement(outside), outside["exit_code"]) == ("UNKNOWN", 14)
    assert "not in the mount table" in outside["verdict"]["reason"]


# --- automounts ------------------------------------------------------------------------------------------------------

AUTOFS = """
mkdir real at on-trigger broken-trigger; mount -t tmpfs x /run
cat > map <<-'END'
	#!/bin/sh
	echo "$1" >> {folder}/asked
	case $1 in
	bound) echo "-fstype=bind :{folder}/real" ;;
	memory) echo "-fstype=tmpfs :mem" ;;
	broken) echo "-fstype=ext4 :{folder}/none.img" ;;
	esac
	END
chmod +x map
echo "{folder}/on-trigger -fstype=tmpfs :direct" > direct
echo "{folder}/broken-trigger -fstype=ext4 :{folder}/none.img" >> direct
echo "{folder}/at {folder}/map" > master; echo "/- {folder}/direct" >> master
setsid automount --pid-file /run/automount.pid {folder}/master
grep -q " {folder}/at .* autofs " /proc/self/mountinfo
"""
TRIGGER = (
    STEPS
    + r"""
def asked(): return open("asked").read().split() if os.path.exists("asked") else []
for name in sys.argv[1:]:
    before = asked()
    look(os.path.abspath(name))
    print(json.dumps(asked()[len(before):]))
"""
)


def need_automounter() -> None:
    """Skip the test where no automount daemon can run."""
    need("automount", "setsid", kernel="autofs")
    if not os.path.exists("/dev/autofs"):
        pytest.skip("needs /dev/autofs")


def triggered(folder: Path, *paths: str) -> list[dict[str, Any]]:
    need_automounter()
    out = inside(folder, AUTOFS.format(folder=folder), TRIGGER, *paths, sure=True, processes=True).splitlines()
    return [json.loads(result) | {"asked": json.loads(asked)} for result, asked in zip(out[::2], out[1::2], strict=True)]


def test_an_automount_is_triggered_once_and_is_what_came(tmp_path: Path) -> None:
    bound, below, memory, direct = triggered(tmp_path, "at/bound", "at/bound/later/on", "at/memory", "on-trigger/run")
    assert placement(bound) == placement(below) == disk_class(tmp_path)
    assert (bound["asked"], below["asked"], memory["asked"]) == (["bound"], [], ["memory"])
    assert bound["facts"]["mount"]["root"].endswith("/real")
    assert (placement(memory), placement(direct)) == ("VOLATILE", "VOLATILE")
    assert direct["facts"]["mount"]["source"] == "direct"


def test_an_automount_that_fails_is_pending(tmp_path: Path) -> None:
    for result in triggered(tmp_path, "at/broken", "at/broken/run", "at/nobody", "broken-trigger", "broken-trigger/run"):
        assert (placement(result), result["exit_code"], result["strict"]) == ("AUTOFS_PENDING", 14, 14)


@pytest.mark.parametrize(("signal", "expected"), [("STOP", "UNREACHABLE"), ("KILL", "AUTOFS_PENDING")])
def test_an_automount_whose_daemon_is_gone_is_refused_by_the_deadline(tmp_path: Path, signal: str, expected: str) -> None:
    code = STEPS.replace("single_machine=True", "single_machine=True, deadline_s=1").replace("check(path).", "result.")
    code += "look(os.path.abspath('at/bound'))"
    need_automounter()
    setup = AUTOFS.format(folder=tmp_path) + f"kill -{signal} $(cat /run/automount.pid)"
    [result] = map(json.loads, inside(tmp_path, setup, code, sure=True, processes=True).splitlines())
    assert (placement(result), result["exit_code"]) == (expected, 14)


# --- devices over devices --------------------------------------------------------------------------------------------


def chain(result: dict[str, Any]) -> list[str]:
    """Return the names of the devices from the mounted one down, for a chain in which each lies on one other."""
    by_name = {device["name"]: device for device in result["facts"]["devices"]}
    at, found = result["facts"]["devices"][0], []
    while True:
        found.append(at["name"])
        if not at["below"]:
            return found
        [below] = at["below"]
        at = by_name[below]


def test_a_partition_of_an_image_is_followed_to_the_file(tmp_path: Path) -> None:
    need_loop_devices()
    need("addpart")  # by hand: not every kernel reads partition tables
    setup = """
        truncate -s 32M img; mkdir fs; a=$(losetup -P -f --show img); trap 'losetup -d $a' EXIT; addpart $a 1 2048 63488
        [ -b ${a}p1 ] || { echo /dev does not show partitions; exit 77; }
        mkfs.ext4 -q ${a}p1; mount ${a}p1 fs"""
    [result] = looked(tmp_path, setup, f"{tmp_path}/fs", sure=True)
    partition, disk = chain(result)
    assert partition == f"{disk}p1"
    assert result["facts"]["devices"][1]["backing_file"] == f"{tmp_path}/img"
    assert (placement(result), result["strict"]) == (image_class(tmp_path), 10)


def test_an_image_in_an_image_is_followed_to_the_last_file(tmp_path: Path) -> None:
    need_loop_devices()
    setup = "mkdir mem; mount -t tmpfs x mem; cd mem\n" + image("outer", "64M", "mkfs.ext4 -q") + "cd outer\n"
    [result] = looked(tmp_path, setup + image("inner", "16M", "mkfs.ext4 -q"), f"{tmp_path}/mem/outer/inner", sure=True)
    assert placement(result) == "VOLATILE"
    assert result["facts"]["backing"]["backing"]["real"] == f"{tmp_path}/mem/outer.img"


@pytest.fixture
def dm_name() -> Iterator[str]:
    """A name for a device-mapper device, which is removed."""
    need_loop_devices()
    need("dmsetup")
    done = subprocess.run(["dmsetup", "version"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs the device mapper in the kernel: {done.stderr.splitlines()[0]}")
    name = f"ckptctl-test-{os.getpid()}"
    yield name
    gone = ["dmsetup", "remove", name]
    present = ["dmsetup", "info", name]
    _until_gone(f"{name} is removed", lambda: not _works(present) or (_works(gone) and not _works(present)))


DM = {
    "linear": "linear $a 0",
    "crypt": "crypt aes-xts-plain64 $(printf 7%.0s $(seq 64)) 0 $a 0",
}


@pytest.mark.parametrize("target", DM)
def test_a_device_mapper_volume_is_followed_to_the_file(tmp_path: Path, dm_name: str, target: str) -> None:
    setup = f"""
        truncate -s 32M img; mkdir fs; a=$(losetup -f --show img); trap 'losetup -d $a' EXIT
        dmsetup targets | grep -q '^{target} ' || modprobe dm-{target} || {{ echo the kernel has no dm-{target}; exit 77; }}
        dmsetup create {dm_name} --table "0 65536 {DM[target]}"; d=/dev/$(dmsetup info -c --noheadings -o blkdevname {dm_name})
        mkfs.ext4 -q $d; mount $d fs"""
    [result] = looked(tmp_path, setup, f"{tmp_path}/fs", sure=True)
    volume, disk = chain(result)
    assert (volume[:3], disk[:4]) == ("dm-", "loop")
    assert result["facts"]["devices"][1]["backing_file"] == f"{tmp_path}/img"
    assert (placement(result), result["strict"]) == (image_class(tmp_path), 10)


@pytest.fixture
def md_device() -> Iterator[str]:
    """A name for a software RAID, which is stopped."""
    need_loop_devices()
    need("mdadm")
    if not os.path.exists("/proc/mdstat") and not _works(["modprobe", "md-mod"]):
        pytest.skip("needs software RAID (md) in the kernel")
    device = f"/dev/md/ckptctl-test-{os.getpid()}"
    yield device
    _until_gone(f"{device} is stopped", lambda: not os.path.exists(device) or _works(["mdadm", "--stop", device]))


def test_a_software_raid_shows_both_of_its_devices(tmp_path: Path, md_device: str) -> None:
    setup = f"""
        export MDADM_NO_UDEV=1; truncate -s 32M a.img b.img; mkdir fs; trap 'losetup -d $a $b' EXIT
        a=$(losetup -f --show a.img); b=$(losetup -f --show b.img)
        mdadm --create {md_device} --run --quiet --homehost=any --metadata=1.2 --level=1 --raid-devices=2 $a $b
        mkfs.ext4 -q {md_device}; mount {md_device} fs"""
    [result] = looked(tmp_path, setup, f"{tmp_path}/fs", sure=True)
    raid, *disks = result["facts"]["devices"]
    assert raid["name"].startswith("md")
    assert sorted(raid["below"]) == sorted(disk["name"] for disk in disks)
    assert {disk["backing_file"] for disk in disks} == {f"{tmp_path}/a.img", f"{tmp_path}/b.img"}
    assert result["strict"] == 10


@pytest.fixture
def zram_note(tmp_path: Path) -> Iterator[Path]:
    """A file for the number of a zram device that was made, which is removed."""
    need("mkfs.ext4", kernel="ext4")
    if not os.access("/sys/class/zram-control/hot_add", os.R_OK) and not _works(["modprobe", "zram"]):
        pytest.skip("needs zram in the kernel")
    note = tmp_path / "zram"
    yield note
    number = note.read_text().strip() if note.exists() else ""

    def removed() -> bool:
        try:
            Path(f"/sys/block/zram{number}/reset").write_text("1")
            Path("/sys/class/zram-control/hot_remove").write_text(number)
        except OSError:
            return False
        return True

    if number:
        _until_gone(f"zram{number} is removed", removed)


def test_a_disk_made_of_memory_is_volatile(tmp_path: Path, zram_note: Path) -> None:
    setup = f"""
        cat /sys/class/zram-control/hot_add > {zram_note}; z=zram$(cat {zram_note}); echo 32M > /sys/block/$z/disksize
        [ -b /dev/$z ] || {{ echo /dev does not show a new zram device; exit 77; }}
        mkfs.ext4 -q /dev/$z; mkdir fs; mount /dev/$z fs"""
    [result] = looked(tmp_path, setup, f"{tmp_path}/fs", sure=True)
    assert (placement(result), result["exit_code"], result["strict"]) == ("VOLATILE", 10, 10)


def _works(command: list[str]) -> bool:
    return shutil.which(command[0]) is not None and subprocess.run(command, capture_output=True, timeout=10).returncode == 0


def _until_gone(what: str, removed: Callable[[], bool]) -> None:
    # The mount namespace that holds the device may end a little later than its last process.
    wait_for(what, removed, 10)


# --- FUSE ------------------------------------------------------------------------------------------------------------


def test_every_subtype_of_the_table_is_what_the_table_says_when_the_kernel_shows_it(tmp_path: Path) -> None:
    need_fuse()
    kinds = sorted(kind for kind in FILE_SYSTEMS if kind.startswith("fuse."))
    code = FUSE + (
        "import json; from ckptctl.actions.check import check\n"
        "folders = {kind: os.path.abspath(kind) for kind in sys.argv[1:]}\n"
        "for folder in folders.values(): os.mkdir(folder)\n"
        "serve([mount_fuse(kind, 'server:/volume', folder) for kind, folder in folders.items()])\n"
        "results = {kind: check(folder) for kind, folder in folders.items()}\n"
        "print(json.dumps({kind: [r.facts.mount.type, r.verdict.placement.value, r.exit_code] for kind, r in results.items()}))"
    )
    found = json.loads(inside(tmp_path, "", code, *kinds, "fuse.newfs", sure=True, processes=True))
    assert found.pop("fuse.newfs") == ["fuse.newfs", "UNKNOWN", 10]
    assert {kind: (seen[0], Placement(seen[1])) for kind, seen in found.items()} == {
        kind: (kind, FILE_SYSTEMS[kind].placement) for kind in kinds
    }


SFTP_SERVER = "/usr/lib/openssh/sftp-server"
PROGRAMS = {  # the command, a setup that mounts at `at`, the type that the kernel shows, the class
    "bindfs": ("bindfs src at", "fuse", "UNKNOWN"),
    "mergerfs": ("mergerfs src:other at", "fuse.mergerfs", "CONTAINER_EPHEMERAL"),
    "squashfuse": ("mksquashfs src img -quiet -no-progress; squashfuse img at", "fuse.squashfuse", "READ_ONLY"),
    "fuse2fs": ("truncate -s 16M img; mkfs.ext4 -q img; fuse2fs -o fakeroot img at", "fuse.ext4", "UNKNOWN"),
    "sshfs": (
        f"printf '#!/bin/sh\\nexec {SFTP_SERVER}' > ssh; chmod +x ssh; sshfs -o ssh_command=$PWD/ssh nobody:$PWD/src at",
        "fuse.sshfs",
        "SHARED_WRITEBACK",
    ),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_a_fuse_program_mounts_is_what_the_table_says(tmp_path: Path, program: str) -> None:
    setup, kind, expected = PROGRAMS[program]
    need_fuse(program, *(["mksquashfs"] if program == "squashfuse" else []))
    if program == "sshfs" and not os.path.exists(SFTP_SERVER):
        pytest.skip(f"needs {SFTP_SERVER}")
    setup = f"mkdir src other at; echo some > src/file; ({setup}) >/dev/null"
    [result] = looked(tmp_path, setup, f"{tmp_path}/at", sure=True, processes=True)
    assert result["facts"]["mount"]["type"] == kind
    assert placement(result) == expected
    assert result["strict"] == (14 if expected == "READ_ONLY" else 10)


def test_an_rclone_mount_is_an_object_store(tmp_path: Path) -> None:
    need_fuse("rclone", "fusermount3")
    setup = "mkdir src at; rclone mount --daemon --config /dev/null --cache-dir $PWD/cache --vfs-cache-mode full $PWD/src at"
    code = STEPS + (
        "from ckptctl.checks.capabilities import probe; from ckptctl.policy.site import Artifact\n"
        "look(sys.argv[1]); look(sys.argv[1], artifact=Artifact.DATASET_CACHE)\n"
        "print(json.dumps([finding.name for finding in probe(sys.argv[1], deadline_s=10)]))"
    )
    out = inside(tmp_path, setup, code, f"{tmp_path}/at", sure=True, processes=True).splitlines()
    state, cache, probed = map(json.loads, out)
    assert state["facts"]["mount"]["type"] == "fuse.rclone"
    assert (placement(state), state["exit_code"]) == ("SHARED_OBJECT", 10)
    assert cache["exit_code"] == 0  # though it says that none of its 1000000000 inodes is free
    assert "no-link" in probed


# --- NFS -------------------------------------------------------------------------------------------------------------

NFS = """
ip link set lo up; ip address add {address}/32 dev lo; mkdir exported at
for state in /run /var/lib/nfs; do mount -t tmpfs x $state; done; touch /var/lib/nfs/etab /var/lib/nfs/rmtab
exportfs -o rw,fsid=0,no_root_squash,no_subtree_check {address}:{folder}/exported
mount -t nfsd x /proc/fs/nfsd; rpc.mountd -N 3; trap 'rpc.nfsd 0' ERR; rpc.nfsd -N 3 1
timeout 15 mount -t nfs4 {address}:/ at; mkdir at/run
"""
SERVED = (
    STEPS
    + """
try:
    look(sys.argv[1])
    libc = __import__("ctypes").CDLL(None)
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    if libc.unshare(0x40000000):
        sys.exit("no second network namespace")
    look(sys.argv[1])  # from where the server's address is not one of the machine's own
    libc.setns(own, 0)
finally:
    do("umount", os.path.dirname(sys.argv[1]))
    do("rpc.nfsd", "0")
"""
)


@pytest.mark.parametrize(("address", "elsewhere"), [("127.0.0.1", "UNKNOWN"), ("192.0.2.1", "SHARED_SERVER")])
def test_an_nfs_whose_server_is_this_node_is_not_shared(tmp_path: Path, address: str, elsewhere: str) -> None:
    need("rpc.nfsd", "rpc.mountd", "exportfs", "ip", kernel="nfs4 nfsd")
    setup = NFS.format(address=address, folder=tmp_path)
    out = inside(tmp_path, setup, SERVED, f"{tmp_path}/at/run", sure=True, processes=True)
    here, there = map(json.loads, out.splitlines())
    assert (placement(here), here["exit_code"], here["strict"]) == ("UNKNOWN", 10, 10)
    assert here["facts"]["mount"]["type"] == "nfs4"
    assert placement(there) == elsewhere


# --- a hung mount and the proof --------------------------------------------------------------------------------------

PROOF = (
    FUSE
    + r"""
import json, subprocess, time
folder = sys.argv[1]
serve([mount_fuse("fuse", "stuck", folder)], kept=set(json.loads(sys.argv[2])))
part = '''
import json, sys, time
from ckptctl.checks.proof import read_tokens, write_token
begun = time.monotonic()
written = write_token(sys.argv[1] + "/proof", "n1", "secret", "boot", deadline_s=0.5)
read = read_tokens(sys.argv[1] + "/proof", ["n1", "n2"], "secret", visible_s=0.1, deadline_s=0.5)
print(json.dumps([written, read, time.monotonic() - begun]))
'''
begun = time.monotonic()
done = subprocess.run([sys.executable, "-c", part, folder], stdout=subprocess.PIPE, text=True, timeout=20, check=True)
print(json.dumps([*json.loads(done.stdout), time.monotonic() - begun]))
"""
)


@pytest.mark.parametrize("kept", [[3, 1], [1]], ids=["everything", "names"])
def test_a_nodes_part_of_the_proof_on_a_mount_that_hangs_ends_by_its_deadline(tmp_path: Path, kept: list[int]) -> None:
    need_fuse()
    (tmp_path / "stuck").mkdir()
    out = inside(tmp_path, "", PROOF, f"{tmp_path}/stuck", json.dumps(kept), sure=True, processes=True)
    written, read, took_s, whole_s = json.loads(out)
    assert (written["written"], written["view"]) == (False, "a mount that does not answer")
    assert "no answer within 0.5 s" in written["problem"]
    assert read["seconds"] == {}
    assert set(read["problems"]) == {"n1", "n2"}
    assert took_s < 2  # twice half a second
    assert whole_s < 5  # its stuck children hold nothing of it
