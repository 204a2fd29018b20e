"""A micro-step's loss: of its targets in all units, and what each unit's backward starts from.

s_i and m_i of eq. (5)-(6) need every target of an execution before the first backward. A normal
micro-step is one forward unit. A larger one is forwarded twice on the same frozen weights: once
without gradient, which gives the loss, s_i and m_i of all its executions; then unit by unit with
its backward. Either way the loss is worked out once, and a backward starts from its derivative by
each log-probability, the slopes: a unit's second forward gives what the loss was worked out on. A
token in the context of several units is computed in each, and its gradients from all of them add
up, so the sum is exact.

The objective works on the host, wherever the model does: its sums then have one order, and a mask,
a threshold on s_i, is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gyre.cell_agent.trainer.device import CPU
from gyre.cell_agent.trainer.model.layout import TokenShares
from gyre.cell_agent.trainer.model.logits import own_policy, spread
from gyre.cell_agent.trainer.model.packing import ForwardUnit, PackedMicroStep
from gyre.core.objective import ObjectiveSettings
from gyre.objective import ObjectiveResult, TokenPolicy, objective_loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """policy, result: of all targets, in their order, on the host, without a graph. slopes: [n],
    the loss's derivative by each target's log-probability, on the model's device."""

    policy: TokenPolicy
    result: ObjectiveResult
    slopes: Tensor


def evaluate(
    packed: PackedMicroStep, policies: Sequence[TokenPolicy], settings: ObjectiveSettings
) -> Evaluated:
    """policies: by unit. Raises NonFiniteLoss, ObjectiveError."""
    computed = joined(policies)
    logprobs = computed.logprobs.detach().to(CPU).requires_grad_()
    with torch.enable_grad():
        result = objective_loss(logprobs, packed.targets, settings)
    (slopes,) = torch.autograd.grad(result.loss, logprobs)
    return Evaluated(
        policy=TokenPolicy(logprobs=logprobs.detach(), entropy=computed.entropy.to(CPU)),
        result=replace(result, loss=result.loss.detach()),
        slopes=slopes.to(computed.logprobs.device),
    )


def unit_policy(packed: PackedMicroStep, unit: ForwardUnit, logits: Tensor) -> TokenPolicy:
    """logits: as the model gives them of the unit's predictors on this rank. Returns what is known
    of all the unit's targets, on every rank of the cell that has logits. Collective over those."""
    own = unit.first + TokenShares.own().among(unit.predictors, unit.tree.num_tokens)
    token_ids, temperatures = packed.token_ids[unit.targets], packed.temperatures[unit.targets]
    policy = own_policy(logits, token_ids[own], temperatures[own])
    return spread(policy, own, len(token_ids))


def joined(parts: Sequence[TokenPolicy]) -> TokenPolicy:
    """parts: by unit. Of all targets, in their order."""
    return TokenPolicy(
        logprobs=torch.cat([part.logprobs for part in parts]),
        entropy=torch.cat([part.entropy for part in parts]),
    )
