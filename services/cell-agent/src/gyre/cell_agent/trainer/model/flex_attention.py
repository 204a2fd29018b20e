"""Core attention over a prefix tree as one FlexAttention call, for devices that have its kernels.

A token sees the tokens of its root path. In depth-first order those are intervals: token j lies on
i's root path exactly if j <= i < subtree_ends[j]. So the mask is one integer a token, read by the
kernel where a block is mixed, and a table of (t/128)**2 blocks that says which are empty, mixed or
full. No t*t mask is made, here or in the kernel, and empty blocks are skipped: the work is the
tree's, not the square of its tokens.

FlexAttention has no compiled backward pass on a CPU, where `attention.TreeAttention` is the core
attention. The tests hold this one's outputs and gradients against it on a CPU, through the
operator's uncompiled form, and its block table against the mask itself. The compiled kernels of a
GPU were never run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from gyre.cell_agent.trainer.model.prefix_tree import PrefixTree

# FlexAttention's own tile of its block table; its kernels take their work in such squares.
BLOCK_TOKENS = 128

Visible = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""FlexAttention's mask_mod: (batch, head, query, key) -> whether the query sees the key."""


class FlexTreeAttention(torch.nn.Module):
    """A `core_attention.CoreAttention`: its mask is FlexAttention's table of blocks."""

    def __init__(self, *, softmax_scale: float | None = None, **_: Any) -> None:
        super().__init__()
        self.softmax_scale = softmax_scale

    @staticmethod
    def mask(tree: PrefixTree, device: torch.device) -> BlockMask:
        """Once for a forward pass; all layers share it."""
        return tree_block_mask(torch.from_numpy(tree.subtree_ends).to(device, torch.int32))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *_: Any,
        attention_bias: BlockMask,
        **__: Any,
    ) -> Tensor:
        """query [t, 1, heads, d]; key, value [t, 1, groups, d] -> [t, 1, heads * d]."""
        queries, keys, values = (tensor.permute(1, 2, 0, 3) for tensor in (query, key, value))
        mixed = self.kernel()(
            queries,
            keys,
            values,
            block_mask=attention_bias,
            scale=self.softmax_scale,
            enable_gqa=True,
        )
        output: Tensor = mixed.permute(2, 0, 1, 3).flatten(2)
        return output

    @staticmethod
    @functools.cache
    def kernel() -> Callable[..., Tensor]:
        """Compiled on first use: uncompiled, FlexAttention computes all t*t scores."""
        compiled: Callable[..., Tensor] = torch.compile(flex_attention)
        return compiled


def visible(subtree_ends: Tensor) -> Visible:
    """subtree_ends: int [t], see `PrefixTree`."""

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < subtree_ends[key])

    return sees


def tree_block_mask(subtree_ends: Tensor) -> BlockMask:
    """Built from bounds of each block's subtree ends, never from the t*t mask that it stands for.

    A block of earlier keys has a key that some query of a block sees if the longest subtree among
    its keys reaches the first query. It is seen whole if the shortest reaches past the last one.
    """
    num_tokens = subtree_ends.numel()
    num_blocks = -(-num_tokens // BLOCK_TOKENS)
    # Zero where no token is: such a key is seen by none, such a block never whole.
    ends = torch.nn.functional.pad(subtree_ends, (0, num_blocks * BLOCK_TOKENS - num_tokens))
    shortest, longest = ends.view(num_blocks, BLOCK_TOKENS).aminmax(dim=1)
    first = torch.arange(num_blocks, device=ends.device)[:, None] * BLOCK_TOKENS
    earlier = first > first.T
    whole = earlier & (shortest >= first + BLOCK_TOKENS)
    mixed = (earlier & (longest > first) & ~whole) | (first == first.T)
    return BlockMask.from_kv_blocks(
        *_listed(mixed),
        *_listed(whole),
        BLOCK_SIZE=BLOCK_TOKENS,
        mask_mod=visible(subtree_ends),
        seq_lengths=(num_tokens, num_tokens),
    )


def _listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """bool [q, k] -> int32 [1, 1, q], how many of a row are chosen, and int32 [1, 1, q, k], which,
    in ascending order and before the others."""
    which = torch.argsort(chosen.int(), dim=1, descending=True, stable=True)
    return chosen.sum(1, dtype=torch.int32)[None, None], which.int()[None, None]
