"""Appends an execution's call events, one writer an execution, each with the expected sequence."""

from __future__ import annotations

import asyncio
import secrets

from gyre.adapters.eventlog.base import EventLogError, EventTooLarge, SequenceConflict
from gyre.adapters.journal import Journal
from gyre.contracts import subjects
from gyre.contracts.events.calls import (
    CallRecorded,
    CallRerouted,
    CallsSealed,
    CallUndelivered,
    Moved,
)
from gyre.proxy.history import Past

CallEvent = CallRecorded | CallRerouted | CallUndelivered | CallsSealed


class CallLog:
    """`calls.<job>.exec.<E>` as its writer sees it. Mutated by `append` alone.

    last_sequence: stream sequence of the subject's last event, 0 for none. num_calls: its
    call_recorded events. lost: what the log holds is no longer known here, because another process
    wrote to it or an append has an unknown outcome: nothing more is appended, the execution has to
    be read again. unused: for the seal, set before it.
    """

    def __init__(self, journal: Journal, job: str, execution: str, past: Past) -> None:
        self.job = job
        self.execution = execution
        self.last_sequence = past.last_sequence
        self.num_calls = past.num_calls
        self.sealed = past.sealed
        self.lost = False
        self.unused: tuple[Moved, ...] = ()
        self._subject = subjects.calls(job, execution)
        # Two processes may give a call the same name; the log must not take the second for a
        # repeat of the first, so the events of each have ids of their own.
        self._writer = secrets.token_hex(8)
        self._journal = journal
        self._turn = asyncio.Lock()

    async def append(self, event: CallEvent, *cause: str | int) -> None:
        """Returns once the log has acknowledged it; the log itself is patient while it is away.

        Raises SequenceConflict when somebody else wrote or the subject is sealed, EventTooLarge,
        EventLogError when the log stayed away.
        """
        async with self._turn:
            if self.sealed or self.lost:
                raise SequenceConflict(
                    subject=self._subject, expected=self.last_sequence, actual=self.last_sequence
                )
            try:
                self.last_sequence = await self._journal.append(
                    self._subject,
                    event,
                    job=self.job,
                    cause=(*cause, self._writer),
                    expected=self.last_sequence,
                )
            except EventTooLarge:
                raise
            except (EventLogError, asyncio.CancelledError):
                self.lost = True
                raise
            self.num_calls += isinstance(event, CallRecorded)
            self.sealed = isinstance(event, CallsSealed)

    async def is_current(self) -> bool:
        """Whether nobody else has written; if somebody has, it is `lost`. Raises EventLogError."""
        async with self._turn:
            if not self.lost:
                actual = await self._journal.last_sequence(self._subject)
                self.lost = actual != self.last_sequence
            return not self.lost

    async def seal(self) -> None:
        """Appends calls_sealed: nothing of this execution follows."""
        if not self.sealed:
            event = CallsSealed(
                execution=self.execution,
                num_calls=self.num_calls,
                last_seq=self.last_sequence,
                unused=self.unused,
            )
            await self.append(event, self.execution)
