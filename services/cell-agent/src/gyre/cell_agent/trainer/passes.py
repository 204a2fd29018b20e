"""A micro-step's gradient: in one pass, or in two where its rows are more than one forward unit.

s_i and m_i of eq. (5)-(6) need every target of an execution before the first backward. Rows that
fit in one forward unit are forwarded together and then run backward. A larger micro-step is
forwarded twice on the same frozen weights: once without gradient, unit by unit, which gives the
loss, s_i and m_i of all its executions; then unit by unit again, each with its share of the loss
and its backward. A token in the context of several units is computed in each, and its gradients
from all of them add up, so the sum is exact. What is held at any time is one unit's activations.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gyre.cell_agent.trainer.packing import ForwardUnit, PackedMicroStep
from gyre.core.objective import ObjectiveSettings
from gyre.objective import ObjectiveResult, TokenPolicy, objective_loss, token_policy


def add_gradient(
    model: torch.nn.Module, packed: PackedMicroStep, settings: ObjectiveSettings
) -> tuple[TokenPolicy, ObjectiveResult]:
    """Accumulates in the model's buffers; returns what is known of all targets, in their order.

    Raises NonFiniteLoss and ObjectiveError, before any backward unless the second pass computes
    what the first did not: NonFiniteLoss then leaves the gradient of some units in the buffers.
    """
    if len(packed.units) > 1:
        return _in_two_passes(model, packed, settings)
    policy = _forward(model, packed, packed.units[0])
    result = objective_loss(policy.logprobs, packed.targets, settings)
    _backward(result.loss)
    return policy, result


def _in_two_passes(
    model: torch.nn.Module, packed: PackedMicroStep, settings: ObjectiveSettings
) -> tuple[TokenPolicy, ObjectiveResult]:
    with torch.no_grad():
        policy = joined([_forward(model, packed, unit) for unit in packed.units])
        result = objective_loss(policy.logprobs, packed.targets, settings)
    ratios = torch.tensor(result.ratios, dtype=torch.float64)
    for unit in packed.units:
        logprobs = _forward(model, packed, unit).logprobs
        part = objective_loss(logprobs, packed.part(unit), settings, ratios=ratios)
        _backward(part.loss)
    return policy, result


def _forward(model: torch.nn.Module, packed: PackedMicroStep, unit: ForwardUnit) -> TokenPolicy:
    return unit_policy(packed, unit, model(unit.tree, unit.predictors))


def unit_policy(packed: PackedMicroStep, unit: ForwardUnit, logits: Tensor) -> TokenPolicy:
    """logits: [n, vocabulary], of the unit's n predictors."""
    return token_policy(logits, packed.token_ids[unit.targets], packed.temperatures[unit.targets])


def joined(parts: Sequence[TokenPolicy]) -> TokenPolicy:
    """parts: by unit. Of all targets, in their order."""
    return TokenPolicy(
        logprobs=torch.cat([part.logprobs for part in parts]),
        entropy=torch.cat([part.entropy for part in parts]),
    )


def _backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]
