"""The optimizer shared out over the ranks of a cell that hold the same parameters.

Context and data ranks do, but for experts, which are held by ranks of a group of their own where
they are shared out. Each has moments and float32 masters of its share alone, whole parameters about
equal in size, updates them from the cell's summed gradient, and gives them to the others. So each
parameter's state lies once in a cell, whatever its layout. Megatron's own distributed optimizer
cuts inside of parameters, for which it lays them into one buffer; these keep the storages that a
role change parks and brings back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor

from gyre.cell_agent.trainer.buckets import flat_buckets, scatter
from gyre.cell_agent.trainer.megatron.megatron_core import parallel_state


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alike:
    """Parameters that the ranks of `group` hold alike. owned: by rank in it, who updates which."""

    group: Any
    owned: Sequence[Sequence[Tensor]]

    def of_others(self) -> Iterator[Tensor]:
        own = self.group.rank()
        for rank, owned in enumerate(self.owned):
            yield from owned if rank != own else ()

    def exchange(self) -> None:
        for rank, owned in enumerate(self.owned):
            source = dist.get_global_rank(self.group, rank)
            for flat, parameters in flat_buckets(owned):
                dist.broadcast(flat, src=source, group=self.group)
                if rank != self.group.rank():
                    scatter(flat, parameters)


class OptimizerShares:
    """The same on all ranks of a group, from the order and sizes of their parameters alone."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        replicated: list[Tensor] = []
        experts: list[Tensor] = []
        for parameter in parameters:
            # Megatron's mark of an expert that other ranks do not hold.
            (replicated if getattr(parameter, "allreduce", True) else experts).append(parameter)
        self._shares = [
            _Alike(group=group, owned=share_out(held, group.size()))
            for held, group in (
                (replicated, parallel_state.get_data_parallel_group(with_context_parallel=True)),
                (experts, parallel_state.get_expert_data_parallel_group()),
            )
            if group.size() > 1
        ]

    @contextmanager
    def own_alone(self) -> Iterator[None]:
        """Meanwhile the others' parameters want no gradient, so that an optimizer leaves them."""
        others = [parameter for share in self._shares for parameter in share.of_others()]
        try:
            for parameter in others:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter in others:
                parameter.requires_grad_(True)

    def exchange(self) -> None:
        """Each rank's parameters, from where they were updated to where they were not."""
        for share in self._shares:
            share.exchange()


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
