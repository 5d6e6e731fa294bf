"""Stops a training rank just before a chosen system call: `TEST_STOP=RANK:EVENT:PART`, first incarnation only.

EVENT is an audit event of Python (`os.link`, `os.rename`, `open`), PART a part of one of its arguments. A file beside the
checkpoint root (`TEST_STOP_MARK`) says that the process has stopped; SIGCONT lets it go on with that very call.

`TEST_FORGET=TYPE` makes ckptctl not know a type of file system.
"""

import os
import signal
import sys

if os.environ.get("TEST_FORGET"):
    from ckptctl.policy import filesystems

    filesystems.FILE_SYSTEMS.pop(os.environ["TEST_FORGET"], None)

_rank, _, _rest = os.environ.get("TEST_STOP", "").partition(":")
_event, _, _part = _rest.partition(":")
if _rank and os.environ.get("SLURM_PROCID") == _rank and os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
    _process, _mark, _done = os.getpid(), os.environ["TEST_STOP_MARK"], []

    def _stop(event, arguments):
        if event != _event or _done or os.getpid() != _process:
            return
        if not any(isinstance(word, str) and _part in word for word in arguments):
            return
        _done.append(event)
        os.close(os.open(_mark, os.O_WRONLY | os.O_CREAT, 0o666))
        os.kill(_process, signal.SIGSTOP)

    sys.addaudithook(_stop)
