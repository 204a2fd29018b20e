"""A micro-step as tensors: one prefix tree, and for each target where its prediction lies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gyre.cell_agent.trainer.errors import BadMicroStep
from gyre.cell_agent.trainer.hf_config import PolicyConfig
from gyre.cell_agent.trainer.prefix_tree import PrefixTree, build_prefix_tree
from gyre.core.microstep import MicroStep, Segment
from gyre.objective import Targets


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedMicroStep:
    """n targets. predictors: int64 [n], the place in the tree whose logits predict the target.
    token_ids: int64 [n]. temperatures: float64 [n]. versions: int64 [n], those of targets whose
    version is recorded, chosen by `versioned`: bool [n]."""

    tree: PrefixTree
    predictors: Tensor
    token_ids: Tensor
    temperatures: Tensor
    targets: Targets
    versions: Tensor
    versioned: Tensor


def pack_micro_step(step: MicroStep, policy: PolicyConfig) -> PackedMicroStep:
    """Raises BadMicroStep: a token or a position that the model does not have."""
    segments = [segment for segment in step.segments if segment.target_positions]
    # What follows the last target predicts nothing that counts.
    inputs = [segment.token_ids[: segment.target_positions[-1]] for segment in segments]
    _check_range(segments, inputs, policy)
    tree = build_prefix_tree(inputs)
    predictors = [
        places[np.asarray(segment.target_positions) - 1]
        for segment, places in zip(segments, tree.places, strict=True)
    ]
    execution = _integers([s.execution for s in segments for _ in s.target_positions])
    temperatures = torch.tensor([info.temperature for info in step.executions], dtype=torch.float64)
    return PackedMicroStep(
        tree=tree,
        predictors=torch.from_numpy(np.concatenate(predictors or [np.empty(0, np.int64)])),
        token_ids=_integers([s.token_ids[t] for s in segments for t in s.target_positions]),
        temperatures=temperatures[execution],
        targets=_targets(step, segments, execution),
        versions=_integers(
            [v for s in segments for v in s.versions or [0] * len(s.target_positions)]
        ),
        versioned=torch.tensor(
            [bool(s.versions) for s in segments for _ in s.target_positions], dtype=torch.bool
        ),
    )


def _targets(step: MicroStep, segments: list[Segment], execution: Tensor) -> Targets:
    return Targets(
        execution=execution,
        behaviour_logprobs=torch.tensor(
            [value for s in segments for value in s.behaviour_logprobs], dtype=torch.float64
        ),
        advantages=torch.tensor([info.advantage for info in step.executions], dtype=torch.float64),
        num_targets=_integers([info.num_targets for info in step.executions]),
        normalizer=step.normalizer,
    )


def _check_range(
    segments: list[Segment], inputs: list[tuple[int, ...]], policy: PolicyConfig
) -> None:
    for segment, tokens in zip(segments, inputs, strict=True):
        if len(tokens) > policy.max_positions:
            raise BadMicroStep(
                f"a path has {len(tokens)} tokens, the model {policy.max_positions} positions"
            )
        if min(segment.token_ids) < 0 or max(segment.token_ids) >= policy.vocab_size:
            raise BadMicroStep(
                f"a token id lies outside the vocabulary of {policy.vocab_size} entries"
            )


def _integers(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)
