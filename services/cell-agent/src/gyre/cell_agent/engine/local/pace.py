"""Emulated decode speed: when each running request may have its next token.

Emulation, for comparing cells that share one machine's cores as cells with hardware of their own:
the engine gives every running request `tokens_per_s`, however many run beside it.

Tokens come at ticks 1/rate apart, the same for all requests, so that one decode serves all that are
due. A request's first token comes with its prefill at time s; token k (k >= 1) comes at the first
tick that is not before s + k/rate, and never earlier. What a slow machine falls behind is made up
for; what a pause costs is not.

Worked example, 10 tokens/s, ticks at 0.0, 0.1, ...: a prefill at 0.23 gives token 0, its tokens 1
and 2 come at 0.4 and 0.5. Paused from 0.45 to 0.91, token 2 comes at 1.0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from gyre.cell_agent.engine.local.request import Request


class Pace:
    """Owned by the model thread; mutates each request's `due_tick`. Times in seconds."""

    def __init__(self, tokens_per_s: float) -> None:
        self._rate = tokens_per_s

    def begin(self, request: Request, now: float) -> None:
        """A prefill has just given it a token."""
        request.due_tick = math.ceil(now * self._rate) + 1

    def hold(self, requests: Iterable[Request], now: float) -> None:
        """These were held until `now`: none of them catches up."""
        earliest = math.ceil(now * self._rate)
        for request in requests:
            request.due_tick = max(request.due_tick, earliest)

    def due(self, requests: Sequence[Request], now: float) -> list[Request]:
        """Those that have their next token now; their following one is due a tick later."""
        found = [request for request in requests if request.due_tick / self._rate <= now]
        for request in found:
            request.due_tick += 1
        return found

    def next_due_s(self, requests: Iterable[Request]) -> float:
        """When the first of them has its next token; infinite for none."""
        first = min((request.due_tick for request in requests), default=math.inf)
        return first / self._rate
