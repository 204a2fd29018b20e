"""A cell's gradients made whole over its ranks, once a batch, before the update.

Sums are linear, so this comes after the sum over cells, and on the core alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from torch import Tensor

from gyre.cell_agent.trainer.buckets import split_buckets
from gyre.cell_agent.trainer.megatron.megatron_core import (
    DistributedDataParallel,
    parallel_state,
    sum_replicated_gradients,
)
from gyre.cell_agent.trainer.model.stages import own_stage, sum_tied_gradients


def gradient_buffers(model: DistributedDataParallel) -> list[Tensor]:
    """Flat, of all this rank's parameters, in one order on all cells. Megatron keeps those of
    experts apart where ranks hold different ones."""
    return [buffer.grad_data for buffer in (*model.buffers, *model.expert_parallel_buffers)]


def finalize_gradients(model: DistributedDataParallel) -> None:
    """In the model's gradient buffers: summed over the context and data ranks, each of which saw
    some of the targets; an expert's over the ranks that hold it too, for the tokens of the others
    have come to it; over the tensor ranks where a replicated parameter met some of the tokens
    (sequence parallelism) or some of the heads (query and key norms); over both ends of a pipeline
    where they hold a copy each of a tied embedding.

    Collective over the cell. Nothing is divided: not by ranks, not by tokens. What is summed would
    be summed again: once a batch.
    """
    _sum(model.buffers, parallel_state.get_data_parallel_group(with_context_parallel=True))
    _sum(model.expert_parallel_buffers, parallel_state.get_expert_data_parallel_group())
    sum_replicated_gradients(
        [model], model.config, parallel_state.get_tensor_model_parallel_group()
    )
    sum_tied_gradients(own_stage(model))


def _sum(buffers: Iterable[Any], group: Any) -> None:
    """buffers: of Megatron."""
    if group.size() > 1:
        for bucket in split_buckets(buffer.grad_data for buffer in buffers):
            dist.all_reduce(bucket, group=group)
