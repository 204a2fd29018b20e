"""Core attention over a prefix tree, in place of Megatron's dense softmax."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gyre.cell_agent.trainer.prefix_tree import PrefixTree


class TreeMask:
    """Which tokens an edge attends to. Built once per micro-step, shared by all layers.

    Megatron hands its `attention_mask` argument through to the core attention untouched, so this
    object travels there in a dense mask's place: a mask of t*t would cost more than the attention.
    """

    def __init__(self, tree: PrefixTree, dtype: torch.dtype) -> None:
        self.sizes = [edge.stop - edge.start for edge in tree.edges]
        self.paths = [edge.path for edge in tree.edges]
        self.biases = [
            _causal_bias(size, edge.depth, dtype) if edge.depth else None
            for edge, size in zip(tree.edges, self.sizes, strict=True)
        ]


def _causal_bias(size: int, depth: int, dtype: torch.dtype) -> Tensor:
    """[size, depth + size]: everything above the edge is visible, inside it what came before."""
    bias = torch.zeros(size, depth + size, dtype=dtype)
    future = torch.ones(size, size, dtype=torch.bool).triu(1)
    bias[:, depth:].masked_fill_(future, float("-inf"))
    return bias


class TreeAttention(torch.nn.Module):
    """Megatron's core-attention signature; one scaled_dot_product_attention per edge."""

    def __init__(self, *, softmax_scale: float | None = None, **_: Any) -> None:
        super().__init__()
        self.softmax_scale = softmax_scale

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: TreeMask, **_: Any
    ) -> Tensor:
        """query [t, 1, heads, d]; key, value [t, 1, groups, d] -> [t, 1, heads * d]."""
        queries, keys, values = (
            tensor.permute(1, 2, 0, 3).split_with_sizes(attention_mask.sizes, dim=2)
            for tensor in (query, key, value)
        )
        outputs = []
        for number, (path, bias) in enumerate(
            zip(attention_mask.paths, attention_mask.biases, strict=True)
        ):
            seen = (*path, number)
            outputs.append(
                functional.scaled_dot_product_attention(
                    queries[number],
                    torch.cat([keys[edge] for edge in seen], dim=2) if path else keys[number],
                    torch.cat([values[edge] for edge in seen], dim=2) if path else values[number],
                    attn_mask=bias,
                    is_causal=bias is None,
                    scale=self.softmax_scale,
                    enable_gqa=True,
                )
            )
        return torch.cat(outputs, dim=2).permute(2, 0, 1, 3).flatten(2)
