"""Objective, invariances: how an execution's targets are presented changes neither loss nor
gradient. Which path carries a shared target, how trajectories are cut, ordered and packed, which
cell computes them, and whether s_i comes with the loss or from a pass before it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from gyre.core.objective import ExecutionTargets, ObjectiveSettings, sequence_ratio
from gyre.objective import ObjectiveError, Targets, objective_loss

NAMES = ("gspo_token", "grpo", "reinforce")
SETTINGS = {
    name: ObjectiveSettings(
        name=name, clip_low=0.995, clip_high=1.005, token_weight_cap=5.0, loss_cap=100.0
    )
    for name in NAMES
}
VOCABULARY = 7
NUM_FEATURES = 5
NORMALIZER = 24
# How far a case stays from where the mask, a clip or the loss's cap jumps. Rounding of float32
# log-probabilities is a hundredth of it.
MARGIN = 1e-4


@dataclass(frozen=True, kw_only=True)
class Branching:
    """One execution's tree. A node is a sampled token in its context: `tokens[n]` is drawn in
    context `n`. paths: nodes from the root to each leaf, shared ones in several."""

    paths: tuple[tuple[int, ...], ...]
    tokens: dict[int, int]
    behaviour: dict[int, float]
    advantage: float


@dataclass(frozen=True, kw_only=True)
class Case:
    """policy: float64 [features, vocabulary]; contexts: float64 [nodes, features]; their product is
    the logits. So every target has a gradient in every weight, and they add up there."""

    policy: Tensor
    contexts: Tensor
    executions: tuple[Branching, ...]


Piece = tuple[int, tuple[int, ...]]
"""(execution, nodes): the targets that one trajectory carries."""


def make_case(seed: int) -> Case:
    rng = random.Random(seed)
    paths = [_paths(rng) for _ in range(rng.randint(1, 5))]
    offsets = [0]
    for branches in paths:
        offsets.append(offsets[-1] + 1 + max((n for path in branches for n in path), default=0))
    source = torch.Generator().manual_seed(seed)
    policy = torch.randn(NUM_FEATURES, VOCABULARY, generator=source, dtype=torch.float64)
    contexts = torch.randn(offsets[-1], NUM_FEATURES, generator=source, dtype=torch.float64)
    contexts *= rng.choice([0.5, 2.0])
    logprobs = (contexts @ policy).log_softmax(-1)
    executions = []
    for start, branches in zip(offsets, paths, strict=False):
        nodes = sorted({start + n for path in branches for n in path})
        tokens = {n: rng.randrange(VOCABULARY) for n in nodes}
        drift = rng.choice([0.001, 0.02, 0.5, 2.0])
        executions.append(
            Branching(
                paths=tuple(tuple(start + n for n in path) for path in branches),
                tokens=tokens,
                behaviour={
                    n: logprobs[n, tokens[n]].item() + drift * rng.uniform(-1, 1) for n in nodes
                },
                advantage=rng.choice([-60.0, -1.25, -0.5, 0.5, 1.0, 60.0]),
            )
        )
    return Case(policy=policy, contexts=contexts, executions=tuple(executions))


def _paths(rng: random.Random) -> list[tuple[int, ...]]:
    """Up to four, each a new end to a prefix of an earlier one; none for a placeholder."""
    paths: list[tuple[int, ...]] = []
    used = 0
    for _ in range(rng.randint(0, 4)):
        trunk = rng.choice(paths) if paths else ()
        fresh = rng.randint(1, 5)
        shared = trunk[: rng.randint(0, len(trunk))]
        paths.append((*shared, *range(used, used + fresh)))
        used += fresh
    return paths


def is_clear(case: Case, chosen: ObjectiveSettings) -> bool:
    """No execution at the mask's thresholds, no target at the clip's or at the loss's cap."""
    logprobs = (case.contexts @ case.policy).log_softmax(-1)
    for execution in case.executions:
        current = {n: logprobs[n, token].item() for n, token in execution.tokens.items()}
        ratio = sequence_ratio(
            ExecutionTargets(
                advantage=execution.advantage,
                logprobs=tuple(current.values()),
                behaviour_logprobs=tuple(execution.behaviour.values()),
            )
        )
        of_tokens = [
            (torch.tensor(current[n] - b)).exp().item() for n, b in execution.behaviour.items()
        ]
        judged = [ratio] if chosen.name == "gspo_token" else of_tokens
        edges = (chosen.clip_low, chosen.clip_high)
        if any(abs(value - edge) < MARGIN for value in judged for edge in edges):
            return False
        slopes = [min(rho, chosen.token_weight_cap) for rho in of_tokens]
        losses = [
            {
                "gspo_token": -w * execution.advantage * lp,
                "reinforce": -execution.advantage * lp,
            }.get(chosen.name, -rho * execution.advantage)
            for w, rho, lp in zip(slopes, of_tokens, current.values(), strict=True)
        ]
        if any(abs(loss - chosen.loss_cap) < 0.1 for loss in losses):
            return False
    return True


