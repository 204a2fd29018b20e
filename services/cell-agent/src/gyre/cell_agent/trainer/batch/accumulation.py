"""The batch under accumulation: its micro-steps are put in by the thread that takes commands and
computed by one of the batch's own.

Invariants:
- `accumulated` lists what is in this rank's gradient buffers, and is in order; between a flush and
  the next `submit` it is all that was submitted;
- after a flush `record` is that of the whole cell, on every rank of it;
- what failed stays so: every later call raises the same, until the batch is abandoned.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence

from gyre.adapters.failpoints import failpoint
from gyre.cell_agent.trainer.batch.batch_record import (
    BatchRecord,
    CellTimes,
    MicroStepReport,
    report_empty,
    report_micro_step,
    report_non_finite,
)
from gyre.cell_agent.trainer.batch.headers import HeaderLine, Kind
from gyre.cell_agent.trainer.batch.inbox import Inbox, Item, Work
from gyre.cell_agent.trainer.batch.statistics import Totals, target_totals
from gyre.cell_agent.trainer.batch.stream import Stream, Trained
from gyre.cell_agent.trainer.errors import BadMicroStep, StageLost, WrongState
from gyre.cell_agent.trainer.model.layout import own_coordinate
from gyre.core.microstep import MicroStep


class Accumulation:
    """failpoints: passed after each micro-step."""

    def __init__(
        self, batch: str, stream: Stream, line: HeaderLine, failpoints: Sequence[str]
    ) -> None:
        self.batch = batch
        self.record = BatchRecord()
        self.accumulated: list[int] = []
        self._submitted: set[int] = set()
        self._ended = False
        self._computing = _Computing(stream, line, self.accumulated, failpoints)
        self._began = time.perf_counter()

    @property
    def num_warmups(self) -> int:
        return self._computing.stream.clock.num_warmups

    @property
    def slowest_s(self) -> float:
        """Of its micro-steps so far, 0 before the first has ended."""
        return self._computing.stream.clock.slowest_s

    def require_new(self, step: MicroStep) -> None:
        """Raises WrongState: of another batch, or here already."""
        if step.batch != self.batch:
            raise WrongState(f"micro-step of batch {step.batch}, open is {self.batch}")
        if step.index in self._submitted:
            raise WrongState(f"micro-step {step.index} is already in this accumulation")

    def submit(self, work: Work) -> None:
        """Returns when it is about to be computed. Raises WrongState, BadMicroStep, StageLost."""
        self.require_new(work.step)
        self._require_open()
        self._computing.require_sound()
        self._computing.inbox.put(work)
        self._submitted.add(work.step.index)

    def flush(self) -> list[MicroStepReport]:
        """Waits until all that was submitted is in the buffers; returns what is known of those not
        reported yet. Raises BadMicroStep: the objective refused one of them; StageLost."""
        return self._stop(Kind.DRAIN)

    def finish(self, cell: int, pull_s: float) -> None:
        """A flush after which nothing can be submitted; adds this cell's times to the record."""
        self._stop(Kind.CLOSED)
        busy = self._computing.stream.clock.busy_s
        idle = max(0.0, time.perf_counter() - self._began - busy)
        times = CellTimes(cell=cell, busy_s=busy, idle_s=idle, pull_s=pull_s)
        self.record = self.record.plus(BatchRecord(times=(times,)))

    def abandon(self) -> None:
        """Ends the computing thread. What the cell's other ranks do not come to is left."""
        if not self._ended:
            with contextlib.suppress(BadMicroStep, StageLost):
                self._stop(Kind.CLOSED)

    def _stop(self, kind: Kind) -> list[MicroStepReport]:
        self._require_open()
        self._computing.inbox.stop(kind)
        if kind is Kind.CLOSED:
            self._ended = True
            self._computing.thread.join()
        reports = self._computing.reported()
        for report in reports:
            self.record = self.record.plus(report.record)
        self._computing.require_sound()
        return reports

    def _require_open(self) -> None:
        if self._ended:
            raise WrongState(f"batch {self.batch} is finished: it takes no micro-step")


class _Computing:
    """The stream's source, on its thread."""

    def __init__(
        self, stream: Stream, line: HeaderLine, accumulated: list[int], failpoints: Sequence[str]
    ) -> None:
        self.stream = stream
        self.inbox = Inbox()
        self._line, self._accumulated, self._failpoints = line, accumulated, failpoints
        place = own_coordinate()
        # The others of the last stage know the same.
        self._reporting = place.tensor == place.context == place.data == 0
        self._own: list[MicroStepReport] = []
        self._own_defects: list[str] = []
        # Written while the other thread waits in `stop`.
        self._reports: list[MicroStepReport] = []
        self._defects: list[str] = []
        self.thread = threading.Thread(target=self._run, name="accumulation", daemon=True)
        self.thread.start()

    def require_sound(self) -> None:
        if self._defects:
            raise BadMicroStep("; ".join(self._defects))

    def reported(self) -> list[MicroStepReport]:
        """Of the cell, since the last call, by index."""
        reports, self._reports = self._reports, []
        return sorted(reports, key=lambda report: report.index)

    def _run(self) -> None:
        try:
            self.stream.run(self)
        except BaseException as error:  # noqa: BLE001
            # Raised where the next command waits, on which a defect ends the process.
            self.inbox.fail(error)

    # As a Source

    def take(self, timeout_s: float | None) -> Item | None:
        return self.inbox.take(timeout_s)

    def trained(self, trained: Trained) -> None:
        if not self._reporting:
            return
        if trained.defect:
            self._own_defects.append(f"micro-step {trained.work.step.index}: {trained.defect}")
        else:
            self._own.append(_report(trained))

    def passed(self, work: Work) -> None:
        self._accumulated.append(work.step.index)
        for name in self._failpoints:
            failpoint(name)

    def stopped(self) -> None:
        for reports, defects in self._line.shared((self._own, self._own_defects)):
            self._reports += reports
            self._defects += defects
        self._own, self._own_defects = [], []
        self.inbox.stopped()


def _report(trained: Trained) -> MicroStepReport:
    step, packed, evaluated = trained.work.step, trained.work.packed, trained.evaluated
    if packed is None:
        return report_empty(step)
    tokens = Totals(
        num_path_tokens=step.num_path_tokens,
        num_computed_tokens=packed.num_computed_tokens,
        num_forwarded_tokens=packed.num_forwarded_tokens,
    )
    if evaluated is None or trained.problem:
        return report_non_finite(step, trained.problem, tokens)
    sums = target_totals(
        evaluated.policy,
        packed.targets,
        evaluated.result,
        versions=packed.versions,
        versioned=packed.versioned,
    )
    return report_micro_step(step, sums, evaluated.result, tokens)
