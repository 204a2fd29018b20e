"""What only a server can do to an event log: die, freeze, drop, refuse. All on a real one."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gyre.adapters.eventlog import consumer
from gyre.adapters.eventlog.base import EventLogError, GapDetected, Recorded, Stream
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.eventlog.jetstream_reader import JetStreamReader
from gyre.adapters.eventlog.link import ApiError, Link
from gyre.adapters.eventlog.streams import ensure_streams, stream_config
from gyre.adapters.eventlog.wire import AccessDenied, endpoints
from gyre.testkit.bad_network import Relay
from gyre.testkit.log_reading import collect
from gyre.testkit.nats_server import NatsServer, free_port

LIMIT_S = 60


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path).start()
    yield server
    server.stop()


@asynccontextmanager
async def opened(url: str, **options: float) -> AsyncIterator[JetStreamEventLog]:
    log = JetStreamEventLog(url, **options)  # type: ignore[arg-type]
    async with asyncio.timeout(LIMIT_S):
        yield log
    await log.close()


async def append_many(log: JetStreamEventLog, count: int, *, start: int = 0) -> None:
    for i in range(start, start + count):
        await log.append(f"facts.j{i % 5}.sched", b"%d" % i, event_id=f"e{i}", expected=None)


def test_kill_9_under_load_loses_no_acked_event_and_doubles_none(server: NatsServer) -> None:
    acked: dict[str, int] = {}
    writers, kills = 32, 4

    async def write(log: JetStreamEventLog, writer: int, stop: asyncio.Event) -> None:
        """Guarded appends on a subject of its own: a doubled or lost one would conflict."""
        subject, last, count = f"facts.j{writer}.sched", 0, 0
        while not stop.is_set():
            event_id = f"{writer}-{count}"
            last = await log.append(subject, b"x" * 200, event_id=event_id, expected=last)
            acked[event_id] = last
            count += 1

    async def kill_often(stop: asyncio.Event) -> None:
        for _ in range(kills):
            await asyncio.sleep(0.4)
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(0.1)
            await asyncio.to_thread(server.start)
        await asyncio.sleep(0.4)
        stop.set()

    async def scenario() -> None:
        await ensure_streams(server.url)
        async with opened(server.url) as log:
            stop = asyncio.Event()
            followed: asyncio.Queue[Recorded] = asyncio.Queue()

            async def follow() -> None:
                async for event in log.follow(Stream.FACTS):
                    followed.put_nowait(event)

            follower = asyncio.create_task(follow())
            await asyncio.gather(kill_often(stop), *(write(log, w, stop) for w in range(writers)))
            stored = [event async for event in log.read(Stream.FACTS)]
            seen = [await followed.get() for _ in stored]
            follower.cancel()
        assert {event.event_id: event.sequence for event in stored} == acked
        assert len(stored) == len(acked) > 100
        assert seen == stored
        assert log.reader.stats.interruptions >= kills

    asyncio.run(scenario())


def test_an_append_without_an_answer_is_found_by_its_repeat(server: NatsServer) -> None:
    """The server stored it, the acknowledgement got lost: the guarded repeat must not conflict."""

    async def scenario() -> None:
        await ensure_streams(server.url)
        async with opened(server.url) as first, opened(server.url) as second:
            sequence = await first.append("facts.j.sched", b"a", event_id="a", expected=0)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            assert sequence == await second.append("facts.j.sched", b"a", event_id="a", expected=0)

    asyncio.run(scenario())


def test_a_frozen_server_is_noticed_by_its_silence(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "HEARTBEAT_S", 0.2)
    monkeypatch.setattr(consumer, "SILENCE_S", 0.7)

    async def scenario() -> None:
        await ensure_streams(server.url)
        async with opened(server.url) as log:
            await append_many(log, 3)
            following = asyncio.create_task(collect(log.follow(Stream.FACTS), 6))
            while log.reader.stats.opened == 0:
                await asyncio.sleep(0.01)
            server.signal(signal.SIGSTOP)
            while log.reader.stats.interruptions == 0:
                await asyncio.sleep(0.01)
            server.signal(signal.SIGCONT)
            await append_many(log, 3, start=3)
            assert [event.sequence for event in await following] == [1, 2, 3, 4, 5, 6]

    asyncio.run(scenario())


def test_a_reader_that_waited_long_for_an_event_is_as_patient_as_ever(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer, "HEARTBEAT_S", 0.2)
    patience_s = 1.0

    async def scenario() -> None:
        await ensure_streams(server.url)
        reader = JetStreamReader(server.url, name="t", patience_s=patience_s)
        async with opened(server.url) as log, asyncio.timeout(LIMIT_S):
            following = asyncio.create_task(collect(reader.follow(Stream.FACTS), 1))
            while reader.stats.opened == 0:
                await asyncio.sleep(0.01)
            await asyncio.sleep(2 * patience_s)  # nothing happens
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await append_many(log, 1)
            assert [event.sequence for event in await following] == [1]
            assert reader.stats.interruptions > 0

    asyncio.run(scenario())


def test_a_reader_gives_up_when_there_was_no_sign_of_the_log_for_its_patience(
    server: NatsServer,
) -> None:
    async def scenario() -> None:
        await ensure_streams(server.url)
        reader = JetStreamReader(server.url, name="t", patience_s=0.5)
        async with asyncio.timeout(LIMIT_S):
            following = asyncio.create_task(collect(reader.follow(Stream.FACTS), 1))
            while reader.stats.opened == 0:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(server.kill)
            with pytest.raises(EventLogError, match=r"for 0.5 s"):
                await following

    asyncio.run(scenario())


def test_an_unreachable_server_is_one_clear_error_at_the_deadline() -> None:
    async def scenario() -> None:
        async with opened(f"nats://127.0.0.1:{free_port()}", append_deadline_s=0.3) as log:
            with pytest.raises(EventLogError, match=r"no NATS server at .*given up after 0.3 s"):
                await log.append("facts.j.sched", b"", event_id="e", expected=None)

    asyncio.run(scenario())


def test_a_missing_stream_is_one_clear_error(server: NatsServer) -> None:
    async def scenario() -> None:
        async with opened(server.url, append_deadline_s=0.3) as log:
            with pytest.raises(EventLogError, match=r"nobody answers on facts\.j\.sched"):
                await log.append("facts.j.sched", b"", event_id="e", expected=None)
            with pytest.raises(ApiError, match="stream not found"):
                await log.head(Stream.FACTS)

    asyncio.run(scenario())


def test_ensure_streams_repeats_and_waits_for_the_server(tmp_path: Path) -> None:
    server = NatsServer(tmp_path)

    async def scenario() -> None:
        ensuring = asyncio.create_task(ensure_streams(server.url))
        await asyncio.sleep(0.2)
        await asyncio.to_thread(server.start)
        await ensuring
        async with opened(server.url) as log:
            await append_many(log, 1)
            await ensure_streams(server.url)
            assert await log.head(Stream.FACTS) == 1

    try:
        asyncio.run(scenario())
    finally:
        server.stop()


def test_the_server_refuses_to_delete_a_fact(server: NatsServer) -> None:
    async def scenario() -> None:
        await ensure_streams(server.url)
        async with opened(server.url) as log:
            await append_many(log, 1)
            link = Link(server.url, name="vandal")
            for subject, body in (
                ("$JS.API.STREAM.MSG.DELETE.GYRE_FACTS", {"seq": 1}),
                ("$JS.API.STREAM.PURGE.GYRE_FACTS", {}),
            ):
                with pytest.raises(ApiError):
                    await link.api(subject, body, deadline_s=5)
            await link.close()

    asyncio.run(scenario())


def test_events_missing_from_the_log_are_a_gap_not_a_silence(server: NatsServer) -> None:
    async def scenario() -> None:
        link = Link(server.url, name="vandal")
        config = {**stream_config(Stream.FACTS), "deny_delete": False}
        await link.api("$JS.API.STREAM.CREATE.GYRE_FACTS", config, deadline_s=5)
        async with opened(server.url) as log:
            await append_many(log, 5)
            await link.api("$JS.API.STREAM.MSG.DELETE.GYRE_FACTS", {"seq": 3}, deadline_s=5)
            await link.close()
            with pytest.raises(GapDetected, match="events 3 to 3 are no longer there"):
                await collect(log.read(Stream.FACTS), 5)
            with pytest.raises(GapDetected):
                await collect(log.follow(Stream.FACTS, after=2), 1)
            assert len(await collect(log.follow(Stream.FACTS, after=3), 2)) == 2

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("authorization", "user"),
    [('user: "ann", password: "p@ss/w"', "ann:p%40ss%2Fw"), ('token: "t0k"', "t0k")],
)
def test_credentials_in_the_url_are_used_and_wrong_ones_refused(
    tmp_path: Path, authorization: str, user: str
) -> None:
    server = NatsServer(tmp_path, authorization=authorization).start()

    async def scenario() -> None:
        url = f"nats://{user}@127.0.0.1:{server.port}"
        await ensure_streams(url)
        async with opened(url) as log:
            await append_many(log, 2)
            assert len(await collect(log.read(Stream.FACTS), 2)) == 2
        for wrong in (server.url, f"nats://eve:guess@127.0.0.1:{server.port}"):
            async with opened(wrong) as log:
                with pytest.raises(AccessDenied) as denied:
                    await log.head(Stream.FACTS)
                assert "guess" not in str(denied.value)

    try:
        asyncio.run(scenario())
    finally:
        server.stop()


def test_urls_are_parsed_and_bad_ones_not_repeated() -> None:
    first, second = endpoints("nats://ann:secret@one:4333, two")
    assert (str(first), first.credentials) == ("one:4333", {"user": "ann", "pass": "secret"})
    assert (str(second), second.credentials) == ("two:4222", {})
    for bad in ("http://ann:secret@one", "", "nats://:secret@"):
        with pytest.raises(EventLogError) as error:
            endpoints(bad)
        assert "secret" not in str(error.value)


@pytest.mark.parametrize("mark", [b"\r\n\r\n7\r\n", b"\r\n\r\n19\r\n"], ids=["middle", "last"])
@pytest.mark.parametrize("live", [False, True], ids=["read", "follow"])
def test_a_delivery_lost_on_the_way_is_a_gap_that_the_reader_repairs(
    server: NatsServer, live: bool, mark: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one has no successor to give it away: the heartbeat does."""
    monkeypatch.setattr(consumer, "HEARTBEAT_S", 0.2)

    async def scenario() -> None:
        await ensure_streams(server.url)
        async with opened(server.url) as log:
            await append_many(log, 20)
        relay = Relay(server.port, mark=mark, drops=2)
        async with relay.running() as url, opened(url) as log:
            events = log.follow(Stream.FACTS) if live else log.read(Stream.FACTS)
            seen = [event.sequence for event in await collect(events, 20)]
            assert seen == list(range(1, 21))
            assert log.reader.stats.gaps == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("piece", [1, 3, 17])
