"""Objective: eq. (5)-(6) on tensors equal the plain floats, and packing changes nothing."""

from __future__ import annotations

import math
import random
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gyre.contracts.job import ObjectiveSection
from gyre.core.objective import (
    ExecutionTargets,
    ObjectiveSettings,
    batch_loss,
    execution_loss,
    is_kept,
    sequence_ratio,
)
from gyre.objective import (
    OBJECTIVES,
    NonFiniteLoss,
    ObjectiveError,
    Targets,
    UnknownObjective,
    mismatches,
    objective_loss,
    token_policy,
)

NAMES = ("gspo_token", "grpo", "reinforce")


def bounds(name: str = "gspo_token", **changes: float) -> ObjectiveSettings:
    values = {"clip_low": 0.995, "clip_high": 1.005, "token_weight_cap": 5.0, "loss_cap": 100.0}
    return ObjectiveSettings(name=name, **(values | changes))


logprobs = st.floats(-30.0, -1e-3)
executions = st.lists(
    st.builds(
        lambda advantage, pairs: ExecutionTargets(
            advantage=advantage,
            logprobs=tuple(lp for lp, _ in pairs),
            behaviour_logprobs=tuple(b for _, b in pairs),
        ),
        st.floats(-4.0, 4.0),
        st.lists(st.tuples(logprobs, logprobs), max_size=6),
    ),
    min_size=1,
    max_size=5,
)


def tensors(
    batch: list[ExecutionTargets], normalizer: int, seed: int
) -> tuple[torch.Tensor, Targets, list[tuple[int, int]]]:
    """The batch's targets in a random order; the order as (execution, target)."""
    order = [(e, t) for e, x in enumerate(batch) for t in range(len(x.logprobs))]
    random.Random(seed).shuffle(order)
    policy = torch.tensor(
        [batch[e].logprobs[t] for e, t in order], dtype=torch.float64, requires_grad=True
    )
    return (
        policy,
        Targets(
            execution=torch.tensor([e for e, _ in order], dtype=torch.int64),
            behaviour_logprobs=torch.tensor(
                [batch[e].behaviour_logprobs[t] for e, t in order], dtype=torch.float64
            ),
            advantages=torch.tensor([x.advantage for x in batch], dtype=torch.float64),
            num_targets=torch.tensor([len(x.logprobs) for x in batch]),
            normalizer=normalizer,
        ),
        order,
    )


@pytest.mark.parametrize("name", NAMES)
@given(batch=executions, normalizer=st.integers(1, 9), seed=st.integers(0, 99))
@settings(max_examples=60)
def test_tensors_equal_the_plain_floats_in_any_order(
    name: str, batch: list[ExecutionTargets], normalizer: int, seed: int
) -> None:
    chosen = bounds(name)
    policy, targets, order = tensors(batch, normalizer, seed)
    result = objective_loss(policy, targets, chosen)
    result.loss.backward()

    plain = [execution_loss(x, chosen) for x in batch]
    assert result.ratios == pytest.approx([x.ratio for x in plain], rel=1e-12)
    assert result.kept == tuple(x.kept for x in plain)
    assert result.loss.item() == pytest.approx(
        batch_loss(batch, normalizer=normalizer, settings=chosen), rel=1e-10, abs=1e-12
    )
    expected = [plain[e].gradient[t] / normalizer for e, t in order]
    gradient = [] if policy.grad is None else policy.grad.tolist()
    assert gradient == pytest.approx(expected, rel=1e-10, abs=1e-12)


@given(batch=executions, seed=st.integers(0, 99))
@settings(max_examples=40)
def test_micro_steps_of_whole_executions_add_up_to_the_batch(
    batch: list[ExecutionTargets], seed: int
) -> None:
    chosen, cut = bounds(), random.Random(seed).randrange(len(batch) + 1)
    whole = objective_loss(*tensors(batch, 7, seed)[:2], chosen).loss.item()
    parts = [batch[:cut], batch[cut:]]
    split = [
        objective_loss(*tensors(part, 7, seed)[:2], chosen).loss.item() for part in parts if part
    ]
    assert sum(split) == pytest.approx(whole, rel=1e-12, abs=1e-14)


def test_the_mask_stops_only_a_push_past_the_bound() -> None:
    up = ExecutionTargets(advantage=1.0, logprobs=(-1.0,), behaviour_logprobs=(-1.1,))
    assert sequence_ratio(up) == pytest.approx(math.exp(0.1))
    assert not is_kept(1.1, 1.0, bounds())
    assert is_kept(1.1, -1.0, bounds())
    assert is_kept(0.9, 1.0, bounds())
    assert not is_kept(0.9, -1.0, bounds())
    assert is_kept(1.005, 1.0, bounds())


def test_a_masked_execution_keeps_its_denominator_and_has_no_gradient() -> None:
    batch = [
        ExecutionTargets(advantage=1.0, logprobs=(-1.0, -1.0), behaviour_logprobs=(-2.0, -2.0)),
        ExecutionTargets(advantage=1.0, logprobs=(-1.0,), behaviour_logprobs=(-1.0,)),
    ]
    policy, targets, order = tensors(batch, 2, seed=0)
    result = objective_loss(policy, targets, bounds())
    result.loss.backward()
    assert policy.grad is not None
    by_target = dict(zip(order, policy.grad.tolist(), strict=True))
    assert result.kept == (False, True)
    assert (result.num_targets, result.num_clipped) == (3, 2)
    assert by_target == {(0, 0): 0.0, (0, 1): 0.0, (1, 0): -0.5}


