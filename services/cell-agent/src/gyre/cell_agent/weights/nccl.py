"""Weights by NCCL, from GPU to GPU: a communicator of two ranks for each pull.

Who may pull, what, and the digests are asked for over `tcp`'s authenticated connection, which says
where the two meet and stays open as long as they exchange: a side whose connection ends is gone,
which NCCL does not see on every link. NCCL asks nobody for a key (docs/security.md).

On a CPU it is gloo instead of NCCL, as in the tests; the scheduler takes no such job. **Never run
on a GPU.**
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from gyre.cell_agent.own_address import address_towards
from gyre.cell_agent.weights.addresses import check_interfaces
from gyre.cell_agent.weights.base import Pulled, Transport
from gyre.cell_agent.weights.errors import CutOff, Damaged, TransportMissing
from gyre.cell_agent.weights.manifest import Verifier
from gyre.cell_agent.weights.memory import Memory, own_memory
from gyre.cell_agent.weights.opening import DIGESTS_TIMEOUT_S, STALL_TIMEOUT_S, Opened, Opening
from gyre.cell_agent.weights.pair import PULLER, SOURCE, Pair, meeting_place, met
from gyre.cell_agent.weights.shelf import Buffer
from gyre.cell_agent.weights.tcp import Answer, TcpWeightSource, until_closed
from gyre.cell_agent.weights.watch import watched

# Waits cost a millisecond or so each, stages memory of the GPU: two of these a pull and side.
PIECE_BYTES = 32 * 1024 * 1024
# Each has stages and a communicator in the source's GPU; the next pullers wait.
PULLS_AT_ONCE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """port, prefix: of the store where the two meet. device: the kind that the source has."""

    port: int
    prefix: str
    piece_bytes: int
    device: str


class NcclWeightSource(TcpWeightSource):
    """device: None is this process's own, as for a sink."""

    transport: ClassVar[Transport] = "nccl"

    def __init__(
        self,
        host: str,
        port: int = 0,
        *,
        key: str,
        allow_public: bool = False,
        device: torch.device | None = None,
        stall_timeout_s: float = STALL_TIMEOUT_S,
    ) -> None:
        check_interfaces(self.transport, allow_public=allow_public)
        self._device, self._stall_s = device or _own_device(), stall_timeout_s
        self._turns = threading.Semaphore(PULLS_AT_ONCE)
        super().__init__(
            host, port, key=key, hand_over=self._hand_over, stall_timeout_s=stall_timeout_s
        )

    def _hand_over(self, buffer: Buffer, connection: socket.socket, answer: Answer) -> None:
        if not self._turns.acquire(timeout=DIGESTS_TIMEOUT_S):
            raise CutOff("others pull")
        try:
            self._serve(buffer, connection, answer)
        finally:
            self._turns.release()

    def _serve(self, buffer: Buffer, connection: socket.socket, answer: Answer) -> None:
        host, piece_bytes = self.address[0], PIECE_BYTES
        with _pair(SOURCE, self._device, self._stall_s) as pair:
            store, prefix = meeting_place(host, self._stall_s)
            place = {"port": store.port, "prefix": prefix, "piece_bytes": piece_bytes}
            answer(place | {"device": self._device.type})

            def send() -> None:
                pair.connect(store, prefix, host)
                pair.send(buffer.view, piece_bytes)

            _watch(connection, pair, send, self._stall_s)
            until_closed(connection)


class NcclWeightSink:
    """key: the job's."""

    transport: ClassVar[Transport] = "nccl"

    def __init__(
        self,
        *,
        key: str,
        allow_public: bool = False,
        device: torch.device | None = None,
        stall_timeout_s: float = STALL_TIMEOUT_S,
    ) -> None:
        check_interfaces(self.transport, allow_public=allow_public)
        self._device, self._stall_s = device or _own_device(), stall_timeout_s
        self._opening = Opening(transport=self.transport, key=key, stall_timeout_s=stall_timeout_s)

    def pull(
        self, host: str, port: int, *, version: int, lineage: int, memory: Memory = own_memory
    ) -> Pulled:
        """Raises WeightTransportError."""
        with self._opening.of(
            host, port, version=version, lineage=lineage, memory=memory
        ) as opened:
            self._receive(opened, host)
            return opened.pulled

    def _receive(self, opened: Opened, host: str) -> None:
        pulled, place = opened.pulled, _place(opened.answer)
        # On unlike devices the two would wait for each other: before they meet, it is said.
        if place.device != self._device.type:
            raise TransportMissing(
                f"weights.transport: nccl: the core trains on {place.device}, this cell on "
                f"{self._device.type}; set tcp or mooncake"
            )
        with (
            _pair(PULLER, self._device, self._stall_s) as pair,
            Verifier(pulled.manifest, pulled.payload) as verifier,
        ):

            def receive() -> None:
                store = met(host, place.port, self._stall_s)
                pair.connect(store, place.prefix, address_towards(host))
                pair.receive(pulled.payload, place.piece_bytes, verifier.arrived)

            _watch(opened.connection, pair, receive, self._stall_s)
            verifier.finish()


def _watch(connection: socket.socket, pair: Pair, work: Callable[[], None], stall_s: float) -> None:
    watched(connection, work, moved=lambda: pair.num_moved, give_up=pair.give_up, stall_s=stall_s)


@contextmanager
def _pair(rank: int, device: torch.device, timeout_s: float) -> Iterator[Pair]:
    """Closed at the end. Raises CutOff for what torch says of a peer."""
    pair = Pair(rank, device, timeout_s=timeout_s)
    try:
        try:
            yield pair
        finally:
            pair.close()
    except RuntimeError as error:
        raise CutOff(f"nccl: {' '.join(str(error).split())[:200]}") from error


def _place(answer: dict[str, Any]) -> _Place:
    try:
        place = answer["place"]
        return _Place(
            port=int(place["port"]),
            prefix=str(place["prefix"]),
            piece_bytes=int(place["piece_bytes"]),
            device=str(place["device"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"the answer says no place to meet: {error!r}") from error


def _own_device() -> torch.device:
    """As `trainer/device.py`: a process sees one GPU at most."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
