"""The ranks of a cell that share a host: the first of them pulls weights, the others map them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.distributed as dist

from gyre.cell_agent.trainer.model.layout import cell_group
from gyre.cell_agent.weights.base import Pulled
from gyre.cell_agent.weights.errors import WeightTransportError
from gyre.cell_agent.weights.manifest import Manifest
from gyre.cell_agent.weights.memory import Memory, Place, SharedMemory, host_name, own_memory

Pull = Callable[[Memory], Pulled]
"""Into that memory. Raises WeightTransportError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Landed:
    manifest: Manifest
    place: Place


class HostRanks:
    """Made on all ranks of the cell at once."""

    def __init__(self) -> None:
        self._own = self._first = dist.get_rank()
        # Over the cell's ranks; None where there is but one.
        self._group: Any = None
        if dist.get_world_size() > 1:
            self._group = cell_group()
            hosts = self._gathered(host_name())
            self._first = hosts.index(hosts[self._own])

    def pull(self, pull: Pull) -> Pulled:
        """`pull`, on each host's first rank alone; its memory is mapped by all. All ranks of the
        cell call it. Raises WeightTransportError, on all of them if on one."""
        if self._group is None:
            return pull(own_memory)
        with SharedMemory() as memory:
            landed = self._all_or_none(partial(self._land, pull, memory))[self._first]
            found: list[memoryview] = []
            # Nobody lets go of the memory before all have mapped it.
            self._all_or_none(lambda: found.append(landed.place.mapped()))
        return Pulled(manifest=landed.manifest, payload=found[0])

    def _land(self, pull: Pull, memory: SharedMemory) -> _Landed | None:
        if self._own != self._first:
            return None
        return _Landed(manifest=pull(memory).manifest, place=memory.place)

    def _all_or_none(self, work: Callable[[], Any]) -> list[Any]:
        """What it gave, by rank. Raises WeightTransportError on all ranks if on one."""
        try:
            own = work()
        except WeightTransportError as error:
            own = error
        given = self._gathered(own)
        for one in given:
            if isinstance(one, WeightTransportError):
                raise one
        return given

    def _gathered(self, own: Any) -> list[Any]:
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, own, group=self._group)
        return found