def plainly(case: Case) -> list[Piece]:
    """One piece an execution: each node once, in order."""
    return [(e, tuple(x.tokens)) for e, x in enumerate(case.executions)]


def assigned(case: Case, rng: random.Random) -> list[Piece]:
    """Each node to one of the paths through it; the paths in any order."""
    pieces = []
    for number, execution in enumerate(case.executions):
        carried: dict[int, list[int]] = {}
        for node in execution.tokens:
            ways = [p for p, path in enumerate(execution.paths) if node in path]
            carried.setdefault(rng.choice(ways), []).append(node)
        pieces += [(number, tuple(nodes)) for nodes in carried.values()]
    rng.shuffle(pieces)
    return pieces


def cut(pieces: Sequence[Piece], rng: random.Random) -> list[Piece]:
    """Each trajectory in several, their targets in another order."""
    shorter = []
    for execution, nodes in pieces:
        mixed = rng.sample(nodes, len(nodes))
        at = rng.randint(0, len(mixed))
        shorter += [(execution, tuple(mixed[:at])), (execution, tuple(mixed[at:]))]
    rng.shuffle(shorter)
    return shorter


def tensors(
    case: Case, policy: Tensor, pieces: Sequence[Piece], *, whole: bool = True
) -> tuple[Tensor, Targets]:
    """The pieces' targets, packed behind one another. Executions of no piece are left out, unless
    the pieces are a part: then all executions are named with their whole L_i."""
    order = [(e, n) for e, nodes in pieces for n in nodes]
    here = sorted({e for e, _ in pieces}) if whole else list(range(len(case.executions)))
    chosen = [case.executions[e] for e in here]
    nodes = torch.tensor([n for _, n in order], dtype=torch.int64)
    tokens = torch.tensor([case.executions[e].tokens[n] for e, n in order], dtype=torch.int64)
    targets = Targets(
        execution=torch.tensor([here.index(e) for e, _ in order], dtype=torch.int64),
        behaviour_logprobs=torch.tensor(
            [case.executions[e].behaviour[n] for e, n in order], dtype=torch.float64
        ),
        advantages=torch.tensor([x.advantage for x in chosen], dtype=torch.float64),
        num_targets=torch.tensor([len(x.tokens) for x in chosen], dtype=torch.int64),
        normalizer=NORMALIZER,
        whole=whole,
    )
    logits = case.contexts[nodes].to(policy.dtype) @ policy
    return logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0], targets


def in_parts(
    case: Case, policy: Tensor, parts: Sequence[Sequence[Piece]]
) -> tuple[Tensor, Targets]:
    """All targets, each part's log-probabilities computed by itself. Every execution is named."""
    of_parts = [tensors(case, policy, part, whole=False) for part in parts]
    every = replace(
        of_parts[0][1],
        execution=torch.cat([targets.execution for _, targets in of_parts]),
        behaviour_logprobs=torch.cat([targets.behaviour_logprobs for _, targets in of_parts]),
        whole=True,
    )
    return torch.cat([logprobs for logprobs, _ in of_parts]), every


@dataclass(frozen=True, kw_only=True)
class Outcome:
    loss: float
    gradient: Tensor


