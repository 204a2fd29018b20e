"""The work queue in one process's memory, for tests and simulation."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gyre.adapters.eventlog.base import matches
from gyre.adapters.workqueue.base import ACK_WAIT_S, Verdict, WorkItem, check_ticket


@dataclass(slots=True, kw_only=True)
class _Ticket:
    subject: str
    data: bytes
    msg_id: str
    sequence: int
    deliveries: int = 0
    hidden_until: float = 0.0


class MemoryWorkQueue:
    """Implements WorkQueue. Time is the event loop's."""

    def __init__(self, *, ack_wait_s: float = ACK_WAIT_S) -> None:
        self._ack_wait_s = ack_wait_s
        self._tickets: dict[int, _Ticket] = {}
        self._sequence_by_id: dict[str, int] = {}
        self._changed = asyncio.Condition()

    async def put(self, subject: str, data: bytes, msg_id: str) -> int:
        check_ticket(subject, data, msg_id)
        async with self._changed:
            if msg_id not in self._sequence_by_id:
                sequence = len(self._sequence_by_id) + 1
                self._sequence_by_id[msg_id] = sequence
                self._tickets[sequence] = _Ticket(
                    subject=subject, data=bytes(data), msg_id=msg_id, sequence=sequence
                )
                self._changed.notify_all()
            return self._sequence_by_id[msg_id]

    async def take(
        self, subject_filter: str, durable: str, batch: int, timeout_s: float
    ) -> list[WorkItem]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        async with self._changed:
            while True:
                now = loop.time()
                mine = [t for t in self._tickets.values() if matches(subject_filter, t.subject)]
                visible = [ticket for ticket in mine if ticket.hidden_until <= now]
                if visible or now >= deadline:
                    return [self._deliver(ticket, now) for ticket in visible[:batch]]
                wake = min([deadline, *(ticket.hidden_until for ticket in mine)])
                await self._changed_before(wake - now)

    async def close(self) -> None:
        return None

    async def _changed_before(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return

    def _deliver(self, ticket: _Ticket, now: float) -> WorkItem:
        ticket.deliveries += 1
        ticket.hidden_until = now + self._ack_wait_s

        async def settle(verdict: Verdict, delay_s: float) -> bool:
            async with self._changed:
                now = asyncio.get_running_loop().time()
                match verdict:
                    case Verdict.ACK:
                        self._tickets.pop(ticket.sequence, None)
                    case Verdict.NAK:
                        ticket.hidden_until = now + delay_s
                    case Verdict.EXTEND:
                        ticket.hidden_until = now + self._ack_wait_s
                self._changed.notify_all()
            return True

        return WorkItem(
            subject=ticket.subject,
            data=ticket.data,
            msg_id=ticket.msg_id,
            sequence=ticket.sequence,
            deliveries=ticket.deliveries,
            settle=settle,
        )
