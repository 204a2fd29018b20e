"""A micro-step as tensors: forward units, each one prefix tree, and where its targets lie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from gyre.cell_agent.trainer.errors import BadMicroStep
from gyre.cell_agent.trainer.model.prefix_tree import IntArray, PrefixTree, build_prefix_tree
from gyre.core.microstep import MicroStep, Row, TreeBlock
from gyre.core.policy_config import PolicyConfig
from gyre.objective import Targets


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardUnit:
    """Rows that go through the model together. targets: which of the micro-step's are theirs.

    tree: those of its blocks that this data rank of the cell computes, all of them in a cell of
    one; it may be empty. predictors: int64 [k], the places in the tree whose logits predict k
    targets. first: of the unit's targets, the first of these k. num_elsewhere: tokens of the other
    data ranks' trees."""

    tree: PrefixTree
    predictors: Tensor
    targets: slice
    first: int = 0
    num_elsewhere: int = 0

    @property
    def num_tokens(self) -> int:
        """Through the embedding, on all ranks of the cell."""
        return self.tree.num_tokens + self.num_elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class DataShare:
    """rank: of `count` that compute a unit's blocks between them."""

    rank: int = 0
    count: int = 1


WHOLE = DataShare()


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedMicroStep:
    """n targets, unit after unit. token_ids: int64 [n]. temperatures: float64 [n]. versions: int64
    [n], those of targets whose version is recorded, chosen by `versioned`: bool [n]."""

    units: tuple[ForwardUnit, ...]
    token_ids: Tensor
    temperatures: Tensor
    targets: Targets
    versions: Tensor
    versioned: Tensor

    def to(self, device: torch.device) -> PackedMicroStep:
        """What the model and its logits take of it is there; the objective works on the host, and
        trees are no tensors."""
        units = tuple(replace(unit, predictors=unit.predictors.to(device)) for unit in self.units)
        token_ids, temperatures = self.token_ids.to(device), self.temperatures.to(device)
        return replace(self, units=units, token_ids=token_ids, temperatures=temperatures)

    @property
    def num_computed_tokens(self) -> int:
        """After shared prefixes were merged in each unit: through the embedding in one pass."""
        return sum(unit.num_tokens for unit in self.units)

    @property
    def num_forwarded_tokens(self) -> int:
        """Through the embedding in all passes: s_i of more than one unit takes one of its own."""
        return self.num_computed_tokens * (2 if len(self.units) > 1 else 1)


def pack_micro_step(
    step: MicroStep,
    policy: PolicyConfig,
    *,
    rows_per_unit: int | None = None,
    share: DataShare = WHOLE,
) -> PackedMicroStep:
    """rows_per_unit: the micro-step's window unless given. share: what of each unit is packed; its
    targets are all there.

    Raises BadMicroStep: a token or a position that the model does not have.
    """
    blocks = [block for block in step.blocks if block.target_positions]
    window = rows_per_unit or step.window_rows
    execution = _integers(b.execution for b in blocks for _ in b.target_positions)
    temperatures = torch.tensor([info.temperature for info in step.executions], dtype=torch.float64)
    return PackedMicroStep(
        units=_units(step.rows, window, policy, share),
        token_ids=_integers(b.token_ids[t] for b in blocks for t in b.target_positions),
        temperatures=temperatures[execution],
        targets=_targets(step, execution),
        versions=_integers(v for b in blocks for v in b.versions or [0] * len(b.target_positions)),
        versioned=torch.tensor(
            [bool(b.versions) for b in blocks for _ in b.target_positions], dtype=torch.bool
        ),
    )


def _units(
    rows: Sequence[Row], window: int, policy: PolicyConfig, share: DataShare
) -> tuple[ForwardUnit, ...]:
    """A block without targets predicts nothing, so it is left out, and a unit of such blocks."""
    units: list[ForwardUnit] = []
    for first in range(0, len(rows), window):
        of_window = [b for row in rows[first : first + window] for b in row.blocks]
        blocks = [block for block in of_window if block.target_positions]
        if blocks:
            num_before = units[-1].targets.stop if units else 0
            units.append(_unit(blocks, num_before, policy, share))
    return tuple(units)


def _unit(
    blocks: Sequence[TreeBlock], first_target: int, policy: PolicyConfig, share: DataShare
) -> ForwardUnit:
    parts = _parts(blocks, share.count)
    trees = [build_prefix_tree(part) for part in parts]
    predictors = [_predictors(tree, part) for tree, part in zip(trees, parts, strict=True)]
    for tree, places in zip(trees, predictors, strict=True):
        _check_range(tree, places, policy)
    own = trees[share.rank]
    num_targets = [len(places) for places in predictors]
    return ForwardUnit(
        tree=own,
        predictors=torch.from_numpy(predictors[share.rank]),
        targets=slice(first_target, first_target + sum(num_targets)),
        first=sum(num_targets[: share.rank]),
        num_elsewhere=sum(tree.num_tokens for tree in trees) - own.num_tokens,
    )


def _parts(blocks: Sequence[TreeBlock], count: int) -> list[list[TreeBlock]]:
    """In order, of about as many tokens each."""
    parts: list[list[TreeBlock]] = [[] for _ in range(count)]
    total, before = sum(len(block.token_ids) for block in blocks), 0
    for block in blocks:
        middle = before + len(block.token_ids) / 2
        parts[min(count - 1, int(middle * count / total))].append(block)
        before += len(block.token_ids)
    return parts


def _predictors(tree: PrefixTree, blocks: Sequence[TreeBlock]) -> IntArray:
    places = [
        of_block[np.asarray(block.target_positions, dtype=np.int64)]
        for block, of_block in zip(blocks, tree.places, strict=True)
    ]
    found: IntArray = tree.parents[np.concatenate([np.empty(0, np.int64), *places])]
    return found


def _targets(step: MicroStep, execution: Tensor) -> Targets:
    logprobs = [value for block in step.blocks for value in block.behaviour_logprobs]
    return Targets(
        execution=execution,
        behaviour_logprobs=torch.tensor(logprobs, dtype=torch.float64),
        advantages=torch.tensor([info.advantage for info in step.executions], dtype=torch.float64),
        num_targets=_integers(info.num_targets for info in step.executions),
        normalizer=step.normalizer,
    )


def _check_range(tree: PrefixTree, predictors: IntArray, policy: PolicyConfig) -> None:
    if tree.num_tokens == 0:
        return
    longest = int(tree.positions[predictors].max()) + 1
    if longest > policy.max_positions:
        raise BadMicroStep(
            f"a target has {longest} tokens before it, the model {policy.max_positions} positions"
        )
    if tree.token_ids.min() < 0 or tree.token_ids.max() >= policy.vocab_size:
        raise BadMicroStep(f"a token id lies outside the vocabulary of {policy.vocab_size} entries")


def _integers(values: Iterable[int]) -> Tensor:
    return torch.from_numpy(np.fromiter(values, dtype=np.int64))