def whole_run(
    case: Case, packs: Sequence[Sequence[Piece]], chosen: ObjectiveSettings, dtype: torch.dtype
) -> Outcome:
    """Each pack a micro-step of whole executions; losses and gradients are summed, no more."""
    policy = case.policy.detach().clone().to(dtype).requires_grad_()
    loss = 0.0
    for pieces in packs:
        result = objective_loss(*tensors(case, policy, pieces), chosen)
        result.loss.backward()
        loss += result.loss.item()
    return Outcome(loss=loss, gradient=_gradient(policy))


def parted_run(
    case: Case, parts: Sequence[Sequence[Piece]], chosen: ObjectiveSettings, dtype: torch.dtype
) -> Outcome:
    """Parts of executions: a pass over all for s_i, then each part by itself."""
    policy = case.policy.detach().clone().to(dtype).requires_grad_()
    with torch.no_grad():
        before = objective_loss(*in_parts(case, policy, parts), chosen)
    ratios = torch.tensor(before.ratios, dtype=torch.float64)
    results = []
    for part in parts:
        result = objective_loss(*tensors(case, policy, part, whole=False), chosen, ratios=ratios)
        result.loss.backward()
        results.append(result)
    assert {(result.ratios, result.kept) for result in results} == {(before.ratios, before.kept)}
    assert sum(result.num_targets for result in results) == before.num_targets
    return Outcome(loss=sum(result.loss.item() for result in results), gradient=_gradient(policy))


def _gradient(policy: Tensor) -> Tensor:
    return torch.zeros_like(policy) if policy.grad is None else policy.grad


def assert_equal(found: Outcome, expected: Outcome, tolerance: float) -> None:
    scale = max(0.1, expected.gradient.norm().item())
    assert found.loss == pytest.approx(expected.loss, rel=tolerance, abs=tolerance)
    assert (found.gradient - expected.gradient).norm().item() <= tolerance * scale


def clear_case(seed: int, name: str) -> tuple[Case, ObjectiveSettings, random.Random]:
    case, chosen = make_case(seed), SETTINGS[name]
    assume(is_clear(case, chosen))
    return case, chosen, random.Random(seed + 1)


every_objective = pytest.mark.parametrize("name", NAMES)
in_both_precisions = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=["fp64", "fp32"]
)


@every_objective
@in_both_precisions
@given(seed=st.integers(0, 10**6))
@settings(max_examples=15)
def test_another_path_may_carry_a_shared_target(
    name: str, dtype: torch.dtype, tolerance: float, seed: int
) -> None:
    case, chosen, rng = clear_case(seed, name)
    expected = whole_run(case, [plainly(case)], chosen, dtype)
    for _ in range(2):
        assert_equal(whole_run(case, [assigned(case, rng)], chosen, dtype), expected, tolerance)


@every_objective
@in_both_precisions
@given(seed=st.integers(0, 10**6))
@settings(max_examples=15)
def test_more_trajectories_in_another_order_change_nothing(
    name: str, dtype: torch.dtype, tolerance: float, seed: int
) -> None:
    case, chosen, rng = clear_case(seed, name)
    expected = whole_run(case, [plainly(case)], chosen, dtype)
    pieces = cut(cut(assigned(case, rng), rng), rng)
    assert_equal(whole_run(case, [pieces], chosen, dtype), expected, tolerance)


@every_objective
@in_both_precisions
@given(seed=st.integers(0, 10**6), num_cells=st.integers(1, 4))
@settings(max_examples=15)
def test_other_micro_steps_on_other_cells_add_up_to_the_same(
    name: str, dtype: torch.dtype, tolerance: float, seed: int, num_cells: int
) -> None:
    case, chosen, rng = clear_case(seed, name)
    expected = whole_run(case, [plainly(case)], chosen, dtype)
    owner = [rng.randrange(num_cells) for _ in case.executions]
    pieces = assigned(case, rng)
    packs = [[piece for piece in pieces if owner[piece[0]] == c] for c in range(num_cells)]
    cells = [whole_run(case, [pack], chosen, dtype) for pack in packs]
    summed = Outcome(
        loss=sum(cell.loss for cell in cells),
        gradient=torch.stack([cell.gradient for cell in cells]).sum(0),
    )
    assert_equal(summed, expected, tolerance)


