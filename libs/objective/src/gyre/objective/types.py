"""Carriers and errors of the objective."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


class ObjectiveError(ValueError):
    """The targets do not form whole executions, or a setting is out of place."""


class UnknownObjective(ObjectiveError):
    """No objective of that name is registered."""


class NonFiniteLoss(ArithmeticError):
    """A log-probability, ratio or loss is not finite; nothing was accumulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """All targets of e whole executions, n in number, in any order and packing.

    execution: int64 [n], which execution each belongs to. behaviour_logprobs: float64 [n], as
    recorded. advantages: float64 [e]. num_targets: int64 [e], L_i; 0 is allowed. normalizer: B*N.
    """

    execution: Tensor
    behaviour_logprobs: Tensor
    advantages: Tensor
    num_targets: Tensor
    normalizer: int

    def __post_init__(self) -> None:
        counts = self.execution.bincount(minlength=self.num_targets.numel())
        if self.normalizer < 1 or not counts.equal(self.num_targets):
            raise ObjectiveError(
                f"targets do not form whole executions: counted {counts.tolist()}, stated "
                f"{self.num_targets.tolist()}, normalizer {self.normalizer}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Trainer's minus recorded log-probability, over targets sampled under one version."""

    version: int
    num_targets: int
    mean_abs: float
    max_abs: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveResult:
    """loss: float64 scalar to be run backward; nothing else divides it. ratios, kept: s_i and m_i
    by execution. clip_fraction: share of executions with targets whose m_i = 0 (grpo: share of
    targets on the clipped branch). mean_ratio: mean s_i of executions with targets."""

    loss: Tensor
    ratios: tuple[float, ...]
    kept: tuple[bool, ...]
    clip_fraction: float
    mean_ratio: float
    num_targets: int
