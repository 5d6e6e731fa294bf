"""What the environment says about the job."""

from __future__ import annotations

import pytest

from ckptctl.scheduler.here import job_ids, temporary_dirs


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ()),
        ({"SLURM_JOB_ID": ""}, ()),
        ({"SLURM_JOB_ID": "12"}, ("12",)),
        ({"SLURM_JOB_ID": "14", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "3"}, ("12", "12_3", "14")),
    ],
)
def test_the_names_of_the_job(environment: dict[str, str], expected: tuple[str, ...]) -> None:
    assert job_ids(environment) == expected


def test_what_a_burst_buffer_made_for_the_job_is_temporary_and_what_outlives_it_is_not() -> None:
    environment = {
        "TMPDIR": "/tmp/x",
        "SLURM_TMPDIR": "/tmp/x",
        "DW_JOB_STRIPED": "/var/opt/cray/dws/mounts/batch/7/ss",
        "DW_JOB_my_lustre": "/mnt/nnf/7-0",
        "DW_PERSISTENT_STRIPED_keep": "/mnt/keep",
        "HOME": "/root",
    }
    assert temporary_dirs(environment) == ("/tmp/x", "/var/opt/cray/dws/mounts/batch/7/ss", "/mnt/nnf/7-0")
    assert temporary_dirs({"TMPDIR": ""}) == ()
