"""What is reported of a micro-step, and how micro-steps of all cells add up to a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from gyre.cell_agent.trainer.packing import PackedMicroStep
from gyre.core.microstep import MicroStep
from gyre.objective import Mismatch, ObjectiveResult, TokenPolicy, mismatches


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over micro-steps; added over cells they are the step's. num_sampled: executions with
    targets. logprob differences are trainer minus engine, absolute; the maximum is not a sum."""

    loss: float = 0.0
    num_micro_steps: float = 0.0
    num_tokens: float = 0.0
    num_targets: float = 0.0
    num_sampled: float = 0.0
    num_clipped: float = 0.0
    ratio: float = 0.0
    entropy: float = 0.0
    logprob_diff: float = 0.0

    def plus(self, other: Totals) -> Totals:
        mine, theirs = asdict(self), asdict(other)
        return Totals(**{name: value + theirs[name] for name, value in mine.items()})

    def values(self) -> list[float]:
        return list(asdict(self).values())

    @classmethod
    def of_values(cls, values: Sequence[float]) -> Totals:
        return cls(**dict(zip(asdict(cls()), values, strict=True)))

    def as_step(self, max_abs_logprob_diff: float) -> dict[str, float | int]:
        """By the names of the contract's StepStatistics, those that the objective gives."""
        targets, sampled = max(self.num_targets, 1.0), max(self.num_sampled, 1.0)
        return {
            "loss": self.loss,
            "clip_fraction": self.num_clipped / sampled,
            "mean_ratio": self.ratio / sampled,
            "mean_abs_logprob_diff": self.logprob_diff / targets,
            "max_abs_logprob_diff": max_abs_logprob_diff,
            "entropy": self.entropy / targets,
            "num_targets": int(self.num_targets),
            "num_tokens": int(self.num_tokens),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroStepReport:
    """Of one micro-step. ratios: s_i by execution; clipped: executions with m_i = 0.
    num_computed_tokens: after shared prefixes were merged."""

    index: int
    totals: Totals
    max_abs_logprob_diff: float
    num_computed_tokens: int
    ratios: dict[str, float] = field(default_factory=dict)
    clipped: tuple[str, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()

    def as_answer(self, seconds: float) -> dict[str, Any]:
        return {
            "index": self.index,
            "seconds": seconds,
            **self.totals.as_step(self.max_abs_logprob_diff),
            "num_executions": len(self.ratios),
            "num_computed_tokens": self.num_computed_tokens,
            "ratios": self.ratios,
            "clipped": list(self.clipped),
            "mismatches": [asdict(mismatch) for mismatch in self.mismatches],
        }


def report_micro_step(
    step: MicroStep, packed: PackedMicroStep, policy: TokenPolicy, result: ObjectiveResult
) -> MicroStepReport:
    names = [info.execution for info in step.executions]
    difference = _difference(policy.logprobs, packed)
    sampled = sum(info.num_targets > 0 for info in step.executions)
    totals = Totals(
        loss=result.loss.item(),
        num_micro_steps=1.0,
        num_tokens=step.num_tokens,
        num_targets=result.num_targets,
        num_sampled=sampled,
        num_clipped=result.clip_fraction * sampled,
        ratio=result.mean_ratio * sampled,
        entropy=policy.entropy.double().sum().item(),
        logprob_diff=difference.sum().item(),
    )
    return MicroStepReport(
        index=step.index,
        totals=totals,
        max_abs_logprob_diff=difference.max().item() if difference.numel() else 0.0,
        num_computed_tokens=len(packed.tree.token_ids),
        ratios=dict(zip(names, result.ratios, strict=True)),
        clipped=tuple(n for n, kept in zip(names, result.kept, strict=True) if not kept),
        mismatches=mismatches(
            policy.logprobs[packed.versioned],
            packed.targets.behaviour_logprobs[packed.versioned],
            packed.versions[packed.versioned],
        ),
    )


def report_empty(step: MicroStep) -> MicroStepReport:
    """A micro-step of placeholders only: counted, nothing computed."""
    return MicroStepReport(
        index=step.index,
        totals=Totals(num_micro_steps=1.0, num_tokens=step.num_tokens),
        max_abs_logprob_diff=0.0,
        num_computed_tokens=0,
        ratios={info.execution: 1.0 for info in step.executions},
    )


@torch.no_grad()
def _difference(logprobs: Tensor, packed: PackedMicroStep) -> Tensor:
    return (logprobs.double() - packed.targets.behaviour_logprobs).abs()
