"""The optimizer shared out over the ranks of a cell that hold the same parameters.

Context and data ranks do. Each has moments and float32 masters of its share alone, whole parameters
about equal in size, updates them from the cell's summed gradient, and gives them to the others. So
each parameter's state lies once in a cell, whatever its layout. Megatron's own distributed
optimizer cuts inside of parameters, for which it lays them into one buffer; these keep the storages
that a role change parks and brings back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor

from gyre.cell_agent.trainer.buckets import flat_buckets, scatter
from gyre.cell_agent.trainer.megatron.megatron_core import parallel_state


class OptimizerShares:
    """The same on all ranks of the group, from the order and sizes of their parameters alone."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._group: Any = parallel_state.get_data_parallel_group(with_context_parallel=True)
        self._rank: int = self._group.rank()
        self._owned = share_out(list(parameters), self._group.size())

    @property
    def several(self) -> bool:
        return len(self._owned) > 1

    @contextmanager
    def own_alone(self) -> Iterator[None]:
        """Meanwhile the others' parameters want no gradient, so that an optimizer leaves them."""
        others = [
            parameter
            for rank, owned in enumerate(self._owned)
            for parameter in owned
            if rank != self._rank
        ]
        try:
            for parameter in others:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter in others:
                parameter.requires_grad_(True)

    def exchange(self) -> None:
        """Each rank's parameters, from where they were updated to where they were not."""
        if not self.several:
            return
        for rank, owned in enumerate(self._owned):
            source = dist.get_global_rank(self._group, rank)
            for flat, parameters in flat_buckets(owned):
                dist.broadcast(flat, src=source, group=self._group)
                if rank != self._rank:
                    scatter(flat, parameters)


def share_out(parameters: Sequence[Tensor], num_ranks: int) -> list[list[Tensor]]:
    """By rank, each parameter once: the largest first, to whom has least; none is without one where
    there are enough."""
    owned: list[list[Tensor]] = [[] for _ in range(num_ranks)]
    sizes = [0] * num_ranks
    for parameter in sorted(parameters, key=Tensor.numel, reverse=True):
        least = sizes.index(min(sizes))
        owned[least].append(parameter)
        sizes[least] += parameter.numel()
    return owned
