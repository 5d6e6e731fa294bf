"""The site's word: promised mounts, ephemeral folders, kinds of artifacts, and users who may only tighten it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptctl.model.mount import BlockDevice, MountRow, PathFacts
from ckptctl.model.verdict import Confidence, Placement
from ckptctl.policy.placement import judge
from ckptctl.policy.site import Artifact, Durability, ExpectedMount, Mode, SitePolicy


def facts(path: str = "/lustre/x", **row: object) -> PathFacts:
    """Return facts of a path on Lustre, or on what `row` says."""
    base = MountRow(
        36, 25, 0, 60, "/", "/lustre", ("rw",), (), "lustre", "10.0.0.1@o2ib:/scratch", ("rw", "flock", "lazystatfs")
    )
    magics = {"lustre": 0x0BD00BD0, "ext4": 0xEF53, "virtiofs": 0x65735546, "nfs4": 0x6969}
    changed = replace(base, **row)  # type: ignore[arg-type]
    devices = (BlockDevice("nvme0n1", "pcie"),) if changed.type == "ext4" else ()
    return PathFacts(path, path, path, "", changed, magics[changed.type], 0, 0, 1 << 40, 1 << 39, 100, 50, devices)


def verdict(site: SitePolicy, seen: PathFacts, artifact: Artifact = Artifact.CHECKPOINT, **more: object) -> object:
    """Judge with a site's policy."""
    asked = {"job_ids": (), "single_machine": False, "accept": frozenset(), **more}
    return judge(seen, site=site, artifact=artifact, **asked)  # type: ignore[arg-type]


ROOT_DISK = {"type": "ext4", "source": "/dev/nvme0n1p2", "mount_point": "/", "super_options": ("rw",)}


@pytest.mark.parametrize(
    ("promised", "row", "missing"),
    [
        (ExpectedMount("/lustre", "lustre"), {}, False),
        (ExpectedMount("/lustre", "lustre", "*:/scratch"), {}, False),
        (ExpectedMount("/lustre", "lustre", "*:/home"), {}, True),
        (ExpectedMount("/lustre", "gpfs"), {}, True),
        (ExpectedMount("/lustre"), {}, False),
        (ExpectedMount("/lustre", "lustre"), ROOT_DISK, True),
        (ExpectedMount("/lustre"), ROOT_DISK, True),
        (ExpectedMount("/lustre", "nfs"), {"type": "nfs4"}, False),
        (ExpectedMount("/lustrex", "gpfs"), {}, False),
        (ExpectedMount("/", "ext4"), {}, True),
    ],
)
def test_a_promised_mount_that_is_not_there_is_missing_with_what_is_there(
    promised: ExpectedMount, row: dict[str, object], missing: bool
) -> None:
    found = verdict(SitePolicy(mounts=(promised,)), facts(**row))
    assert (found.placement is Placement.MISSING_MOUNT) is missing
    if missing:
        assert not found.allowed
        assert found.exit_code == 14
        assert "expected" in found.reason
        assert "found" in found.reason


def test_nobodys_word_makes_a_missing_mount_good() -> None:
    site = SitePolicy(mounts=(ExpectedMount("/lustre", "lustre"),))
    found = verdict(site, facts(**ROOT_DISK), single_machine=True, accept=frozenset(Placement))
    assert not found.allowed


def test_the_promise_for_the_longest_path_counts() -> None:
    site = SitePolicy(mounts=(ExpectedMount("/lustre", "gpfs"), ExpectedMount("/lustre/x", "lustre")))
    assert verdict(site, facts("/lustre/x/run1")).allowed
    assert not verdict(site, facts("/lustre/y")).allowed


@pytest.mark.parametrize(
    ("glob", "ephemeral"), [("/lustre/tmp/*", True), ("/lustre/tmp", True), ("/lustre/t?p", True), ("/lustre/other/*", False)]
)
def test_what_the_site_removes_is_ephemeral_below_it_too(glob: str, ephemeral: bool) -> None:
    found = verdict(SitePolicy(ephemeral_globs=(glob,)), facts("/lustre/tmp/ada/run1"))
    assert (found.placement is Placement.SHARED_EPHEMERAL) is ephemeral
    assert found.allowed is not ephemeral


@pytest.mark.parametrize(
    ("durability", "placement"),
    [
        (Durability.DURABLE, Placement.SHARED_PARALLEL),
        (Durability.SCRATCH, Placement.SHARED_PARALLEL),
        (Durability.EPHEMERAL, Placement.SHARED_EPHEMERAL),
    ],
)
def test_what_the_site_calls_ephemeral_is_no_home_whatever_is_accepted(durability: Durability, placement: Placement) -> None:
    site = SitePolicy(mounts=(ExpectedMount("/lustre", "lustre", durability=durability),))
    found = verdict(site, facts())
    assert (found.placement, found.allowed) == (placement, durability is not Durability.EPHEMERAL)
    assert verdict(site, facts(), accept=frozenset(Placement)).allowed is (durability is not Durability.EPHEMERAL)
    assert verdict(site, facts(), Artifact.DATASET_CACHE).allowed


@pytest.mark.parametrize("mine", list(Durability))
@pytest.mark.parametrize("theirs", list(Durability))
def test_of_two_words_on_durability_the_weaker_counts(mine: Durability, theirs: Durability) -> None:
    site = SitePolicy(mounts=(ExpectedMount("/lustre", durability=mine),))
    found = site.tightened(SitePolicy(mounts=(ExpectedMount("/lustre", durability=theirs),)))
    assert found.mounts[0].durability is max(mine, theirs, key=lambda word: word.rank)


