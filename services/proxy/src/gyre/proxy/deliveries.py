"""Which call's answer goes to which request: pure, no clock, no I/O.

A call has at most one request that waits for it. When that one is gone, the call is held for a
while (the caller's clock) for a retry, which agents send without saying that it is one. Laws
(`test_proxy_delivery_law`):
- an answer that went out whole is never given to a request that does not call itself a retry;
- a call that somebody waits for is no other's, unless a request says that it is its retry: then the
  earlier one is told that its place is taken;
- what nobody came for in time is given up for good: stopped, or undelivered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

# (attempt, the node that is sampled from, whether tool calls are wanted): equal for equal requests.
Key: TypeAlias = tuple[int, str, bool]


class Waiter(Protocol):
    """A request that waits for an answer."""

    def is_here(self) -> bool:
        """False once its connection is known to be gone."""
        ...


W = TypeVar("W", bound=Waiter)


@dataclass(slots=True)
class _Held(Generic[W]):
    key: Key
    waiter: W | None
    phase: Literal["running", "stopping", "committed"]


@dataclass(slots=True)
class Deliveries(Generic[W]):
    """One execution's calls that are not delivered. Mutated by its methods alone."""

    _held: dict[str, _Held[W]] = field(default_factory=dict)

    def open(self, call: str, key: Key, waiter: W, *, committed: bool = False) -> None:
        """`waiter` waits for a call that is new; committed: whose answer is in the log already."""
        self._held[call] = _Held(key, waiter, "committed" if committed else "running")

    def find(self, key: Key, *, is_retry: bool) -> str | None:
        """The call that an equal request may have, the oldest if several. One that somebody waits
        for only if the request says that it is a retry, and there is no other."""
        waited = None
        for call, held in self._held.items():
            if held.key != key or held.phase == "stopping":
                continue
            if held.waiter is None or not held.waiter.is_here():
                return call
            waited = waited or call
        return waited if is_retry else None

    def attach(self, call: str, waiter: W) -> W | None:
        """`waiter` takes the place at the call. Returns who had it, if anybody."""
        held = self._held[call]
        before, held.waiter = held.waiter, waiter
        return before

    def waiter(self, call: str) -> W | None:
        """Who waits for the call, if anybody."""
        held = self._held.get(call)
        return None if held is None else held.waiter

    def has(self, call: str, waiter: W) -> bool:
        """Whether the place at the call is still the waiter's."""
        return self.waiter(call) is waiter

    def leave(self, call: str, waiter: W, *, delivered: bool) -> bool:
        """`waiter` waits no more. True: the call is held from now on, and nobody waits for it."""
        held = self._held.get(call)
        if held is None or held.waiter is not waiter:
            return False
        held.waiter = None
        if delivered:
            del self._held[call]
        return not delivered

    def committed(self, call: str) -> bool:
        """The answer is in the log. False: it was given up before, so it is undelivered."""
        held = self._held[call]
        if held.phase == "stopping" and held.waiter is None:
            del self._held[call]
            return False
        held.phase = "committed"
        return True

    def failed(self, call: str) -> None:
        """There is no answer."""
        del self._held[call]

    def stopping(self, key: Key) -> list[str]:
        """Equal calls that are given up and not in the log yet: a new one takes their place."""
        return [c for c, held in self._held.items() if held.key == key and held.phase == "stopping"]

    def give_up(self, call: str) -> Literal["stop", "undelivered"] | None:
        """Nobody came for the call: what is to be done. None: somebody waits, or it is over."""
        held = self._held.get(call)
        if held is None or held.waiter is not None or held.phase == "stopping":
            return None
        if held.phase == "committed":
            del self._held[call]
            return "undelivered"
        held.phase = "stopping"
        return "stop"

    def stop(self, call: str) -> None:
        """The call's attempt is over: nobody new may have it, whoever waits is told."""
        held = self._held.get(call)
        if held is not None and held.phase == "running":
            held.phase = "stopping"
