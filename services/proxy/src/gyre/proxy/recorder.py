"""Appends an execution's call events, one writer an execution, each with the expected sequence."""

from __future__ import annotations

import asyncio

from gyre.adapters.eventlog.base import SequenceConflict
from gyre.adapters.journal import Journal
from gyre.contracts import subjects
from gyre.contracts.events.calls import CallRecorded, CallRerouted, CallsSealed, CallUndelivered

CallEvent = CallRecorded | CallRerouted | CallUndelivered | CallsSealed


class CallLog:
    """`calls.<job>.exec.<E>` as its only writer sees it. Mutated by `append` alone.

    last_sequence: stream sequence of the subject's last event, 0 for none. num_calls: its
    call_recorded events.
    """

    def __init__(
        self, journal: Journal, job: str, execution: str, *, last_sequence: int, num_calls: int
    ) -> None:
        self.job = job
        self.execution = execution
        self.last_sequence = last_sequence
        self.num_calls = num_calls
        self.sealed = False
        self._journal = journal
        self._turn = asyncio.Lock()

    async def append(self, event: CallEvent, *cause: str | int) -> None:
        """Returns once the log has acknowledged it; the log itself is patient while it is away.

        Raises SequenceConflict when somebody else wrote or the subject is sealed, EventTooLarge,
        EventLogError when the log stayed away.
        """
        async with self._turn:
            if self.sealed:
                raise SequenceConflict(
                    subject=subjects.calls(self.job, self.execution),
                    expected=self.last_sequence,
                    actual=self.last_sequence,
                )
            self.last_sequence = await self._journal.append(
                subjects.calls(self.job, self.execution),
                event,
                job=self.job,
                cause=cause,
                expected=self.last_sequence,
            )
            self.num_calls += isinstance(event, CallRecorded)
            self.sealed = isinstance(event, CallsSealed)

    async def seal(self) -> None:
        """Appends calls_sealed: nothing of this execution follows."""
        if not self.sealed:
            event = CallsSealed(
                execution=self.execution, num_calls=self.num_calls, last_seq=self.last_sequence
            )
            await self.append(event, self.execution)
