"""A group of processes in which rank 0 broadcasts weights to engines.

It meets as SGLang's own groups do: through a store that rank 0 hosts, under the group's name, so
that SGLang and `local` may be in one group with whoever sends. Gloo, which needs no GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from gyre.cell_agent.process_groups import Backend, gloo

BACKEND = "gloo"

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
"""By the names that an update has for them."""


class UpdateGroupError(Exception):
    """The others did not come, or one of them is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """host, port: of rank 0's store. own_host: this member's address, towards the others."""

    host: str
    own_host: str
    port: int
    rank: int
    size: int
    name: str


class UpdateGroup:
    """One member. Every call but `close` blocks until the others do the same."""

    def __init__(self, place: Place, *, timeout_s: float) -> None:
        """Meet the others. Raises UpdateGroupError."""
        timeout = timedelta(seconds=timeout_s)
        try:
            # Kept as long as the group: rank 0 hosts it.
            self._store = TCPStore(
                place.host, place.port, place.size, place.rank == 0, timeout, wait_for_workers=False
            )
            # Nested as torch and SGLang do for the one backend of a group by this name.
            nested = PrefixStore(f"{place.name}/", PrefixStore(place.name, self._store))
            members = PrefixStore("cpu/", nested)
            self._group: Backend = gloo(members, place.rank, place.size, place.own_host, timeout)
        except RuntimeError as error:
            raise UpdateGroupError(f"{place.name}: {error}") from error

    def send(self, tensors: Iterable[Tensor]) -> None:
        """Rank 0: each in turn, in the order that the update names. Raises UpdateGroupError."""
        for tensor in tensors:
            self._broadcast(tensor.detach().contiguous())

    def receive(self, dtypes: Sequence[str], shapes: Sequence[Sequence[int]]) -> list[Tensor]:
        """The others: what rank 0 sends. Raises UpdateGroupError."""
        tensors = [
            torch.empty(tuple(shape), dtype=DTYPES[dtype])
            for dtype, shape in zip(dtypes, shapes, strict=True)
        ]
        for tensor in tensors:
            self._broadcast(tensor)
        return tensors

    def close(self) -> None:
        """Leave; the others see this member as gone."""
        self._group = None

    def _broadcast(self, tensor: Tensor) -> None:
        if self._group is None:
            raise UpdateGroupError("this member has left")
        options = dist.BroadcastOptions()
        options.rootRank = 0
        try:
            self._group.broadcast([tensor], options).wait()
        except RuntimeError as error:
            raise UpdateGroupError(f"a broadcast failed: {error}") from error