def test_storage_that_cannot_be_classified_may_be_declared_and_says_so() -> None:
    share = facts(type="virtiofs", source="jail")
    assert verdict(SitePolicy(), share).placement is Placement.UNKNOWN
    site = SitePolicy(mounts=(ExpectedMount("/lustre", "virtiofs", "jail", declare=Placement.SHARED_SERVER),))
    found = verdict(site, share)
    assert (found.placement, found.confidence, found.allowed) == (Placement.SHARED_SERVER, Confidence.DECLARED, True)


def test_only_storage_that_nobody_knows_waits_for_a_proof() -> None:
    assert verdict(SitePolicy(), facts(type="virtiofs", source="jail")).provable
    assert not verdict(SitePolicy(), facts(**ROOT_DISK)).provable
    assert not verdict(SitePolicy(), facts()).provable
    contradiction = replace(facts(), magic=0xEF53)
    assert verdict(SitePolicy(), contradiction).placement is Placement.UNKNOWN
    assert not verdict(SitePolicy(), contradiction).provable


def test_a_declaration_does_not_overrule_what_is_known() -> None:
    site = SitePolicy(mounts=(ExpectedMount("/lustre", "ext4", declare=Placement.SHARED_PARALLEL),))
    assert not verdict(site, facts(**{**ROOT_DISK, "mount_point": "/lustre"})).allowed


def test_a_forbidden_option_refuses_whatever_the_class() -> None:
    site = SitePolicy(mounts=(ExpectedMount("/lustre", forbid_options=("lazystatfs",)),))
    found = verdict(site, facts(), accept=frozenset(Placement))
    assert not found.allowed
    assert "forbids the mount option `lazystatfs`" in found.reason
    assert found.exit_code == 10


@pytest.mark.parametrize("artifact", list(Artifact))
def test_caches_may_be_local_and_checkpoints_may_not(artifact: Artifact) -> None:
    local = facts(**{**ROOT_DISK, "mount_point": "/local"})
    assert verdict(SitePolicy(), local, artifact).allowed is not artifact.durable
    assert verdict(SitePolicy(), facts(), artifact).allowed
    assert not verdict(SitePolicy(), facts(options=("ro",)), artifact).allowed


def test_a_user_can_make_it_stricter_only() -> None:
    site = SitePolicy(
        mode=Mode.WARN,
        mounts=(ExpectedMount("/lustre", "lustre", declare=Placement.SHARED_PARALLEL),),
        allow={Artifact.CHECKPOINT: frozenset({Placement.SHARED_PARALLEL, Placement.SHARED_SERVER})},
    )
    loose = SitePolicy(
        mode=Mode.AUDIT,
        mounts=(ExpectedMount("/lustre", "ext4"), ExpectedMount("/mine", declare=Placement.SHARED_PARALLEL)),
        allow={Artifact.CHECKPOINT: frozenset(Placement)},
    )
    found = site.tightened(loose)
    assert found.mode is Mode.WARN
    assert found.expected("/lustre/x") == site.mounts[0]
    assert found.expected("/mine/x") == ExpectedMount("/mine")
    assert found.allowed(Artifact.CHECKPOINT) == site.allowed(Artifact.CHECKPOINT)
    strict = SitePolicy(
        mode=Mode.ENFORCE,
        mounts=(ExpectedMount("/lustre", forbid_options=("flock",)),),
        ephemeral_globs=("/lustre/tmp",),
        allow={Artifact.CHECKPOINT: frozenset({Placement.SHARED_PARALLEL})},
    )
    found = site.tightened(strict)
    assert found.mode is Mode.ENFORCE
    assert found.allowed(Artifact.CHECKPOINT) == {Placement.SHARED_PARALLEL}
    assert found.expected("/lustre/x") == replace(site.mounts[0], forbid_options=("flock",))
    assert found.ephemeral("/lustre/tmp/x") == "/lustre/tmp"


POLICIES = st.builds(
    SitePolicy,
    mode=st.sampled_from(Mode),
    mounts=st.lists(
        st.builds(
            ExpectedMount,
            st.sampled_from(["/lustre", "/lustre/x", "/"]),
            type=st.sampled_from(["", "lustre", "ext4", "virtiofs"]),
            declare=st.sampled_from([None, Placement.SHARED_PARALLEL, Placement.NODE_LOCAL]),
            forbid_options=st.sampled_from([(), ("flock",)]),
            durability=st.sampled_from(Durability),
        ),
        max_size=3,
        unique_by=lambda mount: mount.path,
    ).map(tuple),
    ephemeral_globs=st.sampled_from([(), ("/lustre/*",)]),
    allow=st.dictionaries(st.sampled_from(Artifact), st.frozensets(st.sampled_from(Placement)), max_size=2),
)
SEEN = [facts(), facts(type="virtiofs", source="jail"), facts(**ROOT_DISK)]


@settings(max_examples=400)
@given(POLICIES, POLICIES, st.sampled_from(SEEN), st.sampled_from(Artifact))
def test_no_word_of_a_user_allows_what_the_site_refuses(
    site: SitePolicy, user: SitePolicy, seen: PathFacts, artifact: Artifact
) -> None:
    if verdict(site.tightened(user), seen, artifact).allowed:
        assert verdict(site, seen, artifact).allowed
