"""Sums over targets and executions: those of forward units, micro-steps and cells add up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from gyre.cell_agent.trainer.device import CPU
from gyre.contracts.events.steps import RATIO_EDGES
from gyre.core.mismatch import Mismatch, merged
from gyre.objective import ObjectiveResult, Targets, TokenPolicy, mismatches

NO_COUNTS = (0,) * (len(RATIO_EDGES) + 1)

Counts = tuple[int, ...]
"""By RATIO_EDGES."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over micro-steps; added over cells they are the step's. num_executions: with targets.
    num_masked: of them, those with m_i = 0. ratio: of s_i. num_clipped, num_weight_capped,
    num_loss_capped: of targets. Tokens: see StepStatistics. mismatches: by version, ascending,
    targets of a version that is not known last."""

    loss: float = 0.0
    num_micro_steps: int = 0
    num_tokens: int = 0
    num_path_tokens: int = 0
    num_computed_tokens: int = 0
    num_forwarded_tokens: int = 0
    num_targets: int = 0
    num_clipped: int = 0
    num_weight_capped: int = 0
    num_loss_capped: int = 0
    num_executions: int = 0
    num_masked: int = 0
    ratio: float = 0.0
    entropy: float = 0.0
    ratio_counts: Counts = NO_COUNTS
    token_ratio_counts: Counts = NO_COUNTS
    mismatches: tuple[Mismatch, ...] = ()

    def plus(self, other: Totals) -> Totals:
        added: dict[str, Any] = {
            name: getattr(self, name) + getattr(other, name) for name in _NUMBERS
        }
        return Totals(
            **added,
            ratio_counts=_added(self.ratio_counts, other.ratio_counts),
            token_ratio_counts=_added(self.token_ratio_counts, other.token_ratio_counts),
            mismatches=merged((*self.mismatches, *other.mismatches)),
        )

    @property
    def mismatch(self) -> Mismatch:
        """Over the targets of all versions."""
        total = Mismatch(version=None, num_targets=0, abs_sum=0.0, kl_sum=0.0, max_abs=0.0)
        for one in self.mismatches:
            total = total.plus(one)
        return total

    def as_step(self) -> dict[str, Any]:
        """By the names of the contract's StepStatistics, those that the objective gives."""
        targets, executions = max(self.num_targets, 1), max(self.num_executions, 1)
        mismatch = self.mismatch
        return {
            "loss": self.loss,
            "clip_fraction": self.num_masked / executions,
            "mean_ratio": self.ratio / executions,
            "mean_abs_logprob_diff": mismatch.mean_abs,
            "max_abs_logprob_diff": mismatch.max_abs,
            "entropy": self.entropy / targets,
            "num_targets": self.num_targets,
            "num_executions": self.num_executions,
            "clipped_targets": self.num_clipped / targets,
            "weight_capped": self.num_weight_capped / targets,
            "loss_capped": self.num_loss_capped / targets,
            "ratio_counts": list(self.ratio_counts),
            "token_ratio_counts": list(self.token_ratio_counts),
            "mismatches": [one.as_event().model_dump() for one in self.mismatches],
            "num_tokens": self.num_tokens,
            "num_path_tokens": self.num_path_tokens,
            "num_computed_tokens": self.num_computed_tokens,
            "num_forwarded_tokens": self.num_forwarded_tokens,
        }


_NUMBERS = tuple(f.name for f in fields(Totals) if f.type in ("int", "float"))


def target_totals(
    policy: TokenPolicy,
    targets: Targets,
    result: ObjectiveResult,
    *,
    versions: Tensor,
    versioned: Tensor,
) -> Totals:
    """Of one forward unit's targets; what is counted by execution is left to `execution_totals`.
    versions: int64 [n], read where `versioned`, bool [n]."""
    log_ratios = policy.logprobs.detach().double() - targets.behaviour_logprobs
    return Totals(
        loss=result.loss.item(),
        num_targets=result.num_targets,
        num_clipped=result.num_clipped,
        num_weight_capped=result.num_weight_capped,
        num_loss_capped=result.num_loss_capped,
        entropy=policy.entropy.double().sum().item(),
        token_ratio_counts=count_ratios(log_ratios.exp()),
        mismatches=mismatches(policy.logprobs, targets.behaviour_logprobs, versions, versioned),
    )


def execution_totals(ratios: Iterable[float], kept: Iterable[bool]) -> Totals:
    """ratios, kept: s_i and m_i of the executions that have targets, each named once."""
    values = torch.tensor(list(ratios), dtype=torch.float64, device=CPU)
    return Totals(
        num_executions=values.numel(),
        num_masked=sum(not one for one in kept),
        ratio=values.sum().item(),
        ratio_counts=count_ratios(values),
    )


def count_ratios(values: Tensor) -> Counts:
    """values: float64 [n]. Counts in the bins of RATIO_EDGES."""
    edges = torch.tensor(RATIO_EDGES, dtype=torch.float64, device=CPU)
    bins = torch.bucketize(values.cpu(), edges, right=True)
    return tuple(bins.bincount(minlength=len(RATIO_EDGES) + 1).tolist())


def _added(one: Counts, other: Counts) -> Counts:
    return tuple(a + b for a, b in zip(one, other, strict=True))
