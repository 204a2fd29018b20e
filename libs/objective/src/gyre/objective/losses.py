"""The registry of objectives. Each maps a target's log-probability to its loss l_u and to the mask
m_i of its execution; `objective_loss` caps, weights by 1/L_i and divides by B*N, for all alike.

Sums run in float64: ratios and loss then depend on packing and order by rounding of 1e-16 only,
and the mask, a threshold on s_i, does not flip with them. Gradients return in the dtype of the
log-probabilities.

s_i needs every target of its execution before the first backward. Targets that are too many for one
forward unit come in parts: `objective_loss` of them all, without gradient, from a forward pass on
the same weights, gives s_i, and `objective_loss(ratios=)` of each part adds up to the whole's loss
and gradient, because nothing but s_i and L_i is shared between targets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gyre.core.objective import ObjectiveSettings
from gyre.objective.types import (
    NonFiniteLoss,
    ObjectiveError,
    ObjectiveResult,
    Targets,
    UnknownObjective,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLosses:
    """values: l_u before the cap, float64 [n]. kept: m_i, bool [e]. clipped: bool [n], without
    gradient by the mask or the clip. weight_capped: bool [n], rho_u beyond the weight's cap."""

    values: Tensor
    kept: Tensor
    clipped: Tensor
    weight_capped: Tensor


Objective = Callable[[Tensor, Tensor, Targets, ObjectiveSettings], TokenLosses]
"""(log pi float64 [n], s_i float64 [e], targets, settings) -> token losses."""


def gspo_token(
    logprobs: Tensor, ratios: Tensor, targets: Targets, settings: ObjectiveSettings
) -> TokenLosses:
    """Eq. (6) of the paper: token importance weights, one mask per execution."""
    advantages = targets.advantages
    masked = ((advantages > 0) & (ratios > settings.clip_high)) | (
        (advantages < 0) & (ratios < settings.clip_low)
    )
    ratio = (logprobs.detach() - targets.behaviour_logprobs).exp()
    weight = ratio.clamp(max=settings.token_weight_cap)
    coefficient = (~masked * advantages)[targets.execution] * weight
    return TokenLosses(
        values=-coefficient * logprobs,
        kept=~masked,
        clipped=masked[targets.execution],
        weight_capped=ratio > settings.token_weight_cap,
    )


def grpo(
    logprobs: Tensor, ratios: Tensor, targets: Targets, settings: ObjectiveSettings
) -> TokenLosses:
    """Token-level clipped surrogate, the gradient through the ratio."""
    advantages = targets.advantages[targets.execution]
    ratio = (logprobs - targets.behaviour_logprobs).exp()
    bounded = ratio.detach().clamp(settings.clip_low, settings.clip_high) * advantages
    clipped = bounded < ratio.detach() * advantages
    values = -torch.where(clipped, bounded, ratio * advantages)
    return TokenLosses(
        values=values,
        kept=torch.ones_like(ratios, dtype=torch.bool),
        clipped=clipped,
        weight_capped=torch.zeros_like(clipped),
    )


def reinforce(
    logprobs: Tensor, ratios: Tensor, targets: Targets, settings: ObjectiveSettings
) -> TokenLosses:
    """-A log pi, no correction for the behaviour policy."""
    nowhere = torch.zeros_like(targets.execution, dtype=torch.bool)
    return TokenLosses(
        values=-targets.advantages[targets.execution] * logprobs,
        kept=torch.ones_like(ratios, dtype=torch.bool),
        clipped=nowhere,
        weight_capped=nowhere,
    )


OBJECTIVES: Mapping[str, Objective] = {
    "gspo_token": gspo_token,
    "grpo": grpo,
    "reinforce": reinforce,
}


def objective_loss(
    logprobs: Tensor,
    targets: Targets,
    settings: ObjectiveSettings,
    *,
    ratios: Tensor | None = None,
) -> ObjectiveResult:
    """Loss of these targets as their share of the batch's (eq. 6).

    logprobs: [n], log pi(y_u | c_u) with gradient, aligned with `targets`. ratios: s_i, float64
    [e], from a forward pass on the same weights; needed with a part, else computed here.
    Raises NonFiniteLoss before any backward, UnknownObjective, ObjectiveError.
    """
    objective = OBJECTIVES.get(settings.name)
    if objective is None:
        raise UnknownObjective(
            f"objective.name: no objective is called {settings.name!r}; "
            f"there are {', '.join(OBJECTIVES)}"
        )
    exact = logprobs.double()
    ratios = _checked_ratios(exact, targets, ratios)
    tokens = objective(exact, ratios, targets, settings)
    # torch.where, not clamp: a capped token has no gradient, at the cap either (one-sided).
    below = tokens.values < settings.loss_cap
    capped = torch.where(below, tokens.values, settings.loss_cap)
    share = targets.num_targets.clamp(min=1).double().reciprocal()[targets.execution]
    loss = (capped * share).sum() / targets.normalizer
    _check_finite(exact, ratios, tokens.values, loss)
    return ObjectiveResult(
        loss=loss,
        ratios=tuple(ratios.tolist()),
        kept=tuple(tokens.kept.tolist()),
        num_targets=targets.execution.numel(),
        num_clipped=int(tokens.clipped.sum()),
        num_weight_capped=int(tokens.weight_capped.sum()),
        num_loss_capped=int((~below).sum()),
    )


def _checked_ratios(logprobs: Tensor, targets: Targets, ratios: Tensor | None) -> Tensor:
    if logprobs.shape != targets.execution.shape:
        raise ObjectiveError(
            f"{tuple(logprobs.shape)} logprobs, {targets.execution.numel()} targets"
        )
    if ratios is None:
        if not targets.whole:
            raise ObjectiveError("a part of the targets needs the ratios of whole executions")
        return _ratios(logprobs, targets)
    if ratios.shape != targets.advantages.shape:
        raise ObjectiveError(f"{ratios.numel()} ratios, {targets.advantages.numel()} executions")
    return ratios.detach()


def _ratios(logprobs: Tensor, targets: Targets) -> Tensor:
    """s_i of eq. (5), float64 [e], without gradient; 1 where L_i = 0."""
    log_ratio = logprobs.detach() - targets.behaviour_logprobs
    sums = torch.zeros_like(targets.advantages).index_add_(0, targets.execution, log_ratio)
    return (sums / targets.num_targets.clamp(min=1)).exp()


def _check_finite(logprobs: Tensor, ratios: Tensor, values: Tensor, loss: Tensor) -> None:
    """An infinite l_u below the cap shows in the loss, above it the cap holds it. A token loss that
    is no number compares false with the cap, so it has to be looked for by itself."""
    counts = {
        "log-probabilities": int((~torch.isfinite(logprobs)).sum()),
        "execution ratios": int((~torch.isfinite(ratios)).sum()),
        "token losses": int(torch.isnan(values).sum()),
    }
    if any(counts.values()) or not loss.isfinite():
        said = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        raise NonFiniteLoss(f"not finite: {said or 'the loss'}")
