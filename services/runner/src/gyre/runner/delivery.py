"""Was the harness cut off from the model? Asked once, after it has failed by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from urllib.parse import urlsplit

from gyre.adapters.eventlog import Stream
from gyre.adapters.journal import EventLost, Journal
from gyre.adapters.logging import get_logger
from gyre.contracts import subjects
from gyre.contracts.events.calls import CallRecorded, CallUndelivered

HEALTH_PATH = "/healthz"
# A proxy that is up answers within milliseconds; its listening socket accepts even when it is not.
PROBE_DEADLINE_S = 2.0
SETTLE_PATH = "/attempt/settle"
# An engine has 2 s to hand over what it sampled, and the log acknowledges within milliseconds.
SETTLE_DEADLINE_S = 5.0


async def has_undelivered_call(journal: Journal, *, job: str, execution: str, attempt: int) -> bool:
    """Whether the proxy recorded, so far, a call of this attempt whose answer did not arrive."""
    attempt_of: dict[str, int] = {}
    subject = subjects.calls(job, execution)
    async for fact in journal.read(Stream.CALLS, (subject,), lost=_passed_over):
        match fact.body:
            case CallRecorded():
                attempt_of[fact.body.call] = fact.body.attempt
            case CallUndelivered() if attempt_of.get(fact.body.call) == attempt:
                return True
            case _:
                pass
    return False


def _passed_over(error: EventLost) -> None:
    """The evaluator and the trajectory service leave the execution out for it."""
    get_logger().error("event_lost", error=str(error))


async def proxy_answers(proxy_url: str, deadline_s: float = PROBE_DEADLINE_S) -> bool:
    """Whether the proxy's health check answers 200 within the deadline."""
    return await _status(proxy_url, f"GET {HEALTH_PATH} HTTP/1.0", deadline_s) == b"200"


async def own_proxy_answers(reached: str | None, proxies: Sequence[str]) -> bool:
    """Whether the proxy of an attempt does: the one that its door has led to, without a door, or
    before its use, the first of the execution's `proxies`."""
    own = reached or next(iter(proxies), None)
    return own is not None and await proxy_answers(own)


async def settle(proxy_url: str, key: str, deadline_s: float = SETTLE_DEADLINE_S) -> bool:
    """Tells the proxy that the attempt's harness has ended, so that it holds no answer for a retry
    any more; what it says of them is in the log then. False: the proxy did not do it in time."""
    request = f"POST {SETTLE_PATH} HTTP/1.0\r\nAuthorization: Bearer {key}\r\nContent-Length: 0"
    return await _status(proxy_url, request, deadline_s) == b"204"


async def _status(proxy_url: str, request: str, deadline_s: float) -> bytes:
    """The status that the proxy answers to `request`, a head without its end; empty for none."""
    parts = urlsplit(proxy_url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    request = f"{request}\r\nHost: {host}:{port}\r\n\r\n"
    try:
        async with asyncio.timeout(deadline_s):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(request.encode())
                status = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return b""
    return b"".join(status.split()[1:2])
