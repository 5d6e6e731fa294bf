"""Whatever users call their jobs and write into comments, the fields that decisions rest on come back right."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ckptctl.model.job import comment_value, comment_word
from ckptctl.scheduler import slurm_text as text

HOSTS = st.lists(
    st.builds("{}{:0{}d}".format, st.sampled_from(["n", "gpu-a", "node"]), st.integers(0, 999), st.sampled_from([1, 3])),
    max_size=20,
    unique=True,
)
NAMES = st.text("abcXYZ019 =._-:/", max_size=20)
COMMENTS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=40)


@given(HOSTS)
def test_a_host_list_names_the_same_hosts_again(hosts: list[str]) -> None:
    assert set(text.expand(text.fold(hosts))) == set(hosts)


@given(COMMENTS, st.text("abc%= ", max_size=20))
def test_a_comments_value_comes_back_whatever_it_holds(value: str, other: str) -> None:
    comment = f"{other.replace('key', '')} {comment_word('key', value)} more"
    assert len(comment_word("key", value).split()) == 1
    assert comment_value(comment, "key") == value


@given(NAMES, NAMES, COMMENTS, st.integers(0, 99), HOSTS, st.sampled_from(["RUNNING", "PENDING", "COMPLETING"]))
def test_names_and_commands_with_blanks_and_equals_signs_do_no_harm(
    name: str, command: str, comment: str, restarts: int, hosts: list[str], state: str
) -> None:
    nodes = text.fold(hosts) or "(null)"
    line = (
        f"JobId=3 JobName={name} UserId=ada(1) JobState={state} Reason=None Requeue=1 Restarts={restarts} BatchFlag=1 "
        f"ExitCode=0:0 ExcNodeList={nodes} NodeList={nodes} BatchHost=n1 Command={command} WorkDir=/w "
        f"Comment={comment_word('ckptctl', comment)} StdErr=/w/x StdOut=/w/x "
    )
    (record,) = text.job_fields(line)
    job = text.job(record)
    assert (job.id, job.restart, job.requeueable, job.is_batch) == ("3", restarts, True, True)
    assert job.state is text.job_state(state)
    assert set(job.nodes) == set(job.excluded) == set(hosts)
    assert comment_value(job.comment, "ckptctl") == comment


@given(st.text(max_size=200))
def test_any_text_is_parsed_without_an_error(noise: str) -> None:
    for record in text.job_fields("JobId=" + noise):
        text.job({**record, "Restarts": "0"})
    for record in text.node_fields("NodeName=" + noise):
        text.node_state(record.get("State", ""))
