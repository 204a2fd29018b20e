"""One contract for every event log: memory and JetStream on a real nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from gyre.adapters.eventlog.base import (
    MAX_EVENT_BYTES,
    EventLog,
    EventLogError,
    EventTooLarge,
    GapDetected,
    SequenceConflict,
    Stream,
    matches,
    stream_of,
)
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.eventlog.streams import ensure_streams
from gyre.testkit.log_reading import collect
from gyre.testkit.nats_server import NatsServer

Scenario = Callable[[EventLog], Awaitable[None]]
Run = Callable[[Scenario], None]
LIMIT_S = 30


@pytest.fixture(params=["memory", "jetstream"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    """Runs a scenario against a fresh, empty log."""
    server = NatsServer(tmp_path).start() if request.param == "jetstream" else None

    async def on_fresh_log(scenario: Scenario) -> None:
        log: EventLog = MemoryEventLog()
        if server is not None:
            await ensure_streams(server.url)
            log = JetStreamEventLog(server.url)
        async with asyncio.timeout(LIMIT_S):
            await scenario(log)
        await log.close()

    yield lambda scenario: asyncio.run(on_fresh_log(scenario))
    if server is not None:
        server.stop()


async def fill(log: EventLog, count: int, *, jobs: int = 1) -> list[int]:
    return [
        await log.append(
            f"facts.j{i % jobs}.sched", b"event %d" % i, event_id=f"e{i}", expected=None
        )
        for i in range(count)
    ]


def test_an_appended_event_is_read_back_as_it_was_written(run: Run) -> None:
    async def scenario(log: EventLog) -> None:
        body = bytes(range(256)) + b"\r\nMSG a 1 3\r\n"
        sequence = await log.append("facts.j.sched", body, event_id="cause-1", expected=0)
        [event] = await collect(log.read(Stream.FACTS))
        assert (event.sequence, event.subject, event.event_id, event.data) == (
            sequence,
            "facts.j.sched",
            "cause-1",
            body,
        )
        assert event.time > 0

    run(scenario)


def test_sequences_count_from_one_without_holes_per_stream(run: Run) -> None:
    async def scenario(log: EventLog) -> None:
        assert await log.head(Stream.FACTS) == 0
        assert await fill(log, 5, jobs=2) == [1, 2, 3, 4, 5]
        assert await log.append("calls.j.exec.e", b"", event_id="c", expected=0) == 1
        assert await log.head(Stream.FACTS) == 5
        assert await log.head(Stream.CALLS) == 1
        assert await log.head(Stream.WORK) == 0

    run(scenario)


def test_appends_that_are_begun_in_order_are_stored_in_order(run: Run) -> None:
    """From the very first one, whose connection has to be made while others come."""

    async def scenario(log: EventLog) -> None:
        numbers = iter(range(2000))

        async def write() -> None:
            for number in numbers:
                data = b"%d" % number
                await log.append("facts.j.sched", data, event_id=f"e{number}", expected=None)

        await asyncio.gather(*(write() for _ in range(200)))
        stored = [int(event.data) for event in await collect(log.read(Stream.FACTS))]
        assert stored == list(range(2000))

    run(scenario)


def test_last_sequence_is_the_stream_sequence_of_the_subjects_newest_event(run: Run) -> None:
    async def scenario(log: EventLog) -> None:
        await fill(log, 5, jobs=2)
        assert await log.last_sequence("facts.j0.sched") == 5
        assert await log.last_sequence("facts.j1.sched") == 4
        assert await log.last_sequence("facts.j2.sched") == 0

    run(scenario)


def test_an_append_with_a_stale_expectation_conflicts_and_stores_nothing(run: Run) -> None:
    async def scenario(log: EventLog) -> None:
        first = await log.append("facts.j.sched", b"a", event_id="a", expected=0)
        await fill(log, 3)
        second = await log.append("facts.j.sched", b"b", event_id="b", expected=first)
        for stale in (0, first, second + 7):
            with pytest.raises(SequenceConflict) as conflict:
                await log.append("facts.j.sched", b"c", event_id="c", expected=stale)
            assert conflict.value.subject == "facts.j.sched"
            assert (conflict.value.expected, conflict.value.actual) == (stale, second)
        assert await log.head(Stream.FACTS) == second
        assert await log.append("facts.j.sched", b"c", event_id="c", expected=second) == second + 1

    run(scenario)


def test_of_two_racing_writers_exactly_one_wins(run: Run) -> None:
    async def scenario(log: EventLog) -> None:
        for turn in range(20):
            expected = await log.last_sequence("facts.j.sched")
            outcomes = await asyncio.gather(
                *(
                    log.append("facts.j.sched", b"x", event_id=f"{turn}-{w}", expected=expected)
                    for w in range(2)
                ),
                return_exceptions=True,
            )
            assert [type(outcome) for outcome in outcomes].count(int) == 1
            assert [type(outcome) for outcome in outcomes].count(SequenceConflict) == 1

    run(scenario)


def test_a_repeated_event_id_returns_the_first_sequence(run: Run) -> None:
    async def scenario(log: EventLog) -> None:
        first = await log.append("facts.j.sched", b"a", event_id="a", expected=0)
        for expected in (None, 0, first):
            assert first == await log.append("facts.j.sched", b"a", event_id="a", expected=expected)
        assert await log.head(Stream.FACTS) == first

    run(scenario)


def test_a_repeat_is_found_although_others_appended_since(run: Run) -> None:
    async def scenario(log: EventLog) -> None:
        first = await log.append("facts.j.sched", b"a", event_id="a", expected=0)
        second = await log.append("facts.j.sched", b"b", event_id="b", expected=first)
        assert await log.append("facts.j.sched", b"a", event_id="a", expected=0) == first
        assert await log.append("facts.j.sched", b"b", event_id="b", expected=first) == second
        assert await log.append("facts.j.sched", b"a", event_id="a", expected=second) == first

    run(scenario)


def test_replay_starts_after_any_sequence_and_ends_at_until(run: Run) -> None:
    async def scenario(log: EventLog) -> None:
        await fill(log, 10)
        for after in range(12):
            read = await collect(log.read(Stream.FACTS, after=after))
            assert [event.sequence for event in read] == list(range(after + 1, 11))
        read = await collect(log.read(Stream.FACTS, after=3, until=7))
        assert [event.sequence for event in read] == [4, 5, 6, 7]
        assert await collect(log.read(Stream.FACTS, after=7, until=7)) == []
        assert len(await collect(log.read(Stream.FACTS, until=99))) == 10

    run(scenario)


def test_reading_an_empty_stream_or_an_unmatched_filter_ends_at_once(run: Run) -> None:
    async def scenario(log: EventLog) -> None:
        assert await collect(log.read(Stream.CALLS)) == []
        await fill(log, 3)
        assert await collect(log.read(Stream.FACTS, subjects=["facts.none.>"])) == []

    run(scenario)


def test_filters_select_subjects_and_keep_the_order(run: Run) -> None:
    async def scenario(log: EventLog) -> None:
        subjects = [
            "facts.a.sched",
            "facts.a.exec.e1.run",
            "facts.b.exec.e1.run",
            "facts.a.exec.e1.score",
            "facts.a.exec.e2.run",
        ]
        for i, subject in enumerate(subjects):
            await log.append(subject, b"", event_id=f"{i}", expected=0)

        async def sequences(*patterns: str, after: int = 0) -> list[int]:
            read = log.read(Stream.FACTS, subjects=patterns, after=after)
            return [event.sequence for event in await collect(read)]

        assert await sequences("facts.a.>") == [1, 2, 4, 5]
        assert await sequences("facts.*.exec.*.run") == [2, 3, 5]
        assert await sequences("facts.a.sched", "facts.*.exec.e1.score") == [1, 4]
        assert await sequences("facts.a.>", after=2) == [4, 5]
        assert await sequences("facts.a.sched", after=1) == []

    run(scenario)


def test_follow_replays_then_goes_on_live(run: Run) -> None:
    async def scenario(log: EventLog) -> None:
        await fill(log, 3)
        following = asyncio.create_task(collect(log.follow(Stream.FACTS, after=1), 6))
        for i in range(3, 7):
            await asyncio.sleep(0.02)
            await log.append("facts.j0.sched", b"event %d" % i, event_id=f"e{i}", expected=None)
        assert [event.sequence for event in await following] == [2, 3, 4, 5, 6, 7]

    run(scenario)


def test_follow_with_a_filter_waits_for_what_matches(run: Run) -> None:
    async def scenario(log: EventLog) -> None:
        await fill(log, 4, jobs=2)
        following = asyncio.create_task(
            collect(log.follow(Stream.FACTS, subjects=["facts.j1.>"], after=2), 2)
        )
        await asyncio.sleep(0.05)
        await log.append("facts.j0.sched", b"", event_id="other", expected=None)
        await log.append("facts.j1.sched", b"", event_id="mine", expected=None)
        assert [(e.sequence, e.event_id) for e in await following] == [(4, "e3"), (6, "mine")]

    run(scenario)


def test_many_followers_see_the_same_order(run: Run) -> None:
    async def scenario(log: EventLog) -> None:
        followers = [asyncio.create_task(collect(log.follow(Stream.FACTS), 200)) for _ in range(3)]
        await asyncio.gather(
            *(
                log.append(f"facts.j{i % 7}.sched", b"", event_id=f"{i}", expected=None)
                for i in range(200)
            )
        )
        seen = [[event.event_id for event in await follower] for follower in followers]
        assert seen[0] == seen[1] == seen[2]
        assert sorted(map(int, seen[0])) == list(range(200))

    run(scenario)


def test_a_follower_past_the_logs_head_is_told_of_the_gap(run: Run) -> None:
    async def scenario(log: EventLog) -> None:
        await fill(log, 2)
        with pytest.raises(GapDetected):
            await collect(log.follow(Stream.FACTS, after=3))

    run(scenario)


def test_a_large_body_travels_and_a_larger_one_is_refused(run: Run) -> None:
    async def scenario(log: EventLog) -> None:
        body = b"x" * MAX_EVENT_BYTES
        await log.append("facts.j.sched", body, event_id="large", expected=0)
        with pytest.raises(EventTooLarge):
            await log.append("facts.j.sched", body + b"x", event_id="larger", expected=None)
        assert [event.data for event in await collect(log.read(Stream.FACTS))] == [body]

    run(scenario)


@pytest.mark.parametrize(
    ("subject", "event_id"),
    [
        ("events.j.sched", "e"),
        ("facts.", "e"),
        ("facts.j..sched", "e"),
        ("facts.*.sched", "e"),
        ("facts.>", "e"),
        ("facts.a b", "e"),
        ("facts.j\r\nPUB x", "e"),
        ("facts.j.sched", ""),
        ("facts.j.sched", "a\r\nNats-Rollup: all"),
    ],
)
def test_what_cannot_be_a_subject_or_an_id_is_refused(
    run: Run, subject: str, event_id: str
) -> None:
    async def scenario(log: EventLog) -> None:
        with pytest.raises(EventLogError):
            await log.append(subject, b"", event_id=event_id, expected=None)

    run(scenario)


def test_the_work_queue_cannot_be_replayed(run: Run) -> None:
    async def scenario(log: EventLog) -> None:
        with pytest.raises(EventLogError):
            await collect(log.read(Stream.WORK))

    run(scenario)


def test_subjects_belong_to_streams_by_their_first_part() -> None:
    assert [stream_of(f"{s.prefix}j") for s in Stream] == list(Stream)
    assert [stream.prefix for stream in Stream] == ["facts.", "calls.", "work."]


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("facts.>", "facts.a", True),
        ("facts.>", "facts", False),
        ("facts.*", "facts.a.b", False),
        ("facts.*.run", "facts.a.run", True),
        ("facts.a.run", "facts.a", False),
        ("facts.a", "facts.a.run", False),
    ],
)
def test_wildcards_match_as_nats_does(pattern: str, subject: str, expected: bool) -> None:
    assert matches(pattern, subject) is expected
