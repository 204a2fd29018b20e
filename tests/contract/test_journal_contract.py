"""The journal over memory and over JetStream on a real nats-server: a body too large for one event
lies in the blob store, and no reader sees a difference."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from gyre.adapters.archive import Hider, read_archive, write_archive
from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.base import (
    MAX_EVENT_BYTES,
    EventLog,
    EventTooLarge,
    SequenceConflict,
    Stream,
)
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.eventlog.streams import ensure_streams
from gyre.adapters.journal import (
    MAX_BODY_BYTES,
    BodyLost,
    BodyUnread,
    BodyUnstored,
    EventDamaged,
    EventLost,
    Journal,
)
from gyre.contracts.codec import NewerEvent, encode
from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallRecorded, CallUndelivered, Segment, Span
from gyre.testkit.nats_server import NatsServer

SUBJECT = "calls.j.exec.e"
Scenario = Callable[[EventLog, DirectoryBlobStore], Awaitable[None]]
Run = Callable[[Scenario], None]
LIMIT_S = 30


@pytest.fixture(params=["memory", "jetstream"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    """Runs a scenario against a fresh log and blob store."""
    server = NatsServer(tmp_path / "nats").start() if request.param == "jetstream" else None

    async def on_fresh_log(scenario: Scenario) -> None:
        log: EventLog = MemoryEventLog()
        if server is not None:
            await ensure_streams(server.url)
            log = JetStreamEventLog(server.url)
        async with asyncio.timeout(LIMIT_S):
            await scenario(log, DirectoryBlobStore(tmp_path / "blobs"))
        await log.close()

    yield lambda scenario: asyncio.run(on_fresh_log(scenario))
    if server is not None:
        server.stop()


def large_call(name: str = "c0", num_prompt: int = 400_000, num_sampled: int = 50_000) -> Body:
    """A call of about 3 MB as JSON, with the odd float among its logprobs."""
    rng = random.Random(name)
    logprobs = [-rng.random() * 9 for _ in range(num_sampled)]
    logprobs[0] = float("-inf")
    return CallRecorded(
        call=name,
        execution="e",
        attempt=1,
        request_role="main",
        parent=None,
        segments=(
            Segment(
                node="a" * 32,
                parent=None,
                role="user",
                token_ids=tuple(rng.randrange(100_000) for _ in range(num_prompt)),
            ),
        ),
        node="b" * 32,
        output_ids=tuple(rng.randrange(100_000) for _ in range(num_sampled)),
        output_logprobs=tuple(logprobs),
        spans=(Span(start=0, end=num_sampled, version=3, lineage=1, cell=0),),
        num_input_tokens=num_prompt,
        num_cached_tokens=0,
        temperature=1.0,
        max_new_tokens=num_sampled,
        finish_reason="stop",
        outcome="committed",
        duration_s=1.5,
    )


def small(reason: str) -> Body:
    return CallUndelivered(call="c0", execution="e", reason=reason)


async def append(journal: Journal, body: Body, expected: int | None, *cause: str) -> int:
    return await journal.append(SUBJECT, body, job="j", cause=cause or ("x",), expected=expected)


async def bodies(journal: Journal) -> list[Body]:
    return [fact.body async for fact in journal.read(Stream.CALLS)]


def stored(blobs: DirectoryBlobStore) -> list[Path]:
    return sorted(path for path in blobs.root.rglob("*") if path.is_file())


def test_a_call_of_3_mb_comes_back_whole_whoever_reads_it(run: Run, tmp_path: Path) -> None:
    async def scenario(log: EventLog, blobs: DirectoryBlobStore) -> None:
        journal = Journal(log, SystemClock(), blobs)
        event = large_call()
        assert len(event.model_dump_json()) > 3_000_000
        followed = asyncio.create_task(take(journal, 3))
        first = await append(journal, small("before"), 0, "1")
        second = await append(journal, event, first, "2")
        third = await append(journal, small("after"), second, "3")
        expected = [small("before"), event, small("after")]
        assert await bodies(journal) == await followed == expected
        [raw] = [r async for r in log.read(Stream.CALLS, after=first, until=second)]
        assert len(raw.data) < 600  # the head alone went through NATS
        [blob] = stored(blobs)
        assert blobs.get(blob.name) == event.model_dump_json().encode()
        assert await journal.last_sequence(SUBJECT) == third
        await in_an_archive(journal, expected, tmp_path / "run.gz")

    async def in_an_archive(journal: Journal, expected: list[Body], path: Path) -> None:
        await write_archive(
            path,
            job="j",
            release="1",
            facts=journal.read(Stream.FACTS),
            calls=journal.read(Stream.CALLS),
            hider=Hider(),
        )
        assert [fact.body for _, fact in read_archive(path)] == expected

    run(scenario)


async def take(journal: Journal, count: int) -> list[Body]:
    found: list[Body] = []
    async for fact in journal.follow(Stream.CALLS):
        found.append(fact.body)
        if len(found) == count:
            break
    return found


def test_a_body_goes_to_the_blob_store_from_the_first_byte_over_the_limit(run: Run) -> None:
    async def scenario(log: EventLog, blobs: DirectoryBlobStore) -> None:
        journal = Journal(log, SystemClock(), blobs)
        await append(journal, small(""), 0, "probe")
        [fact] = [fact async for fact in journal.read(Stream.CALLS)]
        # A clock's digits vary in number; the rest of the envelope does not.
        room = MAX_EVENT_BYTES - len(encode(fact.envelope))
        await append(journal, small("x" * (room - 16)), None, "fits")
        assert stored(blobs) == []
        await append(journal, small("x" * (room + 16)), None, "over")
        assert len(stored(blobs)) == 1
        sizes = [len(body.reason) for body in await bodies(journal)]  # type: ignore[attr-defined]
        assert sizes == [0, room - 16, room + 16]

    run(scenario)


def test_expected_sequence_and_ids_guard_a_large_body_as_a_small_one(run: Run) -> None:
    async def scenario(log: EventLog, blobs: DirectoryBlobStore) -> None:
        journal = Journal(log, SystemClock(), blobs)
        event = large_call()
        first = await append(journal, event, 0)
        assert await append(journal, event, 0) == first  # a repeat, at another time
        with pytest.raises(SequenceConflict):
            await append(journal, large_call("c1"), 0, "other")
        assert await bodies(journal) == [event]
        assert len(stored(blobs)) == 2  # that of the loser is named by nothing

    run(scenario)


def test_a_missing_or_damaged_body_is_named_with_its_event(run: Run) -> None:
    async def scenario(log: EventLog, blobs: DirectoryBlobStore) -> None:
        journal = Journal(log, SystemClock(), blobs)
        sequence = await append(journal, large_call(), 0)
        [raw] = [recorded async for recorded in log.read(Stream.CALLS)]
        [blob] = stored(blobs)
        named = f"event {sequence} on {SUBJECT}, call_recorded {raw.event_id}: .*{blob.name}"
        with pytest.raises(BodyLost, match=f"{named}.*without a blob store"):
            await bodies(Journal(log, SystemClock()))
        blob.chmod(0o644)
        blob.write_bytes(blob.read_bytes()[:-1] + b"]")
        with pytest.raises(BodyLost, match=f"{named}.* bytes with digest"):
            await bodies(journal)
        blob.unlink()
        with pytest.raises(BodyLost, match=f"{named}.*no blob"):
            await take(journal, 1)

    run(scenario)


def test_who_can_do_without_a_lost_body_is_told_and_reads_on(run: Run) -> None:
    async def scenario(log: EventLog, blobs: DirectoryBlobStore) -> None:
        journal = Journal(log, SystemClock(), blobs)
        sequence = await append(journal, large_call(), 0)
        await append(journal, small("after"), sequence)
        [blob] = stored(blobs)
        blob.unlink()
        told: list[EventLost] = []
        facts = [fact.body async for fact in journal.read(Stream.CALLS, lost=told.append)]
        assert facts == [small("after")]
        found = [(e.subject, e.digest) for e in told if isinstance(e, BodyLost)]
        assert found == [(SUBJECT, blob.name)]

    run(scenario)


@pytest.mark.parametrize("data", [b"no JSON", b'{"id": 7}', b""])
def test_bytes_that_are_no_event_are_lost_and_every_other_is_read(run: Run, data: bytes) -> None:
    async def scenario(log: EventLog, blobs: DirectoryBlobStore) -> None:
        journal = Journal(log, SystemClock(), blobs)
        sequence = await log.append(SUBJECT, data, event_id="garbage", expected=0)
        await append(journal, small("after"), sequence)
        with pytest.raises(EventDamaged, match=f"event {sequence} on {SUBJECT}: "):
            await bodies(journal)
        told: list[EventLost] = []
        facts = [fact.body async for fact in journal.read(Stream.CALLS, lost=told.append)]
        assert facts == [small("after")]
        assert [(type(error), error.subject) for error in told] == [(EventDamaged, SUBJECT)]
        outlines = [one.type async for one in journal.outlines(Stream.CALLS)]
        assert outlines == ["", "call_undelivered"]

    run(scenario)


@pytest.mark.parametrize("change", [{"type": "not_invented_yet"}, {"version": 99}])
async def test_an_event_of_a_later_release_is_not_passed_over(change: dict[str, object]) -> None:
    """Whoever goes on without it would take what this release does not understand for nothing."""
    log = MemoryEventLog()
    journal = Journal(log, SystemClock())
    await append(journal, small("now"), 0)
    [fact] = [fact async for fact in journal.read(Stream.CALLS)]
    later = json.dumps(json.loads(encode(fact.envelope)) | change).encode()
    await log.append(SUBJECT, later, event_id="later", expected=None)
    with pytest.raises(NewerEvent, match="this release"):
        [fact async for fact in journal.read(Stream.CALLS, lost=lambda error: None)]


async def test_a_blob_store_that_fails_for_now_has_lost_nothing(tmp_path: Path) -> None:
    log, blobs = MemoryEventLog(), DirectoryBlobStore(tmp_path / "blobs")
    journal = Journal(log, SystemClock(), blobs)
    await append(journal, large_call(), 0)
    [blob] = stored(blobs)
    away = blob.rename(tmp_path / "away")
    blob.mkdir()
    with pytest.raises(BodyUnread, match=blob.name):
        await bodies(journal)
    blob.rmdir()
    away.rename(blob)
    assert await bodies(journal) == [large_call()]


def test_outlines_are_told_without_bodies(run: Run) -> None:
    async def scenario(log: EventLog, blobs: DirectoryBlobStore) -> None:
        journal = Journal(log, SystemClock(), blobs)
        sequence = await append(journal, large_call(), 0)
        await append(journal, small("gone"), sequence)
        [blob] = stored(blobs)
        blob.unlink()
        told = [outline async for outline in journal.outlines(Stream.CALLS, (SUBJECT,))]
        assert [(one.subject, one.type) for one in told] == [
            (SUBJECT, "call_recorded"),
            (SUBJECT, "call_undelivered"),
        ]
        assert [one.sequence for one in told] == [sequence, await log.head(Stream.CALLS)]

    run(scenario)


def test_without_a_blob_store_a_large_body_is_refused_as_ever(run: Run) -> None:
    async def scenario(log: EventLog, blobs: DirectoryBlobStore) -> None:
        with pytest.raises(EventTooLarge, match="use the blob store"):
            await append(Journal(log, SystemClock()), large_call(), 0)
        assert await log.head(Stream.CALLS) == 0

    run(scenario)


async def test_a_body_beyond_every_bound_is_refused_before_it_is_stored(tmp_path: Path) -> None:
    log, blobs = MemoryEventLog(), DirectoryBlobStore(tmp_path / "blobs")
    with pytest.raises(EventTooLarge, match=f"at most {MAX_BODY_BYTES}"):
        await append(Journal(log, SystemClock(), blobs), small("x" * MAX_BODY_BYTES), 0)
    assert not blobs.root.exists()
    assert await log.head(Stream.CALLS) == 0


async def test_nothing_is_appended_when_the_body_cannot_be_stored(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("in the way")
    log, blobs = MemoryEventLog(), DirectoryBlobStore(tmp_path / "blobs")
    with pytest.raises(BodyUnstored, match=f"{SUBJECT}: a body of [0-9]* bytes"):
        await append(Journal(log, SystemClock(), blobs), large_call(), 0)
    assert await log.head(Stream.CALLS) == 0


# Appends a large event and dies where the environment says.
_WRITER = """
import asyncio, sys
from pathlib import Path
from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.journal import Journal
from gyre.contracts.events.calls import CallUndelivered

