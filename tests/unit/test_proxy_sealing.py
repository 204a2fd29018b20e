"""The seal comes when the log does, and says once that it has to wait."""

from __future__ import annotations

import asyncio

import pytest

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.base import EventLogError, Stream
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.contracts import subjects
from gyre.contracts.events.calls import CallsSealed, CallUndelivered
from gyre.proxy import sealing
from gyre.proxy.history import outlined
from gyre.proxy.recorder import CallLog
from gyre.proxy.sealing import Seal, Sealer

JOB, EXECUTION = "j", "e"


class AwayLog(MemoryEventLog):
    """Refuses the first `away` appends."""

    away = 0

    async def append(
        self, subject: str, data: bytes, *, event_id: str, expected: int | None
    ) -> int:
        if self.away:
            self.away -= 1
            raise EventLogError("the log is away")
        return await super().append(subject, data, event_id=event_id, expected=expected)


async def test_a_seal_waits_for_the_log_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sealing, "RETRY_S", 0.001)
    log = AwayLog()
    journal = Journal(log, SystemClock())
    subject = subjects.calls(JOB, EXECUTION)
    event = CallUndelivered(call="c", execution=EXECUTION, reason="r")
    await journal.append(subject, event, job=JOB, cause=("c",), expected=0)
    log.away = 5
    sealed = asyncio.Event()

    async def close() -> None:
        raise AssertionError("nothing of it is served here")

    async def reread() -> CallLog:
        return CallLog(journal, JOB, EXECUTION, await outlined(journal, JOB, EXECUTION))

    sealer = Sealer(owner_patience_s=0)
    sealer.add(Seal(log=None, close=close, reread=reread, done=sealed.set))
    running = asyncio.create_task(sealer.run())
    async with asyncio.timeout(10):
        await sealed.wait()
    running.cancel()
    await asyncio.wait({running})
    bodies = [fact.body async for fact in journal.read(Stream.CALLS)]
    assert bodies == [event, CallsSealed(execution=EXECUTION, num_calls=0, last_seq=1)]
    assert log.away == 0
    assert "".join(capsys.readouterr()).count("seal_delayed") == 1


async def test_an_execution_is_outlined_as_its_log_is() -> None:
    journal = Journal(MemoryEventLog(), SystemClock())
    assert (await outlined(journal, JOB, EXECUTION)).last_sequence == 0
    log = CallLog(journal, JOB, EXECUTION, await outlined(journal, JOB, EXECUTION))
    await log.append(CallUndelivered(call="c", execution=EXECUTION, reason="r"), "c")
    await log.seal()
    past = await outlined(journal, JOB, EXECUTION)
    assert (past.sealed, past.num_calls, past.last_sequence) == (True, 0, 2)
