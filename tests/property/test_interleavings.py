"""Incarnations, zombies and crashes in any order: what was reported complete is never lost, nothing torn is believed."""

from __future__ import annotations

import os
import shutil
import tempfile

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from ckptctl.actions import inspect
from ckptctl.errors import CkptctlError
from ckptctl.model.verdict import Completeness
from ckptctl.saving.session import SaveSettings
from ckptctl.storage import files
from ckptctl.storage.repository import Repository
from ckptctl.storage.start import choose
from tests.support.lineage import Run, begin

SAVE = SaveSettings(deadline_s=0.0, keep_last=2, keep_every=0)
STEPS = st.integers(1, 12)
MOMENTS = st.integers(0, 24)


class _Crash(BaseException):
    """The process ends here, as far as the disk can tell."""


class Lineage(RuleBasedStateMachine):
    """One root; every incarnation that ever began may act at any time, as a zombie may."""

    runs = Bundle("runs")

    @initialize(target=runs)
    def first(self) -> Run:
        self.folder = tempfile.mkdtemp(prefix="ckptctl-lineage-")
        self.root = os.path.join(self.folder, "root")
        self.reported: set[int] = set()
        return begin(self.root, settings=SAVE)

    @rule(target=runs)
    def another_incarnation(self) -> Run:
        run = begin(self.root, settings=SAVE)
        assert run.started.point.step >= max(self.reported, default=0), "a complete checkpoint was lost"
        return run

    @rule(run=runs, step=STEPS)
    def stage(self, run: Run, step: int) -> None:
        self._try(lambda: run.stage(step))

    @rule(run=runs, step=STEPS, rank=st.integers(0, 1))
    def write(self, run: Run, step: int, rank: int) -> None:
        if step in run.plans and (step, rank) not in run.receipts:
            self._try(lambda: run.write(step, rank))

    @rule(run=runs, step=STEPS, node=st.sampled_from(["n1", "n2"]))
    def leave_receipt(self, run: Run, step: int, node: str) -> None:
        if step in run.plans and (step, run.leader.nodes[node][0]) in run.receipts:
            self._try(lambda: run.leave_receipt(step, node))

    @rule(run=runs, step=STEPS)
    def save(self, run: Run, step: int) -> None:
        self._commit(run, step, lambda: run.save(step) and None)

    @rule(run=runs, step=STEPS)
    def commit(self, run: Run, step: int) -> None:
        if step in run.plans:
            self._commit(run, step, lambda: run.commit(step) and None)

    @rule(run=runs, step=STEPS, moment=MOMENTS)
    def crash_in_a_save(self, run: Run, step: int, moment: int) -> None:
        def crash() -> None:
            raise _Crash

        self._commit(run, step, lambda: self._at(moment, crash, lambda: run.save(step) and None))

    @rule(moment=MOMENTS)
    def crash_in_a_start(self, moment: int) -> None:
        def crash() -> None:
            raise _Crash

        self._try(lambda: self._at(moment, crash, lambda: begin(self.root, settings=SAVE) and None))

    @rule(target=runs, run=runs, step=STEPS, moment=MOMENTS)
    def overtaken_in_a_save(self, run: Run, step: int, moment: int) -> Run:
        newer: list[Run] = []
        self._commit(
            run,
            step,
            lambda: self._at(moment, lambda: newer.append(begin(self.root, settings=SAVE)), lambda: run.save(step) and None),
        )
        return newer[0] if newer else run

    @precondition(lambda self: hasattr(self, "root"))
    @invariant()
    def what_counts_is_whole_and_nothing_reported_is_lost(self) -> None:
        choice = choose(Repository(self.root))
        assert (choice.chosen.id.step if choice.chosen else 0) >= max(self.reported, default=0)
        rows = inspect.list_root(self.root)
        complete = [row for row in rows if row.verdict is Completeness.COMPLETE]
        for row in complete:
            assert inspect.verify(os.path.join(self.root, row.folder), deep=True).verdict is Completeness.COMPLETE, row
        assert not [row for row in rows if row.verdict is Completeness.CORRUPT]
        if choice.chosen is not None:
            assert choice.chosen.id.folder == complete[0].folder
        assert len({row.step for row in complete}) >= min(2, len(self.reported)), "fewer than two checkpoints are left"

    def teardown(self) -> None:
        files.observe(None)
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    def _at(self, moment: int, event: object, action: object) -> None:
        count = [0]

        def observer(operation: str, path: str) -> None:
            count[0] += 1
            if count[0] == moment + 1:
                files.observe(None)
                event()  # type: ignore[operator]

        files.observe(observer)
        try:
            action()  # type: ignore[operator]
        finally:
            files.observe(None)

    def _commit(self, run: Run, step: int, action: object) -> None:
        if self._try(action):
            self.reported.add(step)

    def _try(self, action: object) -> bool:
        try:
            action()  # type: ignore[operator]
        except (CkptctlError, FileExistsError, KeyError, _Crash):
            return False
        return True


TestLineage = Lineage.TestCase
TestLineage.settings = settings(max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck))