@every_objective
@in_both_precisions
@given(seed=st.integers(0, 10**6), num_parts=st.integers(1, 5))
@settings(max_examples=15)
def test_parts_of_an_execution_with_s_from_a_pass_before_equal_the_whole(
    name: str, dtype: torch.dtype, tolerance: float, seed: int, num_parts: int
) -> None:
    case, chosen, rng = clear_case(seed, name)
    expected = whole_run(case, [plainly(case)], chosen, dtype)
    pieces = cut(assigned(case, rng), rng)
    parts: list[list[Piece]] = [[] for _ in range(num_parts)]
    for piece in pieces:
        rng.choice(parts).append(piece)
    assert_equal(parted_run(case, parts, chosen, dtype), expected, tolerance)


@every_objective
def test_the_cases_hold_masked_and_kept_executions_caps_and_shared_targets(name: str) -> None:
    """Else the laws above would say little."""
    seen = dict.fromkeys(("masked", "kept", "clipped", "weight", "loss", "shared", "empty"), 0)
    for seed in range(150):
        case = make_case(seed)
        result = objective_loss(*tensors(case, case.policy, plainly(case)), SETTINGS[name])
        seen["masked"] += result.kept.count(False)
        seen["kept"] += result.kept.count(True)
        seen["clipped"] += result.num_clipped
        seen["weight"] += result.num_weight_capped
        seen["loss"] += result.num_loss_capped
        seen["empty"] += sum(not x.tokens for x in case.executions)
        seen["shared"] += sum(sum(map(len, x.paths)) > len(x.tokens) for x in case.executions)
    always = {"kept", "loss", "shared", "empty"}
    some = {"gspo_token": {"masked", "clipped", "weight"}, "grpo": {"clipped"}, "reinforce": set()}
    assert {key for key, count in seen.items() if count >= 20} == always | some[name]


def test_each_target_enters_with_one_over_b_n_l_and_nothing_else_divides() -> None:
    """On policy (rho = 1) the slope is -A / (B N L_i), by hand; alone or beside others."""
    logprobs = torch.full((5,), -0.5, dtype=torch.float64, requires_grad=True)
    targets = Targets(
        execution=torch.tensor([0, 0, 1, 1, 1]),
        behaviour_logprobs=torch.full((5,), -0.5, dtype=torch.float64),
        advantages=torch.tensor([1.0, -2.0], dtype=torch.float64),
        num_targets=torch.tensor([2, 3]),
        normalizer=8,
    )
    objective_loss(logprobs, targets, SETTINGS["gspo_token"]).loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-1 / 16] * 2 + [2 / 24] * 3, rel=1e-12)

    alone = torch.full((2,), -0.5, dtype=torch.float64, requires_grad=True)
    first = Targets(
        execution=torch.tensor([0, 0]),
        behaviour_logprobs=torch.full((2,), -0.5, dtype=torch.float64),
        advantages=torch.tensor([1.0], dtype=torch.float64),
        num_targets=torch.tensor([2]),
        normalizer=8,
    )
    objective_loss(alone, first, SETTINGS["gspo_token"]).loss.backward()
    assert alone.grad is not None
    assert alone.grad.tolist() == logprobs.grad.tolist()[:2]


def test_a_part_without_ratios_or_with_too_many_targets_is_refused() -> None:
    case = next(c for c in map(make_case, range(99)) if all(x.tokens for x in c.executions))
    chosen, pieces = SETTINGS["gspo_token"], plainly(case)
    part = tensors(case, case.policy, pieces[:1], whole=False)
    with pytest.raises(ObjectiveError, match="needs the ratios"):
        objective_loss(*part, chosen)
    with pytest.raises(ObjectiveError, match="0 ratios"):
        objective_loss(*part, chosen, ratios=torch.ones(0))
    with pytest.raises(ObjectiveError, match="a part of the executions"):
        tensors(case, case.policy, [*pieces, pieces[0]], whole=False)
