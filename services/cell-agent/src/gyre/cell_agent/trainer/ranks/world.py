"""What crosses cells: gradients to the core, parameters back.

Megatron's own process groups end at the cell and live as long as the process (`model/layout.py`).
These come and go with the membership: one world per epoch, with a communicator of its own for each
prefix 2..size of its cells, all built when it is formed. Where cells have several ranks, each
rank's world is that of the same rank of all cells, which hold the same part of the model, under the
store prefix `<job>/<epoch>/<rank in its cell>`.

A peer that dies makes every collective it was in fail at once on the others; one that hangs, after
the world's time-out. Either way the world is unusable afterwards and a new epoch is formed. After
every collective across cells a cell's ranks agree whether it went well: a peer's death reaches one
of them before the others, and none may go on where another has dropped its accumulation.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from gyre.cell_agent.own_address import address_towards
from gyre.cell_agent.process_groups import Backend
from gyre.cell_agent.trainer.buckets import split_buckets
from gyre.cell_agent.trainer.errors import PeerLost, WrongState
from gyre.cell_agent.trainer.model.layout import cell_agrees
from gyre.cell_agent.trainer.ranks.communicators import Communicator, Start, connect

CORE_RANK = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """rank, size: cells. coordinate: this process's rank in its cell. store_host, store_port: where
    `gyre.cell_agent.rendezvous` listens. timeout_s: of forming the world and of each collective in
    it. device: where what is summed and broadcast lies."""

    job: str
    epoch: int
    rank: int
    size: int
    coordinate: int = 0
    store_host: str
    store_port: int
    timeout_s: float
    device: torch.device


class CellWorld:
    """One epoch's communicators. groups[k]: over cells 0..k-1; a cell holds those it belongs to."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        """Returns when all `size` cells are in. Raises PeerLost: one did not come in time."""
        self.epoch, self.rank, self.size = rendezvous.epoch, rendezvous.rank, rendezvous.size
        self._groups: dict[int, Communicator] = {}
        if rendezvous.size == 1:
            return
        with _together():
            try:
                self._connect(rendezvous)
            except (RuntimeError, OSError) as error:
                self.close()
                raise PeerLost(f"epoch {self.epoch} was not formed: {_line(error)}") from error

    def _connect(self, rendezvous: Rendezvous) -> None:
        host, port = rendezvous.store_host, rendezvous.store_port
        timeout = dt.timedelta(seconds=rendezvous.timeout_s)
        store = TCPStore(host, port, is_master=False, timeout=timeout)
        address = address_towards(host)
        # Every rank builds in ascending order, so no two wait for each other crosswise.
        for size in range(max(2, rendezvous.rank + 1), rendezvous.size + 1):
            place = f"{rendezvous.job}/{rendezvous.epoch}/{rendezvous.coordinate}/{size}"
            prefix = PrefixStore(place, store)
            self._groups[size] = connect(
                prefix, rendezvous.rank, size, address, timeout, rendezvous.device
            )

    def close(self) -> None:
        """Drops the connections; peers still in a collective see this rank as lost."""
        for group in self._groups.values():
            group.close()
        self._groups.clear()

    @property
    def communicators(self) -> tuple[Backend, ...]:
        """By ascending size; the same for as long as this world stands."""
        return tuple(backend for group in self._groups.values() for backend in group.backends)

    def prefix(self, members: Sequence[int]) -> PrefixGroup:
        """Raises WrongState: members are not the ranks 0..k-1 with this one among them."""
        size = len(members)
        if list(members) != list(range(size)) or size > self.size or self.rank >= size:
            raise WrongState(
                f"members {list(members)} are no prefix of {self.size} ranks that holds {self.rank}"
            )
        return PrefixGroup(self._groups[size] if size > 1 else None)


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """A collective across cells, on all ranks of this one. Raises PeerLost on all if it did on any:
    they agree afterwards, whatever became of it."""
    failed: PeerLost | None = None
    try:
        yield
    except PeerLost as error:
        failed = error
    if not cell_agrees(failed is None):
        raise failed or PeerLost("another rank of this cell has lost a peer")


class PrefixGroup:
    """Collectives over one prefix. Every method raises PeerLost and is then over for good."""

    def __init__(self, group: Communicator | None) -> None:
        self._group = group

    def sum_(self, buffers: Iterable[Tensor]) -> None:
        """In place, flat contiguous buffers, in buckets. The order of addition is the backend's."""
        self._exchange(lambda backend, bucket: backend.allreduce([bucket]), buffers)

    def gather(self, payload: bytes) -> list[bytes]:
        """The members' payloads, by rank; every member gets all of them. They may differ in size,
        and be empty."""
        if self._group is None:
            return [payload]
        with _together():
            sizes = [int(size) for size in self._gathered(torch.tensor([len(payload)]))]
            # A byte for none at all: torch refuses an empty buffer.
            padded = bytearray(payload.ljust(max(1, *sizes), b"\0"))
            found = self._gathered(torch.frombuffer(padded, dtype=torch.uint8))
        return [bytes(values[:size].numpy()) for values, size in zip(found, sizes, strict=True)]

    def _gathered(self, tensor: Tensor) -> list[Tensor]:
        assert self._group is not None
        host = self._group.host
        found = [torch.empty_like(tensor) for _ in range(host.size())]
        _run(lambda: host.allgather([found], [tensor]).wait())
        return found

    def agrees(self, values: Sequence[int]) -> bool:
        """Whether all members hold these same integers; all members get the same answer."""
        both = torch.tensor([*values, *(-value for value in values)], dtype=torch.int64)
        largest = self._reduced(both, dist.ReduceOp.MAX)
        smallest = [-value for value in largest[len(values) :]]
        return largest[: len(values)] == smallest

    def broadcast_(self, buffers: Iterable[Tensor]) -> None:
        """From the core, in place."""
        options = dist.BroadcastOptions()
        options.rootRank = CORE_RANK
        self._exchange(lambda backend, bucket: backend.broadcast([bucket], options), buffers)

    def _exchange(self, start: Start, buffers: Iterable[Tensor]) -> None:
        group = self._group
        if group is None:
            return
        with _together():
            _run(lambda: group.exchange(start, split_buckets(buffers)))

    def _reduced(self, tensor: Tensor, operation: Any) -> list[float]:
        if self._group is not None:
            host, options = self._group.host, dist.AllreduceOptions()
            options.reduceOp = operation
            with _together():
                _run(lambda: host.allreduce([tensor], options).wait())
        return list(tensor.tolist())


def _run(exchange: Callable[[], object]) -> None:
    try:
        exchange()
    except RuntimeError as error:
        raise PeerLost(_line(error)) from error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
