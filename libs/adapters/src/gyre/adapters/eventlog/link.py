"""A connection that comes back, and JetStream requests that are sent again until a deadline.

Every request made here must be safe to repeat: an append carries its event id, the rest only
asks or creates by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import orjson

from gyre.adapters.eventlog.base import EventLogError
from gyre.adapters.eventlog.wire import Unavailable, Wire, WireLost, endpoints
from gyre.adapters.logging import get_logger

T = TypeVar("T")

CONNECT_TIMEOUT_S = 3.0
# One attempt; a server that is alive answers in under 1 ms, a new leader is there in 5 s.
REQUEST_TIMEOUT_S = 5.0
FIRST_PAUSE_S, LAST_PAUSE_S = 0.02, 0.5
# JetStream unavailable or leaderless (503), and "this message id is being stored just now".
_BUSY_CODES = frozenset({503})
_BUSY_ERR_CODES = frozenset({10158})


class ApiError(EventLogError):
    """JetStream refused a request; `err_code` is JetStream's own number."""

    def __init__(self, *, code: int, err_code: int, description: str) -> None:
        super().__init__(f"JetStream: {description} ({err_code})")
        self.code = code
        self.err_code = err_code


class Link:
    """Keeps one Wire open, tries the URL's servers in turn."""

    def __init__(self, url: str, *, name: str) -> None:
        self._endpoints = endpoints(url)
        self._name = name
        self._turn = 0
        self._wire: Wire | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    async def wire(self) -> Wire:
        """The open connection, made if need be: one attempt. Raises WireLost, AccessDenied."""
        async with self._opening:
            if self._closed:
                raise EventLogError("this event log was closed")
            if self._wire is None or self._wire.lost is not None:
                endpoint = self._endpoints[self._turn % len(self._endpoints)]
                self._turn += 1
                if self._wire is not None:
                    log = get_logger()
                    log.warning("nats_lost", error=str(self._wire.lost), trying=str(endpoint))
                    self._wire = None
                self._wire = await Wire.open(endpoint, name=self._name, timeout_s=CONNECT_TIMEOUT_S)
            return self._wire

    async def api(
        self, subject: str, body: Any = None, *, headers: bytes = b"", deadline_s: float
    ) -> dict[str, Any]:
        """A request with a JSON answer; `body` is bytes or something to encode.

        Raises ApiError for a refusal, else as `repeat`.
        """
        data = encoded(body)

        async def once(wire: Wire, timeout_s: float) -> dict[str, Any]:
            return await call(wire, subject, data, headers, timeout_s=timeout_s)

        return await self.repeat(once, deadline_s=deadline_s)

    async def repeat(
        self, operation: Callable[[Wire, float], Awaitable[T]], *, deadline_s: float
    ) -> T:
        """Runs `operation(wire, timeout_s)` again after each Unavailable, until the deadline.

        Raises EventLogError at the deadline, AccessDenied.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_s
        pause = FIRST_PAUSE_S
        while True:
            left_s = max(0.01, min(REQUEST_TIMEOUT_S, deadline - loop.time()))
            try:
                return await operation(await self.wire(), left_s)
            except Unavailable as error:
                if loop.time() + pause >= deadline:
                    raise EventLogError(f"{error}, given up after {deadline_s:g} s") from None
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE_S)

    def drop(self) -> None:
        """Closes the present connection; the next use opens another."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    async def close(self) -> None:
        """Closes the connection; requests under way fail."""
        self._closed = True
        if self._wire is not None:
            self._wire.close()
        # One loop turn lets the transport report its loss and leave no warning behind.
        await asyncio.sleep(0)


class Busy(Unavailable):
    """JetStream is up and says: not now."""


async def call(
    wire: Wire,
    subject: str,
    body: Any = None,
    headers: bytes = b"",
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> dict[str, Any]:
    """One request on one wire, its JSON answer. Raises Unavailable, ApiError.

    A time-out closes the wire: it may be half open, and who else waits on it repeats too.
    """
    try:
        reply = await wire.request(subject, encoded(body), headers=headers, timeout_s=timeout_s)
    except TimeoutError:
        wire.close()
        raise WireLost(f"no answer on {subject}") from None
    answer: dict[str, Any] = orjson.loads(reply.data)
    error = answer.get("error")
    if error is None:
        return answer
    code, err_code = error.get("code", 0), error.get("err_code", 0)
    description = error.get("description", "refused")
    if code in _BUSY_CODES or err_code in _BUSY_ERR_CODES:
        raise Busy(f"JetStream: {description} ({err_code})")
    raise ApiError(code=code, err_code=err_code, description=description)


def encoded(body: Any) -> bytes:
    """A request's bytes: as they are, nothing for None, else JSON."""
    return body if isinstance(body, bytes) else b"" if body is None else orjson.dumps(body)
