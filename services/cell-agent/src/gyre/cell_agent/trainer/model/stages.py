"""A cell's model cut into pipeline stages, one process each; the whole model where it is one.

Megatron counts a stage's layers from zero and gives the last stage a copy of a tied embedding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist

from gyre.cell_agent.trainer.megatron.megatron_core import (
    DistributedDataParallel,
    P2PCommunicator,
    parallel_state,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """This process's part of the cell's model. index counts from the stage that embeds."""

    model: DistributedDataParallel
    communicator: P2PCommunicator
    index: int
    count: int

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == self.count - 1


def own_stage(model: DistributedDataParallel) -> Stage:
    """model: of `with_gradients`, in the world that `start_cell_world` formed."""
    group = parallel_state.get_pipeline_model_parallel_group()
    communicator = P2PCommunicator(group, model.config)
    return Stage(model=model, communicator=communicator, index=group.rank(), count=group.size())


def sum_tied_gradients(stage: Stage) -> None:
    """Adds up the gradients of a tied embedding's two copies: the first stage's, which embeds, and
    the last's, which predicts. Once a batch, after its last micro-step: what is in the buffers is
    summed, and summed again it would count twice. All stages call it."""
    module = stage.model.module
    if stage.count == 1 or not module.share_embeddings_and_output_weights:
        return
    if stage.is_first or stage.is_last:
        weight = module.shared_embedding_or_output_weight()
        dist.all_reduce(weight.main_grad, group=parallel_state.get_embedding_group())
