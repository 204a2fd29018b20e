"""What the objective did in a run, folded from `step_completed`: the report's part on it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gyre.contracts.events.steps import RATIO_EDGES, StepCompleted, StepStatistics, VersionMismatch
from gyre.core.mismatch import merged, of_event

# Of a step's statistics, those that say what the objective did; the rest is of tokens and time.
SHOWN = (
    *("loss", "grad_norm", "lr", "entropy", "num_targets", "num_executions", "mean_ratio"),
    *("clip_fraction", "clipped_targets", "weight_capped", "loss_capped"),
    *("mean_abs_logprob_diff", "max_abs_logprob_diff"),
)

# Steps that are named in the alarms; `objective_by_step` has them all.
MAX_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveStep:
    """skip_reason: empty where the update was applied. record: blob of the step's executions."""

    step: int
    version: int
    statistics: StepStatistics
    skip_reason: str
    record: str | None

    @property
    def skip_class(self) -> str:
        """The class of the error alone."""
        return self.skip_reason.partition(":")[0]


@dataclass(slots=True)
class ObjectiveReport:
    """Mutated by `fold` and `restore` only."""

    steps: list[ObjectiveStep] = field(default_factory=list)

    def fold(self, body: StepCompleted) -> None:
        """Of a step that counts."""
        reason = body.skip_reason or ("not finite" if body.skipped else "")
        self.steps.append(
            ObjectiveStep(
                step=body.step,
                version=body.version,
                statistics=body.statistics,
                skip_reason=reason,
                record=body.record,
            )
        )

    def restore(self, version: int) -> None:
        """What came after that version is void."""
        self.steps = [step for step in self.steps if step.version <= version]

    @property
    def skipped(self) -> list[ObjectiveStep]:
        return [step for step in self.steps if step.skip_reason]

    @property
    def num_trained_targets(self) -> int:
        """Of the steps that were applied."""
        return sum(step.statistics.num_targets for step in self.steps if not step.skip_reason)

    def mismatches(self) -> list[VersionMismatch]:
        """Over all steps, by the policy version that sampled the targets."""
        found = (of_event(one) for step in self.steps for one in step.statistics.mismatches)
        return [one.as_event() for one in merged(found)]

    def alarms(self) -> tuple[str, ...]:
        """A line for each of the last steps that were not applied, one before them for the rest."""
        lines = [
            f"step {step.step} was not applied: {step.skip_reason}"
            for step in self.skipped[-MAX_NAMED:]
        ]
        more = len(self.skipped) - len(lines)
        return (f"{more} steps before these were not applied either", *lines) if more else (*lines,)

    def summary(self) -> dict[str, Any]:
        """Its keys of report.json. A gradient norm that is not finite is told as words."""
        statistics = [step.statistics for step in self.steps]
        return {
            "steps_skipped": len(self.skipped),
            "objective_by_step": [_as_json(step) for step in self.steps],
            "mismatch_by_version": [m.model_dump() for m in self.mismatches()],
            "ratio_edges": list(RATIO_EDGES),
            "ratio_counts": added_counts(one.ratio_counts for one in statistics),
            "token_ratio_counts": added_counts(one.token_ratio_counts for one in statistics),
        }


def added_counts(each: Iterable[tuple[int, ...]]) -> list[int]:
    """By RATIO_EDGES; steps of older logs, which counted none, add nothing."""
    total = [0] * (len(RATIO_EDGES) + 1)
    for counts in each:
        if counts:
            total = [a + b for a, b in zip(total, counts, strict=True)]
    return total


def _as_json(step: ObjectiveStep) -> dict[str, Any]:
    # By way of JSON, where what is not finite is a word: report.json stays readable.
    values = json.loads(step.statistics.model_dump_json())
    return {
        "step": step.step,
        "version": step.version,
        **{name: values[name] for name in SHOWN},
        "mismatches": values["mismatches"],
        "skip_reason": step.skip_reason,
        "record": step.record,
    }
