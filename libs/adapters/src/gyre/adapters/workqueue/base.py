"""The work queue's port: tickets that are delivered at least once, until somebody acks them.

A ticket is a hint that there is work, never the proof of who owns it: whoever takes one decides
from the event log whether the work is still to be done (law `training`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from gyre.adapters.eventlog.base import EventLogError, Stream, check_event

# A taker that is silent for this long is taken for dead and its ticket given to another.
ACK_WAIT_S = 30.0


class Verdict(Enum):
    """What a taker says about a ticket."""

    ACK = "done, forget it"
    NAK = "deliver it again"
    EXTEND = "still at it"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem:
    """One delivery of a ticket. `deliveries` counts from 1."""

    subject: str
    data: bytes
    msg_id: str
    sequence: int
    deliveries: int
    settle: Callable[[Verdict, float], Awaitable[bool]]

    async def ack(self) -> bool:
        """Removes the ticket. False when the queue did not confirm: it may be delivered again.

        A server that was killed may have forgotten the delivery; it then delivers anew.
        """
        return await self.settle(Verdict.ACK, 0.0)

    async def nak(self, delay_s: float = 0.0) -> bool:
        """Gives the ticket back, to be delivered again after `delay_s`. As for `ack`."""
        return await self.settle(Verdict.NAK, delay_s)

    async def extend(self) -> bool:
        """Starts the ack wait anew. As for `ack`."""
        return await self.settle(Verdict.EXTEND, 0.0)


class WorkQueue(Protocol):
    """Tickets by subject. Two takers' filters must be equal or disjoint."""

    async def put(self, subject: str, data: bytes, msg_id: str) -> int:
        """Stores a ticket durably, once for each `msg_id`; returns its stream sequence."""
        ...

    async def take(
        self, subject_filter: str, durable: str, batch: int, timeout_s: float
    ) -> list[WorkItem]:
        """Up to `batch` tickets as soon as there is one; [] after `timeout_s` without any.

        `durable` names the consumer that this filter's takers share.
        """
        ...

    async def close(self) -> None:
        """Releases connections; tickets taken and not acked are delivered again."""
        ...


def check_ticket(subject: str, data: bytes, msg_id: str) -> None:
    """Raises EventLogError for what cannot be a ticket."""
    if check_event(subject, data, msg_id) is not Stream.WORK:
        raise EventLogError(f"{subject!r} is no ticket: its subject begins with work.")
