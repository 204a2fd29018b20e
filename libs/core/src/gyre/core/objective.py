"""Equations (5) and (6) in plain floats: the reference that the tensor code is held against.

An execution i has targets u with log pi(y_u | c_u), recorded behaviour log-probabilities and one
advantage A_i. rho_u = pi / p_roll; s_i = exp(mean log rho_u) over all its L_i targets, no gradient.
- gspo_token (the paper's): m_i = 0 when A_i > 0 and s_i > clip_high, or A_i < 0 and s_i < clip_low,
  else 1; l_u = min(loss_cap, -m_i * min(rho_u, token_weight_cap) * A_i * log pi), the weight
  without gradient, a capped token without gradient.
- grpo: l_u = min(loss_cap, -min(rho_u A_i, clip(rho_u, clip_low, clip_high) A_i)).
- reinforce: l_u = min(loss_cap, -A_i log pi).
L_i = (1 / L_i) sum l_u, and 0 when L_i = 0; the batch's loss is (1 / BN) sum L_i.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveSettings:
    """Bounds of eq. (5)-(6). No defaults: the job file's section has them."""

    name: str
    clip_low: float
    clip_high: float
    token_weight_cap: float
    loss_cap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionTargets:
    """All targets of one execution, over all its trajectories, in any order."""

    advantage: float
    logprobs: tuple[float, ...]
    behaviour_logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionLoss:
    """loss: L_i of eq. (6). ratio: s_i of eq. (5), 1 when L_i = 0. kept: m_i.
    gradient: d L_i / d log pi for each target, in the targets' order."""

    loss: float
    ratio: float
    kept: bool
    gradient: tuple[float, ...]


TokenLoss = Callable[[float, float], tuple[float, float]]
"""(log pi, behaviour logprob) -> (l_u, d l_u / d log pi), before the cap."""


def sequence_ratio(targets: ExecutionTargets) -> float:
    """s_i of eq. (5)."""
    if not targets.logprobs:
        return 1.0
    pairs = zip(targets.logprobs, targets.behaviour_logprobs, strict=True)
    return math.exp(math.fsum(lp - behaviour for lp, behaviour in pairs) / len(targets.logprobs))


def is_kept(ratio: float, advantage: float, settings: ObjectiveSettings) -> bool:
    """m_i of eq. (6): an execution that already moved past the bound in its advantage's direction
    gets no further push."""
    too_likely = advantage > 0 and ratio > settings.clip_high
    too_unlikely = advantage < 0 and ratio < settings.clip_low
    return not (too_likely or too_unlikely)


def execution_loss(targets: ExecutionTargets, settings: ObjectiveSettings) -> ExecutionLoss:
    ratio = sequence_ratio(targets)
    kept = settings.name != "gspo_token" or is_kept(ratio, targets.advantage, settings)
    if not targets.logprobs:
        return ExecutionLoss(loss=0.0, ratio=ratio, kept=kept, gradient=())
    token_loss = _token_loss(targets.advantage if kept else 0.0, settings)
    losses, gradient = [], []
    for logprob, behaviour in zip(targets.logprobs, targets.behaviour_logprobs, strict=True):
        value, slope = token_loss(logprob, behaviour)
        capped = value >= settings.loss_cap
        losses.append(settings.loss_cap if capped else value)
        gradient.append(0.0 if capped else slope / len(targets.logprobs))
    loss = math.fsum(losses) / len(targets.logprobs)
    return ExecutionLoss(loss=loss, ratio=ratio, kept=kept, gradient=tuple(gradient))


def batch_loss(
    executions: Iterable[ExecutionTargets], *, normalizer: int, settings: ObjectiveSettings
) -> float:
    """(1 / BN) sum of L_i; raw executions without targets count in BN and add nothing."""
    return math.fsum(execution_loss(targets, settings).loss for targets in executions) / normalizer


def _token_loss(advantage: float, settings: ObjectiveSettings) -> TokenLoss:
    def gspo_token(logprob: float, behaviour: float) -> tuple[float, float]:
        weight = min(_exp(logprob - behaviour), settings.token_weight_cap) * advantage
        return -weight * logprob, -weight

    def grpo(logprob: float, behaviour: float) -> tuple[float, float]:
        ratio = _exp(logprob - behaviour)
        clipped = min(max(ratio, settings.clip_low), settings.clip_high)
        if clipped * advantage < ratio * advantage:
            return -clipped * advantage, 0.0
        return -ratio * advantage, -ratio * advantage

    def reinforce(logprob: float, behaviour: float) -> tuple[float, float]:
        return -advantage * logprob, -advantage

    match settings.name:
        case "gspo_token":
            return gspo_token
        case "grpo":
            return grpo
        case "reinforce":
            return reinforce
        case other:
            raise ValueError(f"objective.name: no objective is called {other!r}")


def _exp(value: float) -> float:
    """exp that overflows to infinity, as tensors do."""
    return math.exp(value) if value < 709.0 else math.inf
