"""A micro-step's gradient over pipeline stages: each forward unit, a row for one, is one pipeline
micro-batch. The counterpart of `passes.py`, which has the whole model in one process.

s_i and m_i of eq. (5)-(6) need every target of an execution before its first backward, but a 1F1B
schedule runs a unit backward as soon as it has reached the last stage. So:
- up to `window` units are held: all go forward, then all go backward, the first one first;
- more go twice: forward only, then forward and backward on Megatron's own 1F1B schedule, in which
  a stage holds no more units than there are stages from it to the end.

The loss is worked out once, between the two, on the last stage, over all targets of the micro-step.
Its derivative by each log-probability is what the backward passes start from: weights are frozen,
so a unit's second forward gives the log-probabilities that the loss was worked out on. No objective
runs inside the schedule, where a stage that raised would leave the others waiting for it.

Invariants:
- all stages of a cell call with the same micro-step, and all return the same or raise the same;
- what the objective refuses is raised before any backward: nothing was added on any stage;
- nothing divides a gradient: units and micro-steps add up in Megatron's gradient buffers;
- after `stages.sum_tied_gradients`, once a batch, both copies of a tied embedding hold all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gyre.cell_agent.trainer.megatron_core import (
    backward_step,
    deallocate_output_tensor,
    forward_backward_pipelining_without_interleaving,
    parallel_state,
)
from gyre.cell_agent.trainer.packing import ForwardUnit, PackedMicroStep
from gyre.cell_agent.trainer.passes import joined, unit_policy
from gyre.cell_agent.trainer.stages import Stage
from gyre.core.objective import ObjectiveSettings
from gyre.objective import (
    NonFiniteLoss,
    ObjectiveError,
    ObjectiveResult,
    TokenPolicy,
    objective_loss,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evaluated:
    """What all stages know of a micro-step between forward and backward. slopes: [n], the loss's
    derivative by each target's log-probability."""

    policy: TokenPolicy
    result: ObjectiveResult
    slopes: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A unit between its forward and its backward. received: hidden states of the stage before,
    None on the first. output: hidden states for the next; on the last stage log-probabilities."""

    unit: ForwardUnit
    received: Tensor | None
    output: Tensor


_Finish = Callable[[ForwardUnit, Tensor], tuple[Tensor, Tensor, Any]]
"""Megatron's loss function: (unit, logits) -> what the backward starts from, a number of tokens,
and what the schedule hands back of the unit."""


def add_gradient(
    stage: Stage, packed: PackedMicroStep, settings: ObjectiveSettings, *, window: int
) -> tuple[TokenPolicy, ObjectiveResult]:
    """Accumulates in every stage's buffers; returns on every stage what is known of all targets,
    in their order. packed: of a micro-step that has targets. window: units whose activations a
    stage holds at once.

    Raises NonFiniteLoss, ObjectiveError, on all stages alike.
    """
    if len(packed.units) > window:
        evaluated = _in_two_passes(stage, packed, settings)
    else:
        evaluated = _in_one_pass(stage, packed, settings)
    return evaluated.policy, evaluated.result


# Units that a stage can hold


def _in_one_pass(stage: Stage, packed: PackedMicroStep, settings: ObjectiveSettings) -> _Evaluated:
    policies: list[TokenPolicy] = []
    held = [_forward(stage, packed, unit, policies) for unit in packed.units]
    evaluated = _evaluated(stage, packed, policies, settings)
    for one in held:
        _backward(stage, one, evaluated.slopes)
    return evaluated


def _forward(
    stage: Stage, packed: PackedMicroStep, unit: ForwardUnit, policies: list[TokenPolicy]
) -> _Held:
    """On the last stage, what is known of the unit's targets is added to `policies`."""
    received = stage.communicator.recv_forward(_shape(stage, unit), stage.is_first)
    stage.model.module.set_input_tensor(received)
    output = stage.model(unit.tree, unit.predictors)
    if stage.is_last:
        policies.append(unit_policy(packed, unit, output))
        return _Held(unit=unit, received=received, output=policies[-1].logprobs)
    stage.communicator.send_forward(output, stage.is_last)
    # From here on only the graph behind it is needed, not its values.
    deallocate_output_tensor(output, stage.model.config.deallocate_pipeline_outputs)
    return _Held(unit=unit, received=received, output=output)


