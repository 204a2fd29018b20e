"""The registry of objectives. Each maps a target's log-probability to its loss l_u and to the mask
m_i of its execution; `objective_loss` caps, weights by 1/L_i and divides by B*N, for all alike.

Sums run in float64: ratios and loss then depend on packing and order by rounding of 1e-16 only,
and the mask, a threshold on s_i, does not flip with them. Gradients return in the dtype of the
log-probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gyre.core.objective import ObjectiveSettings
from gyre.objective.types import (
    Mismatch,
    NonFiniteLoss,
    ObjectiveError,
    ObjectiveResult,
    Targets,
    UnknownObjective,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLosses:
    """values: l_u before the cap, float64 [n]. kept: m_i, bool [e]. clipped: bool, by execution or
    by target, whichever the objective clips."""

    values: Tensor
    kept: Tensor
    clipped: Tensor


Objective = Callable[[Tensor, Tensor, Targets, ObjectiveSettings], TokenLosses]
"""(log pi float64 [n], s_i float64 [e], targets, settings) -> token losses."""


def gspo_token(
    logprobs: Tensor, ratios: Tensor, targets: Targets, settings: ObjectiveSettings
) -> TokenLosses:
    """Eq. (6) of the paper: token importance weights, one mask per execution."""
    advantages = targets.advantages
    clipped = ((advantages > 0) & (ratios > settings.clip_high)) | (
        (advantages < 0) & (ratios < settings.clip_low)
    )
    kept = ~clipped
    log_ratio = logprobs.detach() - targets.behaviour_logprobs
    weight = log_ratio.exp().clamp(max=settings.token_weight_cap)
    coefficient = (kept * advantages)[targets.execution] * weight
    has_targets = targets.num_targets > 0
    return TokenLosses(values=-coefficient * logprobs, kept=kept, clipped=clipped[has_targets])


def grpo(
    logprobs: Tensor, ratios: Tensor, targets: Targets, settings: ObjectiveSettings
) -> TokenLosses:
    """Token-level clipped surrogate, the gradient through the ratio."""
    advantages = targets.advantages[targets.execution]
    ratio = (logprobs - targets.behaviour_logprobs).exp()
    bounded = ratio.detach().clamp(settings.clip_low, settings.clip_high) * advantages
    clipped = bounded < ratio.detach() * advantages
    values = -torch.where(clipped, bounded, ratio * advantages)
    kept = torch.ones_like(ratios, dtype=torch.bool)
    return TokenLosses(values=values, kept=kept, clipped=clipped)


def reinforce(
    logprobs: Tensor, ratios: Tensor, targets: Targets, settings: ObjectiveSettings
) -> TokenLosses:
    """-A log pi, no correction for the behaviour policy."""
    kept = torch.ones_like(ratios, dtype=torch.bool)
    values = -targets.advantages[targets.execution] * logprobs
    return TokenLosses(values=values, kept=kept, clipped=~kept)


OBJECTIVES: Mapping[str, Objective] = {
    "gspo_token": gspo_token,
    "grpo": grpo,
    "reinforce": reinforce,
}


def execution_ratios(logprobs: Tensor, targets: Targets) -> Tensor:
    """s_i of eq. (5), float64 [e], without gradient; 1 for an execution without targets."""
    log_ratio = logprobs.detach().double() - targets.behaviour_logprobs
    sums = torch.zeros_like(targets.advantages).index_add_(0, targets.execution, log_ratio)
    return (sums / targets.num_targets.clamp(min=1)).exp()


def objective_loss(
    logprobs: Tensor, targets: Targets, settings: ObjectiveSettings
) -> ObjectiveResult:
    """Loss of these executions as their share of the batch's (eq. 6).

    logprobs: [n], log pi(y_u | c_u) with gradient, aligned with `targets`.
    Raises NonFiniteLoss before any backward, UnknownObjective, ObjectiveError.
    """
    if logprobs.shape != targets.execution.shape:
        raise ObjectiveError(
            f"{tuple(logprobs.shape)} logprobs, {targets.execution.numel()} targets"
        )
    objective = OBJECTIVES.get(settings.name)
    if objective is None:
        raise UnknownObjective(f"objective.name: no objective is called {settings.name!r}")
    exact = logprobs.double()
    ratios = execution_ratios(exact, targets)
    tokens = objective(exact, ratios, targets, settings)
    # torch.where, not clamp: a capped token has no gradient, at the cap either (one-sided).
    capped = torch.where(tokens.values < settings.loss_cap, tokens.values, settings.loss_cap)
    share = targets.num_targets.clamp(min=1).double().reciprocal()[targets.execution]
    loss = (capped * share).sum() / targets.normalizer
    if not (torch.isfinite(exact).all() and torch.isfinite(ratios).all() and loss.isfinite()):
        raise NonFiniteLoss(
            f"{int((~torch.isfinite(exact)).sum())} log-probabilities and "
            f"{int((~torch.isfinite(ratios)).sum())} execution ratios are not finite"
        )
    sampled = ratios[targets.num_targets > 0]
    return ObjectiveResult(
        loss=loss,
        ratios=tuple(ratios.tolist()),
        kept=tuple(tokens.kept.tolist()),
        clip_fraction=_mean(tokens.clipped.double()),
        mean_ratio=_mean(sampled),
        num_targets=int(targets.num_targets.sum()),
    )


def mismatches(
    logprobs: Tensor, behaviour_logprobs: Tensor, versions: Tensor
) -> tuple[Mismatch, ...]:
    """How far the trainer is from the engines, by policy version. All [n]; versions int64."""
    difference = (logprobs.detach().double() - behaviour_logprobs).abs()
    found = []
    for version in torch.unique(versions).tolist():
        chosen = difference[versions == version]
        found.append(
            Mismatch(
                version=version,
                num_targets=chosen.numel(),
                mean_abs=chosen.mean().item(),
                max_abs=chosen.max().item(),
            )
        )
    return tuple(found)


def _mean(values: Tensor) -> float:
    return values.mean().item() if values.numel() else 0.0
