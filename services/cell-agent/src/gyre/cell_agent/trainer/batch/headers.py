"""What a cell's ranks are told before they compute: which unit is next, or that the stream stops.

The rank that leads decides and tells all others, so that they stop at the same unit. Headers travel
on a group of their own, never among the tensors, and are sent without waiting: the leader goes on
while a later stage still works on what it was told before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from enum import IntEnum
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from gyre.cell_agent.trainer.errors import StageLost
from gyre.cell_agent.trainer.model.layout import cell_group

_Answer = TypeVar("_Answer")


class Kind(IntEnum):
    """UNIT: forward and backward. FORWARD: forward alone, of a micro-step of several units. PAUSE:
    nothing came in time, what is in flight goes backward. DRAIN: that, because the leader's next
    command needs it. CLOSED: that, and the batch is over."""

    UNIT = 0
    FORWARD = 1
    PAUSE = 2
    DRAIN = 3
    CLOSED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """index: of the micro-step. unit: in it. num_tokens: through the embedding, which is the shape
    that stages hand on; 0 where the micro-step has no target. All three 0 where `kind` stops."""

    kind: Kind
    index: int = 0
    unit: int = 0
    num_tokens: int = 0


class HeaderLine:
    """One rank's end. Every method but `leads` raises StageLost: a rank of the cell is gone."""

    def __init__(self) -> None:
        """Collective over the cell: every rank makes as many, in the same order."""
        self._size, self._rank = dist.get_world_size(), dist.get_rank()
        self._sent: list[tuple[Tensor, Any]] = []
        self._group = None
        if self._size > 1:
            self._group = cell_group()

    @property
    def leads(self) -> bool:
        return self._rank == 0

    def tell(self, header: Header) -> None:
        """To all other ranks, by the leader."""
        for rank in range(1, self._size):
            message = torch.tensor(astuple(header))
            work = lost_when_it_fails(lambda: dist.isend(message, rank, group=self._group))  # noqa: B023
            self._sent.append((message, work))

    def hear(self) -> Header:
        """The leader's next, which comes when the executions that it is made of are done."""
        message = torch.empty(len(astuple(Header(kind=Kind.UNIT))), dtype=torch.int64)
        lost_when_it_fails(lambda: dist.recv(message, 0, group=self._group))
        kind, index, unit, num_tokens = message.tolist()
        return Header(kind=Kind(kind), index=index, unit=unit, num_tokens=num_tokens)

    def shared(self, own: Any) -> list[Any]:
        """What every rank gives, by rank; all that was told has arrived then. Collective."""
        if self._size == 1:
            return [own]
        found: list[Any] = [None] * self._size
        lost_when_it_fails(lambda: dist.all_gather_object(found, own, group=self._group))
        for _, work in self._sent:
            lost_when_it_fails(work.wait)
        self._sent.clear()
        return found


def lost_when_it_fails(exchange: Callable[[], _Answer]) -> _Answer:
    """Raises StageLost in the place of what gloo raises when a peer is gone."""
    try:
        return exchange()
    except RuntimeError as error:
        raise StageLost(f"a rank of this cell is gone: {error}".splitlines()[0][:200]) from error
