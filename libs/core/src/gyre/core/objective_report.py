"""What the objective did in a run, folded from `step_completed`: the report's part on it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gyre.contracts.events.cells import (
    RATIO_EDGES,
    StepCompleted,
    StepStatistics,
    VersionMismatch,
)

# Of a step's statistics, those that say what the objective did; the rest is of tokens and time.
SHOWN = (
    *("loss", "grad_norm", "lr", "entropy", "num_targets", "num_executions", "mean_ratio"),
    *("clip_fraction", "clipped_targets", "weight_capped", "loss_capped"),
    *("mean_abs_logprob_diff", "max_abs_logprob_diff"),
)


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

    def mismatches(self) -> list[VersionMismatch]:
        """Over all steps, by the policy version that sampled the targets."""
        return merged_mismatches(m for step in self.steps for m in step.statistics.mismatches)

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


def merged_mismatches(found: Iterable[VersionMismatch]) -> list[VersionMismatch]:
    """One a version, ascending, that of targets whose version is not known last."""
    by_version: dict[int | None, list[VersionMismatch]] = {}
    for one in found:
        by_version.setdefault(one.version, []).append(one)
    ordered = sorted(by_version, key=lambda version: (version is None, version or 0))
    return [_merged(version, by_version[version]) for version in ordered]


def added_counts(each: Iterable[tuple[int, ...]]) -> list[int]:
    """By RATIO_EDGES; steps of older logs, which counted none, add nothing."""
    total = [0] * (len(RATIO_EDGES) + 1)
    for counts in each:
        if counts:
            total = [a + b for a, b in zip(total, counts, strict=True)]
    return total


def _merged(version: int | None, parts: list[VersionMismatch]) -> VersionMismatch:
    num_targets = sum(one.num_targets for one in parts)
    weights = [one.num_targets / max(num_targets, 1) for one in parts]
    pairs = list(zip(weights, parts, strict=True))
    return VersionMismatch(
        version=version,
        num_targets=num_targets,
        mean_abs=sum(weight * one.mean_abs for weight, one in pairs),
        max_abs=max(one.max_abs for one in parts),
        mean_kl=sum(weight * one.mean_kl for weight, one in pairs),
    )


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
