"""FlexAttention over a prefix tree, on a CPU through the operator's uncompiled form.

What only a GPU runs, the compiled kernel, was never run; what it is given is checked here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._higher_order_ops.flex_attention import flex_attention as flex_attention_operator
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from gyre.cell_agent.trainer.model.attention import TreeAttention
from gyre.cell_agent.trainer.model.core_attention import core_attention_on
from gyre.cell_agent.trainer.model.flex_attention import (
    BLOCK_TOKENS,
    FlexTreeAttention,
    tree_block_mask,
)
from gyre.cell_agent.trainer.model.prefix_tree import PrefixTree, build_prefix_tree
from gyre.testkit.training_trees import TreeShape, random_block

CPU = torch.device("cpu")
HEADS, GROUPS, HEAD_SIZE = 6, 2, 8
EPSILON = {torch.float32: 1e-5, torch.float64: 1e-10}


def tree_of(seed: int, *, num_edges: int, edge_tokens: int, depth_first: float) -> PrefixTree:
    shape = TreeShape(
        num_edges=num_edges, edge_tokens=edge_tokens, depth_first=depth_first, vocab_size=50
    )
    rng = random.Random(seed)
    return build_prefix_tree([random_block(rng, shape, prompt=(1, 2, 3)) for _ in range(2)])


def dense(tree: PrefixTree) -> Tensor:
    """bool [t, t], from the parents alone."""
    seen = torch.eye(tree.num_tokens, dtype=torch.bool)
    for place, parent in enumerate(tree.parents.tolist()):
        if parent != -1:
            seen[place] |= seen[parent]
    return seen


trees = st.builds(
    tree_of,
    st.integers(0, 10_000),
    num_edges=st.sampled_from([1, 8, 30]),
    edge_tokens=st.sampled_from([1, 20, 90]),
    depth_first=st.sampled_from([0.2, 0.6, 0.95]),
)


@settings(max_examples=40)
@given(trees)
def test_the_table_of_blocks_is_the_one_that_the_whole_mask_gives(tree: PrefixTree) -> None:
    seen, size = dense(tree), tree.num_tokens
    found = FlexTreeAttention.mask(tree, CPU)
    expected = create_block_mask(
        lambda batch, head, query, key: seen[query, key], 1, 1, size, size, "cpu", BLOCK_TOKENS
    )
    assert found.shape == expected.shape
    for name in ("kv", "full_kv", "q", "full_q"):
        ours, theirs = (listed(mask, name) for mask in (found, expected))
        assert ours == theirs


def listed(mask: object, name: str) -> list[list[int]]:
    counts, indices = getattr(mask, f"{name}_num_blocks"), getattr(mask, f"{name}_indices")
    return [
        row[:count].tolist()
        for count, row in zip(counts[0, 0].tolist(), indices[0, 0], strict=True)
    ]


def test_the_table_holds_no_square_of_the_tokens() -> None:
    """Of 131,072 tokens the mask alone would take 16 GiB."""
    ends = torch.full((131_072,), 131_072)
    mask = tree_block_mask(ends)
    parts = [value for value in mask.as_tuple() if isinstance(value, Tensor)]
    assert sum(part.numel() for part in parts) < 8 * (131_072 // BLOCK_TOKENS + 1) ** 2


class UncompiledFlexTreeAttention(FlexTreeAttention):
    """The same call of the operator that `flex_attention` makes, without its refusal of gradients
    on a CPU: that is for the compiled kernel. Computes all scores, and masks them by the mask."""

    @staticmethod
    def kernel() -> Callable[..., Tensor]:
        return uncompiled


def uncompiled(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    block_mask: BlockMask,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    assert enable_gqa
    scale = scale or query.shape[3] ** -0.5
    output: Tensor = flex_attention_operator(
        query, key, value, unchanged, block_mask.as_tuple(), scale, {}
    )[0]
    return output


def unchanged(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return score


@pytest.mark.parametrize("dtype", list(EPSILON))
@settings(max_examples=5)
@given(tree=trees)
def test_outputs_and_gradients_are_those_of_the_cpus_attention(
    dtype: torch.dtype, tree: PrefixTree
) -> None:
    tensors = inputs(tree, dtype)
    found = with_gradients(UncompiledFlexTreeAttention(), tensors, tree)
    expected = with_gradients(TreeAttention(), tensors, tree)
    for ours, cpus in zip(found, expected, strict=True):
        assert ours.shape == cpus.shape
        assert (ours - cpus).norm().item() <= EPSILON[dtype] * max(1.0, cpus.norm().item())


def with_gradients(
    attention: FlexTreeAttention | TreeAttention, tensors: Sequence[Tensor], tree: PrefixTree
) -> tuple[Tensor, ...]:
    """The output, and the gradients of query, key and value for a given one of the output."""
    output = attention(*tensors, attention_bias=attention.mask(tree, tensors[0].device))
    upstream = torch.linspace(-1, 1, output.numel(), device=output.device, dtype=output.dtype)
    return (output, *torch.autograd.grad(output, tensors, upstream.view_as(output)))


def test_trees_of_all_sizes_share_two_compilations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first size's and one for all others. A kernel compiled for each tree anew would after a
    few go on uncompiled, with t*t scores. Traced here; what becomes of it on a GPU is the same."""
    traced: list[int] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        traced.append(len(graph.graph.nodes))
        return graph.forward

    compiled = torch.compile(flex_attention, backend=backend)
    monkeypatch.setattr(FlexTreeAttention, "kernel", staticmethod(lambda: compiled))
    for seed in range(6):
        tree = tree_of(seed, num_edges=20, edge_tokens=60, depth_first=0.6)
        with torch.no_grad():
            FlexTreeAttention()(
                *(tensor.detach() for tensor in inputs(tree, torch.float32)),
                attention_bias=FlexTreeAttention.mask(tree, CPU),
            )
    assert len(traced) == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpus_kernel_gives_the_cpus_outputs_and_gradients() -> None:
    for seed in range(4):
        tree = tree_of(seed, num_edges=30, edge_tokens=90, depth_first=0.6)
        tensors = inputs(tree, torch.float32, head_size=64)
        there = [tensor.detach().cuda().requires_grad_() for tensor in tensors]
        found = with_gradients(FlexTreeAttention(), there, tree)
        expected = with_gradients(TreeAttention(), tensors, tree)
        for ours, cpus in zip(found, expected, strict=True):
            assert (ours.cpu() - cpus).norm().item() <= 1e-3 * cpus.norm().item()


def inputs(
    tree: PrefixTree, dtype: torch.dtype, *, head_size: int = HEAD_SIZE
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tree.num_tokens)
    query, key, value = (
        torch.randn(tree.num_tokens, 1, heads, head_size, generator=generator, dtype=dtype)
        for heads in (HEADS, GROUPS, GROUPS)
    )
    return query.requires_grad_(), key.requires_grad_(), value.requires_grad_()


def test_a_cpu_trains_with_its_own_kernel_and_other_devices_with_flex_attention() -> None:
    assert core_attention_on("cpu") is TreeAttention
    assert core_attention_on("cuda") is FlexTreeAttention
