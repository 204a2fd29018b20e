"""Attention over a prefix tree is plain attention with the tree's mask, in memory linear in it."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gyre.cell_agent.trainer.model.attention import TreeAttention
from gyre.cell_agent.trainer.model.prefix_tree import PrefixTree, build_prefix_tree
from gyre.testkit.training_trees import TreeShape, random_block

HEADS, HEAD_SIZE = 6, 8


def tree_of(seed: int, *, num_edges: int, edge_tokens: int, depth_first: float) -> PrefixTree:
    shape = TreeShape(
        num_edges=num_edges, edge_tokens=edge_tokens, depth_first=depth_first, vocab_size=50
    )
    rng = random.Random(seed)
    return build_prefix_tree([random_block(rng, shape, prompt=(1, 2, 3)) for _ in range(2)])


def inputs(tree: PrefixTree, groups: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tree.num_tokens)
    query, key, value = (
        torch.randn(tree.num_tokens, 1, heads, HEAD_SIZE, generator=generator, dtype=dtype)
        for heads in (HEADS, groups, groups)
    )
    return query.requires_grad_(), key.requires_grad_(), value.requires_grad_()


def plain_attention(query: Tensor, key: Tensor, value: Tensor, tree: PrefixTree) -> Tensor:
    """With a mask of t * t, from the parents alone."""
    seen = torch.eye(tree.num_tokens, dtype=torch.bool)
    for place, parent in enumerate(tree.parents.tolist()):
        if parent != -1:
            seen[place] |= seen[parent]
    repeats = query.shape[2] // key.shape[2]
    key, value = (tensor[:, 0].repeat_interleave(repeats, 1) for tensor in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query[:, 0], key) * HEAD_SIZE**-0.5
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, value).flatten(1)[:, None]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("groups", [1, 2, 6])
@settings(max_examples=15)
@given(
    seed=st.integers(0, 10_000),
    depth_first=st.sampled_from([0.2, 0.6, 0.95]),
    edge_tokens=st.sampled_from([1, 5, 40]),
)
def test_outputs_and_gradients_are_those_of_the_dense_mask(
    dtype: torch.dtype, bound: float, groups: int, seed: int, depth_first: float, edge_tokens: int
) -> None:
    tree = tree_of(seed, num_edges=20, edge_tokens=edge_tokens, depth_first=depth_first)
    tensors = inputs(tree, groups, dtype)
    found = TreeAttention()(*tensors, attention_bias=tree)
    expected = plain_attention(*tensors, tree)
    assert found.shape == expected.shape
    assert (found - expected).abs().max().item() < bound
    upstream = torch.linspace(-1, 1, found.numel(), dtype=dtype).view_as(found)
    ours, plain = (torch.autograd.grad(output, tensors, upstream) for output in (found, expected))
    for mine, other in zip(ours, plain, strict=True):
        assert (mine - other).norm().item() <= bound * max(1.0, other.norm().item())


def bytes_kept(tree: PrefixTree) -> int:
    """What the forward pass keeps for the backward one, each storage once."""
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    tensors = inputs(tree, 2, torch.float32)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        TreeAttention()(*tensors, attention_bias=tree)
    return sum(storages.values())


def test_what_is_kept_for_the_backward_pass_grows_as_the_tokens_do() -> None:
    """Deep trees with many branches, where keys of a path or a mask would grow with depth."""
    small = tree_of(1, num_edges=60, edge_tokens=10, depth_first=0.8)
    large = tree_of(1, num_edges=480, edge_tokens=10, depth_first=0.95)
    assert large.num_tokens > 4 * small.num_tokens
    per_token = [bytes_kept(tree) / tree.num_tokens for tree in (small, large)]
    # query, output, key, value and a log-sum-exp a head, float32.
    assert per_token == pytest.approx([4 * (2 * HEADS * HEAD_SIZE + 2 * 2 * HEAD_SIZE + HEADS)] * 2)
