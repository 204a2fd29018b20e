"""One request's wait for its call: kept alive meanwhile, and answered when the call is in the log.

What is to be sent is made while the log is asked, so that the answer goes out at its word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

from gyre.adapters.clock import Clock
from gyre.proxy.apis.base import Exchange, Opened
from gyre.proxy.faults import later
from gyre.proxy.live import OpenCall, Waiter
from gyre.proxy.requests import Answer
from gyre.proxy.sending import Stream, made_of, respond


class Answering:
    """deadline: on the event loop's clock. answer: of the call, once its turn is sampled."""

    def __init__(
        self,
        exchange: Exchange,
        call: OpenCall,
        waiter: Waiter,
        stream: Stream,
        *,
        clock: Clock,
        keepalive_s: float,
        deadline: float,
    ) -> None:
        self._exchange = exchange
        self._call = call
        self._waiter = waiter
        self._stream = stream
        self._created = int(clock.now())
        # Who waits for an answer in one piece cannot be told anything before it.
        self._pause_s = keepalive_s if exchange.request.stream else float("inf")
        self._deadline = deadline

    async def run(self, answer: Callable[[], Answer]) -> web.StreamResponse:
        """Raises Fault, ConnectionError when the client is gone."""
        call = self._call
        await self._wait_for(lambda: call.whole is not None)
        made = None if call.whole is None else made_of(self._exchange, self._stream, answer())
        await self._wait_for(lambda: call.is_recorded)
        if made is None or not call.is_recorded:
            raise call.task.exception() or AssertionError("a call ends with its turn, or a fault")
        if made.num_writes != self._stream.num_writes:  # kept alive since: events are numbered
            made = made_of(self._exchange, self._stream, answer())
        return await respond(self._stream, made)

    async def _wait_for(self, is_so: Callable[[], bool]) -> None:
        """Returns when it is so, or the call has ended without."""
        loop = asyncio.get_running_loop()
        while not is_so() and not self._call.task.done():
            until = min(self._deadline, loop.time() + self._pause_s)
            is_told = await self._waiter.news.wait_until(until)
            if is_told or self._waiter.displaced or self._call.task.done():
                pass
            elif loop.time() >= self._deadline or not self._exchange.request.stream:
                raise later("the turn is not whole yet: ask again", "call_continues")
            else:
                await self._stream.write(self._sign_of_life())
            if self._waiter.displaced:
                raise later("a retry of this request has taken its place", "displaced")

    def _sign_of_life(self) -> bytes:
        opened = Opened(
            call=self._call.id,
            created=self._created,
            num_input_tokens=self._call.plan.num_input_tokens,
        )
        exchange = self._exchange
        return exchange.idle(opened) if self._stream.is_open else exchange.opening(opened)
