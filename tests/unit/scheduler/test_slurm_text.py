"""The text of `scontrol`: records as Slurm 22.05 and 25.11 write them."""

from __future__ import annotations

import pytest

from ckptctl.model.job import JobState, NodeState
from ckptctl.scheduler import slurm_text as text

JOB_22_05 = (
    "JobId=17 JobName=train UserId=ada(1001) GroupId=ml(100) MCS_label=N/A Priority=4294901757 "
    "Nice=0 Account=(null) QOS=normal "
    "JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=00:01:02 "
    "TimeLimit=UNLIMITED TimeMin=N/A SubmitTime=2026-01-01T10:00:00 EligibleTime=2026-01-01T10:02:01 "
    "AccrueTime=2026-01-01T10:02:01 StartTime=2026-01-01T10:02:01 EndTime=Unknown Deadline=N/A "
    "SuspendTime=None SecsPreSuspend=0 "
    "LastSchedEval=2026-01-01T10:02:01 Scheduler=Backfill Partition=gpu AllocNode:Sid=login:4711 ReqNodeList=(null) "
    "ExcNodeList=n[3,7] NodeList=n[1-2,4] BatchHost=n1 NumNodes=3 NumCPUs=12 NumTasks=3 CPUs/Task=1 ReqB:S:C:T=0:0:*:* "
    "TRES=cpu=12,node=3,billing=12 Socks/Node=* NtasksPerN:B:S:C=1:0:*:* CoreSpec=* MinCPUsNode=1 MinMemoryNode=0 "
    "MinTmpDiskNode=0 Features=(null) DelayBoot=00:00:00 OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null) "
    "Command=/home/ada/my job.sbatch WorkDir=/home/ada Comment=mine ckptctl=n3%20is%20DOWN StdErr=/home/ada/17.out "
    "StdIn=/dev/null StdOut=/home/ada/17.out Power= "
)
JOB_25_11 = (
    "JobId=400_7 ArrayJobId=400 ArrayTaskId=7 JobName=sweep UserId=grace(2) GroupId=ml(100) MCS_label=N/A Priority=1 Nice=0 "
    "Account=a QOS=q JobState=PENDING Reason=BeginTime Dependency=(null) Requeue=0 Restarts=1 "
    "BatchFlag=2 Reboot=0 ExitCode=0:0 "
    "RunTime=00:00:00 TimeLimit=1-00:00:00 TimeMin=N/A SubmitTime=x EligibleTime=x AccrueTime=x "
    "StartTime=x EndTime=x Deadline=N/A "
    "SuspendTime=None SecsPreSuspend=0 LastSchedEval=x Scheduler=Main Partition=gpu AllocNode:Sid=login:1 ReqNodeList=(null) "
    "ExcNodeList=(null) NodeList= StepMgrEnabled=Yes NumNodes=2 NumCPUs=2 NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:* "
    "ReqTRES=cpu=2 AllocTRES=(null) Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=* MinCPUsNode=1 MinMemoryNode=0 "
    "MinTmpDiskNode=0 Features=(null) DelayBoot=00:00:00 OverSubscribe=NO Contiguous=0 Licenses=(null) LicensesAlloc=(null) "
    "Network=(null) Command=(null) SubmitLine=sbatch --requeue JobState=COMPLETED x.sh WorkDir=/w "
    "StdErr=/w/e StdIn=/dev/null StdOut=/w/o "
)


def test_a_running_job_of_22_05() -> None:
    (record,) = text.job_fields(JOB_22_05)
    job = text.job(record)
    assert (job.id, job.restart, job.user, job.state, job.name) == ("17", 2, "ada", JobState.RUNNING, "train")
    assert job.nodes == ("n1", "n2", "n4")
    assert job.excluded == ("n3", "n7")
    assert (job.batch_host, job.is_batch, job.requeueable) == ("n1", True, True)
    assert job.comment == "mine ckptctl=n3%20is%20DOWN"


def test_a_waiting_array_task_of_25_11() -> None:
    (record,) = text.job_fields(JOB_25_11)
    job = text.job(record)
    assert (job.id, job.state, job.reason, job.requeueable) == ("400_7", JobState.PENDING, "BeginTime", False)
    assert (job.nodes, job.excluded, job.batch_host, job.comment) == ((), (), "", "")


def test_lines_that_are_no_records_are_ignored() -> None:
    assert text.job_fields("No jobs in the system\n\n") == []
    assert len(text.job_fields(JOB_22_05 + "\n" + JOB_25_11 + "\n")) == 2


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("RUNNING", JobState.RUNNING),
        ("COMPLETING", JobState.COMPLETING),
        ("CANCELLED by 1001", JobState.CANCELLED),
        ("COMPLETED+RECONFIG_FAIL", JobState.COMPLETED),
        ("REQUEUE_HOLD", JobState.PENDING),
        ("OUT_OF_MEMORY", JobState.FAILED),
        ("SOMETHING_NEW", JobState.UNKNOWN),
        ("", JobState.UNKNOWN),
    ],
)
def test_job_states(word: str, state: JobState) -> None:
    assert text.job_state(word) is state


@pytest.mark.parametrize(
    ("words", "state"),
    [
        ("IDLE", NodeState.UP),
        ("MIXED+DRAIN", NodeState.UP),
        ("ALLOCATED+MAINTENANCE+RESERVED", NodeState.UP),
        ("IDLE*", NodeState.SUSPECT),
        ("MIXED+NOT_RESPONDING", NodeState.SUSPECT),
        ("DOWN+NOT_RESPONDING", NodeState.DOWN),
        ("DOWN*+DRAIN", NodeState.DOWN),
        ("IDLE+POWERED_DOWN", NodeState.DOWN),
        ("MIXED+FAILING", NodeState.DOWN),
        ("PLANNED_FOR_SOMETHING", NodeState.UNKNOWN),
        ("", NodeState.UNKNOWN),
    ],
)
def test_node_states(words: str, state: NodeState) -> None:
    assert text.node_state(words) is state


def test_a_node_record() -> None:
    line = (
        "NodeName=n3 Arch=x86_64 CoresPerSocket=1 CPUAlloc=0 CPUEfctv=4 CPUTot=4 CPULoad=0.10 AvailableFeatures=(null) "
        "NodeAddr=10.0.0.3 NodeHostName=n3 Version=22.05.8 OS=Linux 6.1 #1 SMP RealMemory=8000 State=DOWN+NOT_RESPONDING "
        "ThreadsPerCore=1 Partitions=main Reason=Not responding [slurm@2026-01-01T10:00:00] Comment=State=IDLE"
    )
    (record,) = text.node_fields(line)
    assert record["NodeName"] == "n3"
    assert text.node_state(record["State"].split()[0]) is NodeState.DOWN
    assert text.node_state(record["State"]) is NodeState.DOWN


@pytest.mark.parametrize("hosts", ["", "(null)", "None"])
def test_no_hosts(hosts: str) -> None:
    assert text.expand(hosts) == ()
