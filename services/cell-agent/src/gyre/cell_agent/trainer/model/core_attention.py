"""The port behind which Megatron's layers attend over a prefix tree, and what stands behind it.

An implementation is a module with Megatron's core-attention signature. Megatron hands its
`attention_bias` argument through to it untouched, so the tree travels there, in the form that the
implementation's `mask` gives it: made once for a forward pass, shared by all layers. Not as
`attention_mask`: where layers are recomputed, Megatron saves that one, and saves tensors only.

On a CPU `attention.py`, whose kernel is for CPUs; elsewhere `flex_attention.py`, whose operator has
no backward pass on a CPU. There is nothing to choose: each trains where the other cannot. Where a
cell's tokens are shared out over context ranks, `context_attention.py`, on a CPU alone.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from gyre.cell_agent.trainer.model.attention import TreeAttention
from gyre.cell_agent.trainer.model.flex_attention import FlexTreeAttention
from gyre.cell_agent.trainer.model.layout import own_layout
from gyre.cell_agent.trainer.model.prefix_tree import PrefixTree


class CoreAttention(Protocol):
    """The class of such modules, as Megatron's layer specification takes it."""

    def __call__(self, *, softmax_scale: float | None = None, **_: Any) -> torch.nn.Module: ...

    @staticmethod
    def mask(tree: PrefixTree, device: torch.device) -> Any:
        """What the module's forward takes as `attention_bias`."""


def core_attention_on(device_type: str) -> CoreAttention:
    """By the device and the cell's layout, which `check_layout` has found fit for it."""
    if own_layout().context > 1:
        # It takes a collective from Megatron, which the others do without.
        from gyre.cell_agent.trainer.model.context_attention import ContextTreeAttention

        return ContextTreeAttention
    return TreeAttention if device_type == "cpu" else FlexTreeAttention
