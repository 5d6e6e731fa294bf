"""What `lfs`, `quota` and the mm commands print, as their sources say, and what is made of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptctl.model.quota import Component, Quota
from ckptctl.storage.tool_text import fileset, lustre_layout, lustre_project, mmlsquota, pcc_state, quota_row

K = 1024

ROWS = [
    # what, text, quota
    (
        "lfs, no limits",
        "    /lustre/s  184  0  0  -  52  0  0  -\n",
        Quota("u", 184 * K, None, None, 52, None, None),
    ),
    (
        "lfs, limits",
        "     /lustre  5242880  4194304 6291456       -  120000       0 1000000       - \n",
        Quota("u", 5242880 * K, 4194304 * K, 6291456 * K, 120000, None, 1000000),
    ),
    (
        "lfs, over a soft limit, a star and its grace",
        "     /lustre 5242880*  4194304 6291456 6d23h59m58s  120000*       0 1000000       expired \n",
        Quota("u", 5242880 * K, 4194304 * K, 6291456 * K, 120000, None, 1000000, "6d23h59m58s"),
    ),
    (
        "lfs, a name that wraps",
        "/lustre/with/a/very/long/name/of/a/mount\n              10      0    20      -      5      0      0      -\n",
        Quota("u", 10 * K, None, 20 * K, 5, None, None),
    ),
    (
        "lfs, a server that did not answer",
        (
            'Some errors happened when getting quota info. Some devices may be not working or deactivated. The data in "[]" is'
            " inaccurate.\n  /lustre [184] 0 [4000] - 52 0 0 -\n"
        ),
        Quota("u", 184 * K, None, 4000 * K, 52, None, None),
    ),
    (
        "lfs, default limits are told below",
        (
            "/lustre 184 0 4000 - 52 0 0 -\nuid 1000 is using default block quota setting\n"
            "uid 1000 is using default file quota setting\n"
        ),
        Quota("u", 184 * K, None, 4000 * K, 52, None, None),
    ),
    (
        "quota -w -p",
        (
            "Disk quotas for user me (uid 1000): \n     Filesystem  blocks   quota   limit   grace   files"
            "   quota   limit   grace\n"
            "          /home   20000*  10000   30000 1766666666     100       0       0       0\n"
        ),
        Quota("u", 20000 * K, 10000 * K, 30000 * K, 100, None, None, "1766666666"),
    ),
    ("quota, none", "Disk quotas for user root (uid 0): none\n", None),
    ("nothing", "", None),
    ("an error", "lfs quota: cannot resolve path '/x': No such file or directory (2)\n", None),
    ("letters where numbers should be", "/lustre a b c - d e f -\n", None),
]


@pytest.mark.parametrize(("text", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_rows_of_lfs_and_quota(text: str, expected: Quota | None) -> None:
    assert quota_row(text, "u") == expected


counts = st.integers(0, 2**60)


@given(st.tuples(counts, counts, counts, counts, counts, counts), st.sampled_from(["-", "6d", "expired"]))
def test_every_row_that_lfs_can_print_comes_back(numbers: tuple[int, ...], grace: str) -> None:
    used, soft, hard, files, soft_files, hard_files = numbers
    text = f"{'/lustre':>16}{used:>8} {soft:>7} {hard:>7} {grace:>7} {files:>7} {soft_files:>7} {hard_files:>7} {'-':>7} \n"
    found = quota_row(text.replace("/lustre", "/lustre "), "x")
    assert found is not None
    assert (found.used_bytes, found.soft_bytes or 0, found.hard_bytes or 0) == (used * K, soft * K, hard * K)
    assert (found.used_inodes, found.soft_inodes or 0, found.hard_inodes or 0) == (files, soft_files, hard_files)


@given(st.text(max_size=200))
def test_no_text_breaks_a_parser(text: str) -> None:
    quota_row(text, "x")
    mmlsquota(text)
    lustre_layout(text)
    lustre_project(text)
    pcc_state(text)
    fileset(text)


HEADER = (
    "mmlsquota::HEADER:version:reserved:reserved:filesystemName:quotaType:id:name:blockUsage:blockQuota:blockLimit:blockInDoubt:"
    "blockGrace:filesUsage:filesQuota:filesLimit:filesInDoubt:filesGrace:remarks:quota:defQuota:fid:filesetname:\n"
)


def test_mmlsquota_is_read_by_the_names_of_its_columns() -> None:
    text = HEADER + (
        "mmlsquota::0:1:::gpfs0:USR:1001:me:1048576:2097152:3145728:0:2 days:1000:0:500:0:none:e:on:off::root:\n"
        "mmlsquota::0:1:::gpfs0:FILESET:7:team%3Aa:10:0:20:0:none:1:0:0:0:none:e:on:off:::\n"
        "mmlsquota::0:1:::gpfs0:GRP:500:lab:no:0:0:0:none:1:0:0:0:none::::::\n"
    )
    assert mmlsquota(text) == [
        Quota("user me", 1048576 * K, 2097152 * K, 3145728 * K, 1000, None, 500, "2 days"),
        Quota("fileset team:a", 10 * K, None, 20 * K, 1, None, None),
    ]
    shuffled = "mmlsquota::HEADER:quotaType:name:filesLimit:filesQuota:filesUsage:blockLimit:blockQuota:blockUsage:\n"
    assert mmlsquota(shuffled + "mmlsquota::0:USR:me:6:5:4:3:2:1:\n") == [Quota("user me", K, 2 * K, 3 * K, 4, 5, 6)]
    assert mmlsquota("mmlsquota::0:USR:me:6:5:4:3:2:1:\n") == []


def test_the_fileset_of_a_path() -> None:
    assert fileset("file name:            /gpfs/x\nfileset name:         team-a\nsnapshot name:\n") == "team-a"
    assert fileset("mmlsattr: no such file\n") == ""


@pytest.mark.parametrize(
    ("text", "number"), [("    0 - /lustre/x\n", 0), (" 4711 P /lustre/x\n", 4711), ("", 0), ("lfs: no\n", 0)]
)
def test_the_project_of_a_lustre_folder(text: str, number: int) -> None:
    assert lustre_project(text) == number


LAYOUTS = [
    ("plain", "stripe_count:  1 stripe_size:   1048576 pattern:       raid0 stripe_offset: -1\n", (Component(0, None, 1),)),
    (
        "all OSTs",
        "/lustre/x\nstripe_count:  -1 stripe_size:   4194304 stripe_offset: -1 pool: flash\n",
        (Component(0, None, -1),),
    ),
    (
        "progressive, its first part on the metadata server",
        """  lcm_layout_gen:    0
  lcm_mirror_count:  1
  lcm_entry_count:   3
    lcme_id:             N/A
    lcme_mirror_id:      N/A
    lcme_flags:          0
    lcme_extent.e_start: 0
    lcme_extent.e_end:   1048576
      stripe_count:  0       stripe_size:   1048576       pattern:       mdt       mdt_index:     -1

    lcme_id:             N/A
    lcme_extent.e_start: 1048576
    lcme_extent.e_end:   1073741824
      stripe_count:  1       stripe_size:   1048576       pattern:       raid0       stripe_offset: -1

    lcme_id:             N/A
    lcme_extent.e_start: 1073741824
    lcme_extent.e_end:   EOF
      stripe_count:  8       stripe_size:   4194304       pattern:       raid0       stripe_offset: -1
""",
        (Component(0, 1 << 20, 0), Component(1 << 20, 1 << 30, 1), Component(1 << 30, None, 8)),
    ),
    ("other counts are none of a file's stripes", "lmv_stripe_count: 4 lcme_cstripe_count: 2\n", ()),
    ("nothing", "error: can't stat\n", ()),
]


@pytest.mark.parametrize(("text", "expected"), [row[1:] for row in LAYOUTS], ids=[row[0] for row in LAYOUTS])
def test_layouts(text: str, expected: tuple[Component, ...]) -> None:
    assert lustre_layout(text) == expected


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("file: /lustre/x, type: readwrite, PCC_file: /0x1, open_count: 1, flags: 0\n", "readwrite"),
        ("file: /lustre/x, type: none\n", "none"),
        ("file: /lustre/x, type: readonly, PCC file: /a, user number: 0, flags: 4\n", "readonly"),
        ("lfs pcc state: /x: Inappropriate ioctl for device\n", ""),
    ],
)
def test_whether_a_file_is_on_this_node_only(text: str, state: str) -> None:
    assert pcc_state(text) == state
