"""What is known of a batch's micro-steps when they are trained, and whether they may be applied.

A record of one micro-step, of a cell's accumulation, or of the step: they add up. It crosses cells
as bytes at the reduction, so that the core can say of every execution what the objective did.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter

from gyre.cell_agent.trainer.batch.statistics import Totals, execution_totals
from gyre.core.microstep import MicroStep
from gyre.core.mismatch import Mismatch
from gyre.objective import ObjectiveResult

# A version that sampled less than this share of the step's targets is not judged: the mean over a
# few tokens is noise, and what they carry of the gradient is small.
MIN_JUDGED_SHARE = 0.01
# Problems named in a step's reason; the others are counted.
MAX_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedExecution:
    """ratio: s_i, None when it is not finite. kept: m_i = 1."""

    execution: str
    group: str
    micro_step: int
    advantage: float
    num_targets: int
    ratio: float | None
    kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTimes:
    """Field for field the contract's `CellTime`."""

    cell: int
    busy_s: float
    idle_s: float
    pull_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """problems: why the step must not be applied, one a micro-step. times: by cell."""

    totals: Totals = field(default_factory=Totals)
    executions: tuple[TrainedExecution, ...] = ()
    problems: tuple[str, ...] = ()
    times: tuple[CellTimes, ...] = ()

    def plus(self, other: BatchRecord) -> BatchRecord:
        return BatchRecord(
            totals=self.totals.plus(other.totals),
            executions=self.executions + other.executions,
            problems=self.problems + other.problems,
            times=self.times + other.times,
        )

    def statistics(self) -> dict[str, Any]:
        """By the names of the contract's StepStatistics, those that a batch's cells give."""
        return {**self.totals.as_step(), "cell_times": [asdict(one) for one in self.times]}

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def of_bytes(data: bytes) -> BatchRecord:
        return _RECORD.validate_python(json.loads(data))

    def refusal(self, max_mismatch: float | None) -> str:
        """Why this step must not be applied, `<class of error>: <words>`; empty when it may.

        max_mismatch: bound on the mean |log pi - behaviour logprob| of each version's targets."""
        if self.problems:
            named = "; ".join(self.problems[:MAX_NAMED])
            more = len(self.problems) - MAX_NAMED
            return f"non_finite_loss: {named}" + (f"; {more} more" if more > 0 else "")
        if max_mismatch is None:
            return ""
        enough = MIN_JUDGED_SHARE * self.totals.num_targets
        beyond = [
            one
            for one in self.totals.mismatches
            if one.num_targets >= enough and not one.mean_abs <= max_mismatch
        ]
        return _mismatch_in_words(beyond, max_mismatch) if beyond else ""


_RECORD = TypeAdapter(BatchRecord)


def merged(records: Iterable[bytes]) -> BatchRecord:
    """Of all cells, executions by micro-step."""
    total = BatchRecord()
    for data in records:
        total = total.plus(BatchRecord.of_bytes(data))
    ordered = sorted(total.executions, key=lambda one: one.micro_step)
    return replace(total, executions=tuple(ordered))


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroStepReport:
    """Of one micro-step: its record, as the command's answer shows it."""

    index: int
    record: BatchRecord

    def as_answer(self) -> dict[str, Any]:
        trained = self.record.executions
        return {
            "index": self.index,
            **self.record.totals.as_step(),
            "num_executions": len(trained),
            "ratios": {one.execution: one.ratio for one in trained},
            "clipped": [one.execution for one in trained if not one.kept],
            "problem": "; ".join(self.record.problems),
        }


def report_micro_step(
    step: MicroStep, targets: Totals, result: ObjectiveResult, tokens: Totals
) -> MicroStepReport:
    """targets: sum of `target_totals` over the forward units. result: of any unit; its s_i and m_i
    are those of all executions. tokens: the counts of tokens that the trainer forwarded."""
    verdicts = zip(step.executions, result.ratios, result.kept, strict=True)
    sampled = [(s, m) for info, s, m in verdicts if info.num_targets > 0]
    ours = execution_totals([s for s, _ in sampled], [m for _, m in sampled])
    totals = targets.plus(ours).plus(tokens).plus(_counted(step))
    return MicroStepReport(
        index=step.index,
        record=BatchRecord(totals=totals, executions=_trained(step, result.ratios, result.kept)),
    )


def report_empty(step: MicroStep) -> MicroStepReport:
    """A micro-step of placeholders only: counted, nothing computed."""
    nothing = len(step.executions)
    record = BatchRecord(
        totals=_counted(step), executions=_trained(step, (1.0,) * nothing, (True,) * nothing)
    )
    return MicroStepReport(index=step.index, record=record)


def report_non_finite(step: MicroStep, why: str, tokens: Totals) -> MicroStepReport:
    """Its loss is not finite: nothing of it enters a sum, and the step will not be applied."""
    number = len(step.executions)
    record = BatchRecord(
        totals=_counted(step).plus(tokens),
        executions=_trained(step, (None,) * number, (False,) * number),
        problems=(f"micro-step {step.index}: {why}",),
    )
    return MicroStepReport(index=step.index, record=record)


def _counted(step: MicroStep) -> Totals:
    return Totals(num_micro_steps=1, num_tokens=step.num_tokens)


def _trained(
    step: MicroStep, ratios: Iterable[float | None], kept: Iterable[bool]
) -> tuple[TrainedExecution, ...]:
    return tuple(
        TrainedExecution(
            execution=info.execution,
            group=info.group,
            micro_step=step.index,
            advantage=info.advantage,
            num_targets=info.num_targets,
            ratio=ratio,
            kept=keep,
        )
        for info, ratio, keep in zip(step.executions, ratios, kept, strict=True)
    )


def _mismatch_in_words(beyond: list[Mismatch], limit: float) -> str:
    each = ", ".join(
        f"version {'unknown' if one.version is None else one.version} by {one.mean_abs:.3g} "
        f"over {one.num_targets} targets"
        for one in beyond
    )
    return (
        f"mismatch: trainer and engines differ by more than objective.max_mismatch = {limit:g} "
        f"nats a target: {each}"
    )
