"""Events of a log, as many as a test wants."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from gyre.adapters.eventlog import Recorded


async def collect(
    events: AsyncGenerator[Recorded, None], count: int | None = None
) -> list[Recorded]:
    """The next `count` events, or all up to the reader's end; closes the reader."""
    found: list[Recorded] = []
    async with aclosing(events):
        async for event in events:
            found.append(event)
            if len(found) == count:
                break
    return found
