"""The CPU process group that ckptctl talks over: small objects, with a deadline, errors of one rank told to all."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ckptctl.errors import CkptctlError, SaveFailed

T = TypeVar("T")


class CpuGroup:
    """All ranks over gloo; a world of one needs no process group. Every collective fails after `timeout_s`.

    When a peer dies, gloo raises on the others, which is how a save learns of a lost rank at once.
    """

    def __init__(self, timeout_s: float) -> None:
        self.group: dist.ProcessGroup | None = None
        if dist.is_available() and dist.is_initialized():
            timeout = datetime.timedelta(seconds=timeout_s)
            self.group = dist.new_group(backend="gloo", timeout=timeout)
        self.rank = dist.get_rank() if self.group is not None else 0
        self.world_size = dist.get_world_size() if self.group is not None else 1

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, on every rank."""
        if self.group is None:
            return [value]
        found: list[Any] = [None] * self.world_size
        with _lost_ranks_told():
            dist.all_gather_object(found, value, group=self.group)
        return found

    def broadcast(self, value: T) -> T:
        """Return the leader's value on every rank."""
        if self.group is None:
            return value
        box = [value]
        with _lost_ranks_told():
            dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def maximum(self, *values: int) -> list[int]:
        """Return the element-wise maximum over all ranks; the one collective of a save that changes nothing."""
        tensor = torch.tensor(values, dtype=torch.int64)
        if self.group is not None:
            with _lost_ranks_told():
                dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.group)
        return [int(value) for value in tensor.tolist()]

    def start_maximum(self, tensor: torch.Tensor) -> Any:
        """Start a maximum over all ranks in place and return its handle (None in a world of one)."""
        return None if self.group is None else dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.group, async_op=True)

    def watch(self, problem: str) -> Callable[[], str]:
        """Tell the others whether this rank has a problem; returns a question that never waits.

        The question answers with an empty string while all is well, and with what is known once a rank has a problem or died.
        """
        word = torch.tensor(self.rank + 1 if problem else 0, dtype=torch.int64)
        work = self.start_maximum(word)

        def ask() -> str:
            if work is None:
                return problem
            if not work.is_completed():
                return ""
            try:
                work.wait()
            except RuntimeError as exc:
                return f"a rank was lost: {str(exc).splitlines()[0]}"
            return f"rank {int(word.item()) - 1} could not leave its node's receipt" if int(word.item()) else ""

        return ask

    def send(self, value: object, to: int) -> None:
        """Send an object to another rank."""
        with _lost_ranks_told():
            dist.send_object_list([value], dst=to, group=self.group)

    def receive(self, sender: int) -> Any:
        """Receive an object from another rank."""
        box: list[Any] = [None]
        with _lost_ranks_told():
            dist.recv_object_list(box, src=sender, group=self.group)
        return box[0]

    def leader_does(self, action: Callable[[], T]) -> T:
        """Run `action` on the leader; its result, or its error, is every rank's."""
        outcome: tuple[bool, Any] = (True, None)
        if self.rank == 0:
            outcome = _attempt(action)
        try:
            outcome = self.broadcast(outcome)
        except SaveFailed:
            if outcome[0]:
                raise  # else the leader's own error says more than that nobody could be told of it
        result: T = _take(outcome)
        return result

    def all_do(self, action: Callable[[], T], what: str) -> T:
        """Run `action` on every rank; when it fails anywhere, every rank raises, naming the ranks."""
        mine = _attempt(action)
        failed = {
            rank: error for rank, (ok, error) in enumerate(self.gather((mine[0], None if mine[0] else mine[1]))) if not ok
        }
        if not failed:
            result: T = mine[1]
            return result
        first: Any = next(iter(failed.values()))
        if isinstance(first, CkptctlError):
            raise first
        ranks = ", ".join(map(str, failed))
        raise SaveFailed(f"{what} failed on rank {ranks}: {first}", hint="see that rank's log")

    def close(self) -> None:
        """Leave the group."""
        if self.group is not None and dist.is_initialized():
            dist.destroy_process_group(self.group)
            self.group = None


@contextlib.contextmanager
def _lost_ranks_told() -> Iterator[None]:
    """Turn gloo's word for a peer that is gone into ours."""
    try:
        yield
    except RuntimeError as exc:
        raise SaveFailed(f"a rank was lost: {str(exc).splitlines()[0]}", hint="see that rank's log, and its node") from exc


def _attempt(action: Callable[[], Any]) -> tuple[bool, Any]:
    try:
        return True, action()
    except CkptctlError as exc:
        return False, exc
    except Exception as exc:  # noqa: BLE001 - whatever one rank fails with must reach the others
        return False, RuntimeError(f"{type(exc).__name__}: {exc}")


def _take(outcome: tuple[bool, Any]) -> Any:
    ok, value = outcome
    if ok:
        return value
    if isinstance(value, CkptctlError):
        raise value
    raise SaveFailed(f"the leader failed: {value}", hint="see rank 0's log")
