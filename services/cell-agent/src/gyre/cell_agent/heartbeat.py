"""The agent says that it is alive, on core NATS: nobody keeps it, only its absence matters."""

from __future__ import annotations

import asyncio
import contextlib
import json

from gyre.adapters.eventlog.link import Link
from gyre.adapters.eventlog.wire import Unavailable
from gyre.contracts import subjects

# Often enough that the shortest sensible silence_deadline_s (10 s) spans several, and rare enough
# that a thousand cells cost the scheduler nothing.
HEARTBEAT_S = 2.0


async def beat(url: str, *, cell: int, incarnation: str) -> None:
    """Until cancelled. A connection that is lost is made again; meanwhile the agent is silent."""
    link = Link(url, name=f"cell-agent-{cell}-heartbeat")
    data = json.dumps({"cell": cell, "incarnation": incarnation}).encode()
    try:
        while True:
            with contextlib.suppress(Unavailable):
                (await link.wire()).publish(subjects.heartbeat(cell), data)
            await asyncio.sleep(HEARTBEAT_S)
    finally:
        await link.close()