def _backward(stage: Stage, held: _Held, slopes: Tensor) -> None:
    output, gradient = held.output, None
    if stage.is_last:
        output = output @ slopes[held.unit.targets]
    else:
        gradient = stage.communicator.recv_backward(_shape(stage, held.unit), stage.is_last)
    kind, config = stage.model.module.model_type, stage.model.config
    to_received = backward_step(held.received, output, gradient, kind, config)
    stage.communicator.send_backward(to_received, stage.is_first)


def _shape(stage: Stage, unit: ForwardUnit) -> tuple[int, int, int]:
    return unit.tree.num_tokens, 1, stage.model.config.hidden_size


# Units that are too many to hold


def _in_two_passes(
    stage: Stage, packed: PackedMicroStep, settings: ObjectiveSettings
) -> _Evaluated:
    with torch.no_grad():
        policies = _scheduled(stage, packed.units, partial(_only_forward, packed), backward=False)
    evaluated = _evaluated(stage, packed, policies, settings)
    _scheduled(stage, packed.units, partial(_loss, packed, evaluated.slopes), backward=True)
    return evaluated


def _scheduled(
    stage: Stage, units: Sequence[ForwardUnit], finish: _Finish, *, backward: bool
) -> list[Any]:
    """Megatron's 1F1B over the units, forward alone or with backward. Returns on the last stage
    what `finish` hands back of each unit, on the others nothing."""

    def step(pending: Iterator[ForwardUnit], model: torch.nn.Module) -> tuple[Tensor, Any]:
        unit = next(pending)
        return model(unit.tree, unit.predictors), partial(finish, unit)

    handed_back: list[Any] = forward_backward_pipelining_without_interleaving(
        forward_step_func=step,
        data_iterator=iter(units),
        model=stage.model,
        num_microbatches=len(units),
        # Not read: lengths vary, so each shape travels ahead of its tensor.
        seq_length=0,
        micro_batch_size=1,
        forward_only=not backward,
    )
    return handed_back


def _only_forward(
    packed: PackedMicroStep, unit: ForwardUnit, logits: Tensor
) -> tuple[Tensor, Tensor, TokenPolicy]:
    return logits.new_zeros(()), _no_tokens(), unit_policy(packed, unit, logits)


def _loss(
    packed: PackedMicroStep, slopes: Tensor, unit: ForwardUnit, logits: Tensor
) -> tuple[Tensor, Tensor, None]:
    return unit_policy(packed, unit, logits).logprobs @ slopes[unit.targets], _no_tokens(), None


def _no_tokens() -> Tensor:
    """Megatron divides a loss that comes without a number of tokens by that of micro-batches. With
    one it only counts them (`calculate_per_token_loss`), for a division that nobody asks for."""
    return torch.zeros((), dtype=torch.int)


# What the last stage says of the targets


def _evaluated(
    stage: Stage,
    packed: PackedMicroStep,
    policies: Sequence[TokenPolicy],
    settings: ObjectiveSettings,
) -> _Evaluated:
    """policies: by unit on the last stage, which tells the others what came of it."""
    told: list[Any] = [_evaluate(packed, policies, settings) if stage.is_last else None]
    last = parallel_state.get_pipeline_model_parallel_last_rank()
    group = parallel_state.get_pipeline_model_parallel_group()
    dist.broadcast_object_list(told, src=last, group=group)
    evaluated: _Evaluated | NonFiniteLoss | ObjectiveError = told[0]
    if not isinstance(evaluated, _Evaluated):
        raise evaluated
    return evaluated


def _evaluate(
    packed: PackedMicroStep, policies: Sequence[TokenPolicy], settings: ObjectiveSettings
) -> _Evaluated | NonFiniteLoss | ObjectiveError:
    """The error as a value: it has to reach the stages that wait for an answer."""
    policy = joined(policies)
    logprobs = policy.logprobs.detach().requires_grad_()
    try:
        result = objective_loss(logprobs, packed.targets, settings)
    except (NonFiniteLoss, ObjectiveError) as error:
        return error
    (slopes,) = torch.autograd.grad(result.loss, logprobs)
    return _Evaluated(
        policy=replace(policy, logprobs=logprobs.detach()),
        result=replace(result, loss=result.loss.detach()),
        slopes=slopes,
    )
