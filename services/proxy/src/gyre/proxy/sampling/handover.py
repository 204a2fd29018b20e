"""Takes an attempt away from an engine that it must leave.

The engine is asked to end it with what it has, and to pin what it has in its cache. An engine that
does not answer has its connection dropped: what it had streamed is kept.
"""

from __future__ import annotations

import asyncio

from gyre.core.routing import Engine
from gyre.proxy.sampling.migration import PIN_S
from gyre.proxy.sampling.streams import Engines, EngineStream

# How long a source engine has to hand over what it sampled; its stream has it already.
HANDOVER_S = 2.0


class HandOver:
    """Of one attempt. Mutated by `begin` and `end`."""

    def __init__(self, engines: Engines, engine: Engine, rid: str, stream: EngineStream) -> None:
        self._engines = engines
        self._engine = engine
        self._rid = rid
        self._stream = stream
        self._asking: asyncio.Task[bool] | None = None
        self._dropping: asyncio.TimerHandle | None = None

    @property
    def has_begun(self) -> bool:
        return self._asking is not None

    def begin(self) -> None:
        """Asks the engine, once; the stream ends by itself, or is dropped."""
        if self._asking is None:
            loop = asyncio.get_running_loop()
            self._dropping = loop.call_later(HANDOVER_S, self._stream.drop)
            self._asking = asyncio.create_task(
                self._engines.abort(self._engine.url, self._rid, HANDOVER_S, PIN_S)
            )

    async def heard(self) -> None:
        """The stream is over. Returns when the engine has answered, or has had its time: its pin is
        set by then."""
        if self._asking is not None and self._dropping is not None:
            self._dropping.cancel()
            await self._asking

    def end(self) -> None:
        """The attempt is over; nothing of this goes on."""
        if self._asking is not None and self._dropping is not None:
            self._asking.cancel()
            self._dropping.cancel()