def test_a_token_weight_is_capped_at_five() -> None:
    far = ExecutionTargets(advantage=-1.0, logprobs=(-1.0,), behaviour_logprobs=(-9.0,))
    assert execution_loss(far, bounds()).gradient == (5.0,)


def test_the_cap_is_one_sided_and_a_capped_token_has_no_gradient() -> None:
    batch = [
        ExecutionTargets(advantage=3.0, logprobs=(-50.0,), behaviour_logprobs=(-50.0,)),
        ExecutionTargets(advantage=-3.0, logprobs=(-50.0,), behaviour_logprobs=(-50.0,)),
    ]
    policy, targets, order = tensors(batch, 1, seed=0)
    result = objective_loss(policy, targets, bounds())
    result.loss.backward()
    assert policy.grad is not None
    assert result.loss.item() == 100.0 - 150.0
    assert dict(zip(order, policy.grad.tolist(), strict=True)) == {(0, 0): 0.0, (1, 0): 3.0}


def test_an_execution_without_targets_adds_nothing() -> None:
    empty = ExecutionTargets(advantage=-1.0, logprobs=(), behaviour_logprobs=())
    assert execution_loss(empty, bounds()).loss == 0.0
    policy, targets, _ = tensors([empty], 8, seed=0)
    result = objective_loss(policy, targets, bounds())
    assert (result.loss.item(), result.ratios, result.num_targets) == (0.0, (1.0,), 0)


def test_targets_of_half_an_execution_are_refused() -> None:
    with pytest.raises(ObjectiveError, match="whole executions"):
        Targets(
            execution=torch.tensor([0]),
            behaviour_logprobs=torch.zeros(1, dtype=torch.float64),
            advantages=torch.ones(1, dtype=torch.float64),
            num_targets=torch.tensor([2]),
            normalizer=1,
        )


def test_a_loss_that_is_not_finite_is_refused_before_any_backward() -> None:
    batch = [ExecutionTargets(advantage=1.0, logprobs=(-1.0,), behaviour_logprobs=(-1.0,))]
    _, targets, _ = tensors(batch, 1, seed=0)
    with pytest.raises(NonFiniteLoss):
        objective_loss(torch.tensor([float("nan")]), targets, bounds())
    with pytest.raises(NonFiniteLoss):
        objective_loss(torch.tensor([float("-inf")]), targets, bounds())


def test_a_token_loss_that_is_no_number_does_not_hide_behind_the_cap() -> None:
    """grpo with advantage 0 and a ratio that overflows: 0 times infinity."""
    far = ExecutionTargets(
        advantage=0.0, logprobs=(-1.0, -900.0), behaviour_logprobs=(-900.0, -1.0)
    )
    policy, targets, _ = tensors([far], 1, seed=0)
    with pytest.raises(NonFiniteLoss, match="1 token losses"):
        objective_loss(policy, targets, bounds("grpo"))


def test_an_unknown_objective_is_named() -> None:
    batch = [ExecutionTargets(advantage=1.0, logprobs=(-1.0,), behaviour_logprobs=(-1.0,))]
    policy, targets, _ = tensors(batch, 1, seed=0)
    with pytest.raises(UnknownObjective, match=r"'ppo'; there are gspo_token, grpo, reinforce"):
        objective_loss(policy, targets, bounds("ppo"))


def test_the_registry_is_what_a_job_file_may_name() -> None:
    named = ObjectiveSection.model_fields["name"].annotation
    assert tuple(OBJECTIVES) == NAMES == get_args(named)
    with pytest.raises(ValidationError, match="'gspo_token', 'grpo' or 'reinforce'"):
        ObjectiveSection.model_validate({"name": "ppo"})


def test_logits_are_divided_by_the_recorded_temperature() -> None:
    logits = torch.tensor([[0.0, 2.0], [0.0, 2.0]], dtype=torch.float64)
    policy = token_policy(logits, torch.tensor([1, 1]), torch.tensor([1.0, 0.5]))
    assert policy.logprobs.tolist() == pytest.approx(
        [-math.log1p(math.exp(-2)), -math.log1p(math.exp(-4))]
    )
    assert token_policy(
        torch.zeros(1, 8), torch.tensor([3]), torch.tensor([1.0])
    ).entropy.item() == pytest.approx(math.log(8))


def test_mismatch_is_told_by_policy_version() -> None:
    found = mismatches(
        torch.tensor([-1.0, -2.0, -3.0, -4.0]),
        torch.tensor([-1.5, -2.0, -2.0, -4.0], dtype=torch.float64),
        torch.tensor([4, 4, 3, 0]),
        torch.tensor([True, True, True, False]),
    )
    assert [(m.version, m.num_targets, m.mean_abs, m.max_abs) for m in found] == [
        (3, 1, 1.0, 1.0),
        (4, 2, 0.25, 0.5),
        (None, 1, 0.0, 0.0),
    ]
    # rho - 1 - log rho at log rho = -1, and at 0.5 and 0.
    assert [m.mean_kl for m in found[:2]] == pytest.approx(
        [math.exp(-1), (math.exp(0.5) - 1.5) / 2]
    )
