"""What the ranks of a cell share out: tokens of a unit over context and tensor ranks, blocks of it
over data ranks, the model's parts over all."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gyre.cell_agent.trainer.model.attention import attend_runs
from gyre.cell_agent.trainer.model.layout import TokenShares
from gyre.cell_agent.trainer.model.packing import DataShare, ForwardUnit, pack_micro_step
from gyre.cell_agent.trainer.model.prefix_tree import PrefixTree, build_prefix_tree, cut, padded
from gyre.core.policy_config import PolicyConfig
from gyre.testkit.training_trees import TreeShape, random_block, random_tree_step

SHAPE = TreeShape(num_edges=12, edge_tokens=5, depth_first=0.6, vocab_size=4)
POLICY = PolicyConfig(
    num_layers=6,
    hidden_size=64,
    ffn_size=130,
    num_heads=8,
    num_groups=4,
    head_size=16,
    vocab_size=510,
    max_positions=2048,
    norm_eps=1e-6,
    rope_base=1e4,
    tied_embeddings=True,
    qk_norm=True,
)
seeds = st.integers(0, 10_000)


def tree_of(seed: int) -> PrefixTree:
    rng = random.Random(seed)
    return build_prefix_tree([random_block(rng, SHAPE, prompt=(1, 2, 3)) for _ in range(3)])


def shares(*, context: int, sequence: int, rank: int = 0) -> TokenShares:
    return TokenShares(context=context, context_rank=rank, sequence=sequence)


@given(st.integers(0, 50), st.integers(1, 4), st.integers(1, 4))
def test_shares_are_equal_and_cover_every_token(tokens: int, context: int, sequence: int) -> None:
    of_ranks = [shares(context=context, sequence=sequence, rank=rank) for rank in range(context)]
    size = of_ranks[0].padded(tokens)
    covered = [place for one in of_ranks for place in range(size)[one.here(tokens)]]
    assert covered == list(range(size))
    assert max(tokens, 1) <= size < max(tokens, 1) + context * sequence
    assert {one.hidden(tokens) * context * sequence for one in of_ranks} == {size}
    places = torch.arange(0, tokens, 2)
    own = [one.among(places, tokens).tolist() for one in of_ranks]
    assert [n for part in own for n in part] == list(range(len(places)))


@settings(max_examples=20, deadline=None)
@given(seeds, st.integers(1, 3), st.integers(1, 3))
def test_attention_of_the_shares_is_that_of_the_tree(
    seed: int, context: int, sequence: int
) -> None:
    """Outputs and gradients, with a filler behind the tree that nothing of it sees."""
    tree = tree_of(seed)
    of_ranks = [shares(context=context, sequence=sequence, rank=rank) for rank in range(context)]
    filled = padded(tree, of_ranks[0].padded(tree.num_tokens))
    generator = torch.Generator().manual_seed(seed)
    whole = [
        torch.randn(filled.num_tokens, 1, heads, 8, generator=generator, dtype=torch.float64)
        for heads in (4, 2, 2)
    ]
    places = [one.here(tree.num_tokens) for one in of_ranks]
    expected = attended(whole, tree, [slice(0, tree.num_tokens)], tree.num_tokens)
    found = attended(whole, filled, places, tree.num_tokens)
    for ours, plain in zip(found, expected, strict=True):
        assert torch.allclose(ours, plain, rtol=0, atol=1e-12)


def attended(
    whole: list[Tensor], tree: PrefixTree, places: list[slice], num_tokens: int
) -> list[Tensor]:
    """The first `num_tokens` of the output, and of the gradients of query, key and value."""
    query, key, value = (tensor[: tree.num_tokens].clone().requires_grad_() for tensor in whole)
    parts = [
        attend_runs(query[here], key, value, cut(tree.runs, here), first=here.start)
        for here in places
    ]
    output = torch.cat(parts)[:num_tokens]
    slopes = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    gradients = torch.autograd.grad(output, (query, key, value), slopes)
    return [output, *(gradient[:num_tokens] for gradient in gradients)]


@given(seeds)
def test_a_filler_is_on_a_root_path_of_its_own(seed: int) -> None:
    tree = tree_of(seed)
    size = tree.num_tokens
    filled = padded(tree, size + 3)
    assert padded(tree, size) is tree
    assert filled.parents.tolist() == [*tree.parents.tolist(), -1, size, size + 1]
    assert filled.positions.tolist() == [*tree.positions.tolist(), 0, 1, 2]
    assert filled.subtree_ends.tolist() == [*tree.subtree_ends.tolist(), *[size + 3] * 3]
    assert [place for run in filled.runs for place in range(run.start, run.stop)] == list(
        range(size + 3)
    )


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(1, 4), st.integers(1, 3))
def test_every_target_is_computed_on_one_data_rank(seed: int, count: int, window: int) -> None:
    """With the same tokens before it, whoever computes it; and all ranks know all of them."""
    step = random_tree_step(random.Random(seed), SHAPE, num_executions=4)
    step = replace(step, window_rows=window)
    whole = pack_micro_step(step, POLICY)
    parts = [
        pack_micro_step(step, POLICY, share=DataShare(rank=rank, count=count))
        for rank in range(count)
    ]
    for packed in parts:
        assert packed.token_ids.equal(whole.token_ids)
        assert packed.num_computed_tokens == parts[0].num_computed_tokens
    for unit, *shared in zip(whole.units, *(packed.units for packed in parts), strict=True):
        assert {(part.targets.start, part.targets.stop) for part in shared} == {
            (unit.targets.start, unit.targets.stop)
        }
        firsts = [part.first for part in shared]
        counts = [len(part.predictors) for part in shared]
        assert firsts == [0, *np.cumsum(counts)[:-1].tolist()]
        assert sum(counts) == len(unit.predictors)
        assert [path for part in shared for path in paths(part)] == paths(unit)
        assert {part.num_tokens for part in shared} == {sum(p.tree.num_tokens for p in shared)}


def paths(unit: ForwardUnit) -> list[list[int]]:
    """By target, the tokens before it."""
    found = []
    for place in unit.predictors.tolist():
        path = []
        while place != -1:
            path.append(int(unit.tree.token_ids[place]))
            place = int(unit.tree.parents[place])
        found.append(path[::-1])
    return found
