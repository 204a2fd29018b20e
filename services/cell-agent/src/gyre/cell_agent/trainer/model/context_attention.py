"""Core attention over a prefix tree whose tokens are shared out over a cell's context ranks.

Each rank asks from its own share of the flat sequence, a contiguous one, and attends to keys and
values of all ranks: they are gathered, and their gradients summed back to where they came from. A
run that lies in two shares is cut there; what precedes the cut is one span more above the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gyre.cell_agent.trainer.megatron.megatron_core import (
    gather_from_sequence_parallel_region,
    parallel_state,
)
from gyre.cell_agent.trainer.model.attention import TreeAttention, attend_runs
from gyre.cell_agent.trainer.model.layout import TokenShares
from gyre.cell_agent.trainer.model.prefix_tree import PrefixTree, Run, cut


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRuns:
    """Runs that cover this rank's share, in places of the whole sequence, and the share's first."""

    runs: tuple[Run, ...]
    first: int


class ContextTreeAttention(TreeAttention):
    """A `core_attention.CoreAttention` for cells whose layout has context > 1."""

    @staticmethod
    def mask(tree: PrefixTree, device: torch.device) -> OwnRuns:  # type: ignore[override]
        """tree: padded to the shares."""
        here = TokenShares.own().here(tree.num_tokens)
        return OwnRuns(runs=cut(tree.runs, here), first=here.start)

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *_: Any,
        attention_bias: OwnRuns,
        **__: Any,
    ) -> Tensor:
        """query [s, 1, heads, d]; key, value [s, 1, groups, d], all of the share's s tokens ->
        [s, 1, heads * d]."""
        # One gather for both: one rank may not begin with keys where another does with values.
        both = gather_from_sequence_parallel_region(
            torch.cat([key, value], dim=-1), group=parallel_state.get_context_parallel_group()
        )
        keys, values = both.split([key.shape[-1], value.shape[-1]], dim=-1)
        return attend_runs(
            query,
            keys,
            values,
            attention_bias.runs,
            first=attention_bias.first,
            scale=self.softmax_scale,
        )
