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
    """n targets of e executions, in any order and packing: all of them, or a part.

    execution: int64 [n], which execution each belongs to. behaviour_logprobs: float64 [n], as
    recorded. advantages: float64 [e]. num_targets: int64 [e], L_i of the whole execution, in a part
    too; 0 is allowed. normalizer: B*N. whole: every target of each execution is here. In a part
    an execution may have fewer than L_i, never more.
    """

    execution: Tensor
    behaviour_logprobs: Tensor
    advantages: Tensor
    num_targets: Tensor
    normalizer: int
    whole: bool = True

    def __post_init__(self) -> None:
        counts = self.execution.bincount(minlength=self.num_targets.numel())
        fits = counts.shape == self.num_targets.shape and (
            counts.equal(self.num_targets)
            if self.whole
            else bool((counts <= self.num_targets).all())
        )
        if self.normalizer < 1 or not fits:
            formed = "whole executions" if self.whole else "a part of the executions"
            raise ObjectiveError(
                f"targets do not form {formed}: counted {counts.tolist()}, stated "
                f"{self.num_targets.tolist()}, normalizer {self.normalizer}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveResult:
    """loss: float64 scalar to be run backward; nothing else divides it. ratios, kept: s_i and m_i
    of every execution, in a part too. The counts are of the targets given, so those of parts add:
    num_clipped: in an execution with m_i = 0, or (grpo) on the clipped branch.
    num_weight_capped: rho_u beyond the weight's cap. num_loss_capped: l_u at the loss's cap."""

    loss: Tensor
    ratios: tuple[float, ...]
    kept: tuple[bool, ...]
    num_targets: int
    num_clipped: int
    num_weight_capped: int
    num_loss_capped: int
