"""Two ranks that move one payload: the source's and the puller's, over NCCL or, on a CPU, gloo.

    host memory -> a stage on the device -> send -> recv -> a stage -> host memory

Each side has two stages, so that one is copied while the other travels. Copies and exchanges go by
a stream of the pull's own, which the trainer's kernels do not wait for. **Never run on a GPU**: the
tests have gloo in NCCL's place.
"""

from __future__ import annotations

import datetime as dt
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from gyre.cell_agent.process_groups import Backend, gloo, nccl
from gyre.cell_agent.weights.errors import CutOff

SOURCE, PULLER = 0, 1

_TAG = 0
# How often one looks whether the other has come.
_LOOK_S = 0.005


def meeting_place(host: str, timeout_s: float) -> tuple[TCPStore, str]:
    """A store of one pull, on that address alone, and what its keys begin with."""
    family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    listening = socket.create_server((host, 0), family=family)
    port = listening.getsockname()[1]
    store = TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=dt.timedelta(seconds=timeout_s),
        master_listen_fd=listening.detach(),
    )
    return store, secrets.token_hex(16)


def met(host: str, port: int, timeout_s: float) -> TCPStore:
    """The puller's end of that store. Raises RuntimeError."""
    return TCPStore(host, port, is_master=False, timeout=dt.timedelta(seconds=timeout_s))


class Pair:
    """One rank. Its waits end by their time-out, or after `give_up`. num_moved: pieces so far."""

    def __init__(self, rank: int, device: torch.device, *, timeout_s: float) -> None:
        """timeout_s: of connecting and of each piece."""
        self.num_moved = 0
        self._rank, self._device = rank, device
        self._timeout = dt.timedelta(seconds=timeout_s)
        self._closing = threading.Lock()
        self._backend: Backend = None
        self._given_up = threading.Event()

    def connect(self, store: Store, prefix: str, address: str) -> None:
        """address: of this side. Raises RuntimeError, CutOff."""
        own = PrefixStore(prefix, store)
        self._meet(own)
        if self._device.type == "cuda":
            self._backend = nccl(own, self._rank, 2, self._timeout)
        else:
            self._backend = gloo(own, self._rank, 2, address, self._timeout)
        if self._given_up.is_set():
            self.close()

    def send(self, payload: memoryview, piece_bytes: int) -> None:
        """Raises RuntimeError, CutOff."""
        with self._own_stream():
            stages = self._stages(len(payload), piece_bytes)
            sent: list[dist.Work] = []
            for number, start in enumerate(range(0, len(payload), piece_bytes)):
                if number >= len(stages):
                    self._wait(sent.pop(0))
                piece = payload[start : start + piece_bytes]
                stage = stages[number % len(stages)][: len(piece)]
                self.load(stage, piece, start)
                sent.append(self._peer().send([stage], PULLER, _TAG))
            for work in sent:
                self._wait(work)

    def load(self, stage: Tensor, piece: memoryview, start: int) -> None:
        """start: of the piece in the payload. Memory that is not pinned may change again once this
        has returned."""
        stage.copy_(_tensor(piece))

    def receive(
        self, payload: memoryview, piece_bytes: int, arrived: Callable[[int], None]
    ) -> None:
        """arrived: told how many bytes there are. Raises RuntimeError, CutOff, and what that
        does."""
        with self._own_stream():
            stages = self._stages(len(payload), piece_bytes)
            coming: list[tuple[int, Tensor, dist.Work]] = []
            for number, start in enumerate(range(0, len(payload), piece_bytes)):
                if number >= len(stages):
                    arrived(self._land(payload, *coming.pop(0)))
                stage = stages[number % len(stages)][: len(payload) - start]
                coming.append((start, stage, self._peer().recv([stage], SOURCE, _TAG)))
            for one in coming:
                arrived(self._land(payload, *one))

    def give_up(self) -> None:
        """From another thread. While NCCL connects nothing can be aborted. Raises RuntimeError."""
        self._given_up.set()
        self.close()

    def close(self) -> None:
        """What the other side still waits for fails. Raises RuntimeError."""
        with self._closing:
            backend, self._backend = self._backend, None
        if backend is not None and self._device.type == "cuda":
            backend.abort()

    def _meet(self, store: Store) -> None:
        """Returns when the other side is there too, so that no connecting waits for one that does
        not come."""
        store.set(f"here/{self._rank}", "")
        while not store.check([f"here/{1 - self._rank}"]):
            if self._given_up.wait(_LOOK_S):
                raise CutOff("given up")

    def _peer(self) -> Backend:
        backend = self._backend
        if backend is None:
            raise CutOff("given up")
        return backend

    def _land(self, payload: memoryview, start: int, stage: Tensor, work: dist.Work) -> int:
        """Returns where the piece ends."""
        self._wait(work)
        end = start + len(stage)
        _tensor(payload[start:end]).copy_(stage)
        return end

    def _wait(self, work: dist.Work) -> None:
        # With a time-out, NCCL's wait is the host's, and raises what went wrong.
        work.wait(self._timeout)
        self._peer()
        self.num_moved += 1

    def _stages(self, num_bytes: int, piece_bytes: int) -> list[Tensor]:
        """No more than there are pieces."""
        size, count = min(num_bytes, piece_bytes), min(2, -(-num_bytes // piece_bytes))
        return [torch.empty(size, dtype=torch.uint8, device=self._device) for _ in range(count)]

    def _own_stream(self) -> AbstractContextManager[Any]:
        if self._device.type != "cuda":
            return nullcontext()
        return torch.cuda.stream(
            torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        )


def _tensor(memory: memoryview) -> Tensor:
    return torch.frombuffer(memory, dtype=torch.uint8)