async def main(url, blobs):
    log = JetStreamEventLog(url)
    journal = Journal(log, SystemClock(), DirectoryBlobStore(Path(blobs)))
    event = CallUndelivered(call="c0", execution="e", reason="x" * 1_000_000)
    await journal.append("calls.j.exec.e", event, job="j", cause=("x",), expected=0)
    await log.close()

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_writer_killed_between_blob_and_event_leaves_a_blob_that_nothing_names(
    tmp_path: Path,
) -> None:
    server = NatsServer(tmp_path / "nats").start()
    blobs = DirectoryBlobStore(tmp_path / "blobs")
    command = [sys.executable, "-c", textwrap.dedent(_WRITER), server.url, str(blobs.root)]
    environment = os.environ | {
        "GYRE_FAILPOINT": "journal.body_stored",
        "GYRE_HOME": str(tmp_path / "home"),
    }

    async def in_the_log() -> list[Body]:
        log = JetStreamEventLog(server.url)
        try:
            return await bodies(Journal(log, SystemClock(), blobs))
        finally:
            await log.close()

    try:
        asyncio.run(ensure_streams(server.url))
        killed = subprocess.run(command, env=environment, timeout=60, check=False)
        assert killed.returncode == -signal.SIGKILL
        [orphan] = stored(blobs)
        assert asyncio.run(in_the_log()) == []
        subprocess.run(command, env=environment, timeout=60, check=True)  # comes back and does it
        assert stored(blobs) == [orphan]
        assert asyncio.run(in_the_log()) == [small("x" * 1_000_000)]
    finally:
        server.stop()