def test_frames_cut_anywhere_are_put_together(server: NatsServer, piece: int) -> None:
    async def scenario() -> None:
        await ensure_streams(server.url)
        async with opened(server.url) as log:
            await append_many(log, 30)
            await log.append("facts.j.sched", b"\r\nPING\r\n", event_id="trap", expected=0)
            whole = await collect(log.read(Stream.FACTS), 31)
        async with Relay(server.port, piece=piece).running() as url, opened(url) as log:
            assert await collect(log.read(Stream.FACTS), 31) == whole

    asyncio.run(scenario())


def test_a_slow_reader_is_waited_for_and_loses_nothing(server: NatsServer) -> None:
    async def scenario() -> None:
        await ensure_streams(server.url)
        async with opened(server.url) as log:
            count, body = 12000, b"x" * 2000
            await asyncio.gather(
                *(
                    log.append(f"facts.j{i % 9}.sched", body, event_id=f"{i}", expected=None)
                    for i in range(count)
                )
            )
            seen = []
            async for event in log.read(Stream.FACTS):
                seen.append(event.sequence)
                if len(seen) % 3000 == 0:
                    await asyncio.sleep(0.3)
            assert seen == list(range(1, count + 1))

    asyncio.run(scenario())


def test_a_repeat_after_the_duplicate_window_is_found_on_its_subject(server: NatsServer) -> None:
    """The server has forgotten the message id; the stale expectation still gives it away."""

    async def scenario() -> None:
        link = Link(server.url, name="setup")
        config = {**stream_config(Stream.FACTS), "duplicate_window": 100_000_000}
        await link.api("$JS.API.STREAM.CREATE.GYRE_FACTS", config, deadline_s=5)
        await link.close()
        async with opened(server.url) as log:
            first = await log.append("facts.j.sched", b"a", event_id="a", expected=0)
            second = await log.append("facts.j.sched", b"b", event_id="b", expected=first)
            await asyncio.sleep(0.5)
            assert await log.append("facts.j.sched", b"a", event_id="a", expected=0) == first
            assert await log.append("facts.j.sched", b"b", event_id="b", expected=first) == second
            assert await log.head(Stream.FACTS) == second

    asyncio.run(scenario())
