"""A cell's ranks: the parallel groups that they form, where this process stands in them, and which
tokens of a forward unit it computes.

Megatron's world is the cell: its tensor, pipeline, context and data parallelism end here. It lives
as long as the process. What crosses cells goes through `ranks/world.py`, whose groups come and go
with the membership while modules and optimizer keep theirs.

Like Megatron's, this state is the process's: `start_cell_world` sets it, once. Only that loads
Megatron: to know where one stands in a cell of one takes none.
"""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore, Store  # type: ignore[attr-defined]

from gyre.cell_agent.trainer.device import CPU
from gyre.cell_agent.trainer.errors import BadModel
from gyre.cell_agent.trainer.model.packing import DataShare
from gyre.contracts.training_job import LayoutSection
from gyre.core.layout_fit import LayoutMisfit, check_device, check_fit
from gyre.core.policy_config import PolicyConfig

ONE_RANK = LayoutSection()

# Of a rank's wait for the cell's others. What ends it is the agent: by the deadline of the command,
# which grows with the model, or by the silence of a rank; and a peer's closed connection.
ENDLESS_S = 365 * 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinate:
    """A rank's place in each of its cell's parallel groups. index: in the cell."""

    tensor: int = 0
    pipeline: int = 0
    context: int = 0
    data: int = 0
    index: int = 0


@dataclass(slots=True, kw_only=True)
class _World:
    layout: LayoutSection = ONE_RANK
    place: Coordinate = Coordinate()


_world = _World()


def start_cell_world(
    layout: LayoutSection = ONE_RANK,
    rank: int = 0,
    store: Store | None = None,
    *,
    device: torch.device,
    timeout_s: float = ENDLESS_S,
) -> None:
    """rank: in the cell. store: where the cell's ranks meet; a cell of one rank needs none.
    device: of this rank; with a GPU its groups take tensors of either memory. timeout_s: as
    ENDLESS_S."""
    from gyre.cell_agent.trainer.megatron.megatron_core import (
        model_parallel_cuda_manual_seed,
        parallel_state,
    )

    dist.init_process_group(
        "gloo" if device == CPU else "cpu:gloo,cuda:nccl",
        store=store or HashStore(),
        rank=rank,
        world_size=layout.num_ranks,
        timeout=dt.timedelta(seconds=timeout_s),
    )
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        context_parallel_size=layout.context,
        expert_model_parallel_size=layout.expert,
        expert_tensor_parallel_size=layout.expert_tensor,
        distributed_timeout_minutes=math.ceil(timeout_s / 60),
    )
    # Mandatory even without dropout: attention looks its random state up by name.
    model_parallel_cuda_manual_seed(0)
    _world.layout = layout
    _world.place = Coordinate(
        tensor=parallel_state.get_tensor_model_parallel_rank(),
        pipeline=parallel_state.get_pipeline_model_parallel_rank(),
        context=parallel_state.get_context_parallel_rank(),
        data=parallel_state.get_data_parallel_rank(),
        index=rank,
    )


def cell_group() -> Any:
    """Over the cell's ranks, on their hosts, for one use alone: what is said in it does not wait
    behind what the ranks compute together. Collective: every rank makes as many, in the same
    order."""
    return dist.new_group(backend="gloo", timeout=dt.timedelta(seconds=ENDLESS_S))


def own_layout() -> LayoutSection:
    return _world.layout


def own_coordinate() -> Coordinate:
    return _world.place


def own_data_share() -> DataShare:
    return DataShare(rank=_world.place.data, count=_world.layout.data)


def cell_agrees(ok: bool) -> bool:
    """Whether all ranks of the cell say so; all of them get the same answer. Collective."""
    if _world.layout.num_ranks == 1:
        return ok
    votes = torch.tensor([int(ok)])
    dist.all_reduce(votes, op=dist.ReduceOp.MIN)
    return bool(votes.item())


def check_layout(policy: PolicyConfig, layout: LayoutSection, *, on_gpu: bool) -> None:
    """Raises BadModel: a part of the model cannot be shared out evenly, or not on these devices, or
    Megatron does not."""
    try:
        check_fit(policy, layout)
        check_device(layout, on_gpu=on_gpu)
    except LayoutMisfit as error:
        raise BadModel(f"training.layout.{error.setting}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenShares:
    """A unit's flat sequence, cut evenly over the context ranks and, between the blocks of a layer
    under sequence parallelism, over the tensor ranks again. context_rank: this process's."""

    context: int
    context_rank: int
    sequence: int

    @staticmethod
    def own() -> TokenShares:
        return TokenShares(
            context=_world.layout.context,
            context_rank=_world.place.context,
            sequence=_world.layout.tensor if _world.layout.sequence_parallel else 1,
        )

    def padded(self, num_tokens: int) -> int:
        """Tokens with those that make the shares equal. At least one a share: a rank without a
        token would still have to enter every collective."""
        multiple = self.context * self.sequence
        return max(1, -(-num_tokens // multiple)) * multiple

    def here(self, num_tokens: int) -> slice:
        """Places of the padded sequence that this rank's attention asks from."""
        size = self.padded(num_tokens) // self.context
        return slice(size * self.context_rank, size * (self.context_rank + 1))

    def hidden(self, num_tokens: int) -> int:
        """Tokens of the hidden states that this rank hands to the next pipeline stage."""
        return self.padded(num_tokens) // (self.context * self.sequence)

    def among(self, places: Tensor, num_tokens: int) -> Tensor:
        """int64 [k]: which of the `places` of the sequence, int64 [n], are this rank's."""
        here = self.here(num_tokens)
        return torch.nonzero((places >= here.start) & (places < here.stop))[:, 0]
