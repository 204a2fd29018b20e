"""Prefixes that wait to be copied to another engine: held in the cache, for a limited time.

Owned by the model thread. A pin is made in the command that aborts its request, so that nothing
can evict the prefix in between. It ends by `release`, at its deadline, and with the cache itself:
nobody has to be alive for it to end.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from torch import Tensor

from gyre.cell_agent.engine.local.errors import GoneError
from gyre.cell_agent.engine.local.prefix_cache import Hold
from gyre.cell_agent.engine.local.request import Request
from gyre.cell_agent.engine.local.runner import ModelRunner


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """The cached prefix `tokens`, computed under `weights`, until `deadline`. rows: where its KV
    lies in the cache's store, as long as it is held."""

    tokens: list[int]
    rows: list[int]
    weights: Hashable
    hold: Hold
    deadline: float


class Pins:
    """By the rid of the aborted request. `clock` as the scheduler's, in seconds."""

    def __init__(self, runner: ModelRunner, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._clock = clock
        self._pins: dict[str, Pin] = {}

    def __len__(self) -> int:
        """Pins that have not expired; safe to ask from another thread."""
        now = self._clock()
        return sum(pin.deadline > now for pin in list(self._pins.values()))

    def add(self, request: Request, deadline: float) -> None:
        """Pin what is cached of an aborted request, if anything is: at most all its tokens but the
        last, which was never fed."""
        self.sweep()
        if not self._runner.kv_allocated:
            return
        namespace = self._runner.namespace(request)
        hold = self._runner.cache.hold(namespace, request.sequence[:-1])
        if hold.num_tokens == 0:
            self._runner.cache.let_go(hold)
            return
        self.release(request.rid)
        tokens = request.sequence[: hold.num_tokens]
        self._pins[request.rid] = Pin(
            tokens=tokens,
            rows=self._runner.cache.match(namespace, tokens),
            weights=self._runner.weights,
            hold=hold,
            deadline=deadline,
        )

    def find(self, rid: str) -> Pin:
        """Raises GoneError: never made, expired, released, flushed, or of earlier weights."""
        self.sweep()
        pin = self._pins.get(rid)
        if pin is None:
            raise GoneError(f"nothing is pinned for {rid!r}")
        if pin.weights != self._runner.weights:
            raise GoneError(f"{rid!r} was pinned under other weights")
        return pin

    def read(self, rid: str, start: int, end: int) -> Tensor:
        """KV of the pinned tokens [start, end), copied: [layers, 2, K, end - start, D].

        Raises GoneError.
        """
        return self._runner.cache.take(self.find(rid).rows[start:end])

    def release(self, rid: str) -> None:
        """The prefix may be evicted. No error when nothing is pinned."""
        pin = self._pins.pop(rid, None)
        if pin is not None:
            self._runner.cache.let_go(pin.hold)

    def sweep(self) -> None:
        """Release what has expired."""
        now = self._clock()
        for rid in [rid for rid, pin in self._pins.items() if pin.deadline <= now]:
            self.release(rid)

    def clear(self) -> None:
        """The cache is emptied, and what it held with it."""
        self._pins.clear()
