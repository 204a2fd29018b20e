"""The ranks of one cell as one writer: one does what is done once, all learn how it ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from gyre.cell_agent.trainer.errors import CheckpointError
from gyre.cell_agent.trainer.model.layout import cell_group

T = TypeVar("T")


class CellRanks:
    """Made on all ranks of the cell at once. rank, size: in the cell. group: over its ranks, and
    used for nothing else, so that a save goes on beside whatever the ranks compute together."""

    def __init__(self) -> None:
        self.rank: int = dist.get_rank()
        self.size: int = dist.get_world_size()
        self.group: Any = cell_group()

    def once(self, work: Callable[[], T]) -> T:
        """`work`, on rank 0 alone. Every rank returns what it returned. Raises CheckpointError on
        every rank if it did, or if the disk refused."""
        done: list[Any] = [None, None]
        if self.rank == 0:
            try:
                done[0] = work()
            except CheckpointError as error:
                done[1] = error
            except OSError as error:
                done[1] = CheckpointError(f"{type(error).__name__}: {error}")
        if self.size > 1:
            dist.broadcast_object_list(done, src=0, group=self.group)
        if done[1] is not None:
            raise done[1]
        result: T = done[0]
        return result

    def any(self, own: bool) -> bool:
        """Whether it holds on one of the ranks."""
        found = torch.tensor([int(own)])
        if self.size > 1:
            dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self.group)
        return bool(found.item())
