"""Prefixes that wait to be copied to another engine: held in the cache, for a limited time.

Owned by the model thread. A running request's pin is made in the command that aborts it, so that
nothing can evict the prefix in between; that of a request that has ended, by its tokens. It ends by
`release`, at its deadline, and with the cache itself: nobody has to be alive for it to end.

A cell on its way to training must not release its memory before the pins of ended requests are
made. So whoever will make them announces them, all in one command: an announced pin counts as one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
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
    """By the rid of the aborted request, or by the name that an announced one was given. `clock` as
    the scheduler's, in seconds.

    switch, num_announced: the role switch that was announced last, and how many of the executions
    that it moves away are accounted for, by a pin to come or because they need none.
    """

    def __init__(self, runner: ModelRunner, clock: Callable[[], float]) -> None:
        self._runner = runner
        self._clock = clock
        self._pins: dict[str, Pin] = {}
        self._to_come: dict[str, float] = {}
        self.switch = 0
        self.num_announced = 0

    def __len__(self) -> int:
        """Pins, made or announced, that have not expired; safe to ask from another thread."""
        now = self._clock()
        made = sum(pin.deadline > now for pin in list(self._pins.values()))
        return made + sum(deadline > now for deadline in list(self._to_come.values()))

    def announce(
        self, switch: int, num_executions: int, rids: Sequence[str], deadline: float
    ) -> None:
        """Pins of `rids` will be made. num_executions: that one proxy accounts for; several add
        up. switch: the log sequence of the decision, so that an older one counts for nothing."""
        if switch < self.switch:
            return
        if switch > self.switch:
            self.switch, self.num_announced = switch, 0
        self._to_come |= dict.fromkeys(rids, deadline)
        self.num_announced += num_executions

    def add(self, request: Request, deadline: float) -> None:
        """Pin what is cached of an aborted request, if anything is: at most all its tokens but the
        last, which was never fed."""
        self.hold(request.rid, self._runner.namespace(request), request.sequence[:-1], deadline)

    def hold(self, rid: str, namespace: Hashable, tokens: Sequence[int], deadline: float) -> int:
        """Pin what is cached of `tokens`, if anything is; how many of them are."""
        self.sweep()
        if not self._runner.kv_allocated:
            return 0
        hold = self._runner.cache.hold(namespace, tokens)
        if hold.num_tokens == 0:
            self._runner.cache.let_go(hold)
            self._to_come.pop(rid, None)
            return 0
        held = list(tokens[: hold.num_tokens])
        pin = Pin(
            tokens=held,
            rows=self._runner.cache.match(namespace, held),
            weights=self._runner.weights,
            hold=hold,
            deadline=deadline,
        )
        self._drop(rid)
        self._pins[rid] = pin
        self._to_come.pop(rid, None)
        return hold.num_tokens

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
        """The prefix may be evicted; what was announced does not come. No error for neither."""
        self._to_come.pop(rid, None)
        self._drop(rid)

    def sweep(self) -> None:
        """Release what has expired."""
        now = self._clock()
        for rid in [rid for rid, pin in self._pins.items() if pin.deadline <= now]:
            self._drop(rid)
        late = [rid for rid, deadline in self._to_come.items() if deadline <= now]
        for rid in late:
            del self._to_come[rid]

    def clear(self) -> None:
        """The cache is emptied, and what it held with it: nothing is announced any more."""
        self._pins.clear()
        self._to_come.clear()
        self.switch = self.num_announced = 0

    def _drop(self, rid: str) -> None:
        pin = self._pins.pop(rid, None)
        if pin is not None:
            self._runner.cache.let_go(pin.hold)
