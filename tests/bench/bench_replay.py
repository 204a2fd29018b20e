"""Append and replay rates of the event log on a real nats-server.

    python tests/bench/bench_replay.py    # writes out/bench/replay.json, under a minute

The log holds the facts of whole jobs that the scheduler's decider lived through in virtual time.
Replay is measured raw (bytes out of the server), and through decode and the scheduler's fold, once
trusting the log and once validating every event. Rates are of one busy process; the server and
whatever else runs share the cores, so the CPU time an event costs is given beside them.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from gyre.adapters.collection import no_collection
from gyre.adapters.eventlog.base import EventLog, Stream
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.eventlog.streams import ensure_streams
from gyre.contracts.codec import decode, decode_trusted, encode, make_envelope
from gyre.contracts.envelope import Body, Envelope, event_id
from gyre.core.scheduling import JobState, evolve
from gyre.testkit.benches import write_report
from gyre.testkit.nats_server import NatsServer
from gyre.testkit.scheduling_world import World
from gyre.testkit.specs import job_spec

NUM_EVENTS = 150_000
IN_FLIGHT = 256
NUM_ONE_BY_ONE = 2_000
REPEATS = 3
TARGETS = {"replay_trusted_fold_per_s": 70_000, "replay_validated_fold_per_s": 40_000}


def lived_job() -> list[tuple[float, Body]]:
    """The facts of one job of 40 steps, with heavy-tailed executions."""
    rng = random.Random(0)
    spec = job_spec(heldout=False, num_steps=40)
    world = World(spec=spec, durations=lambda _: rng.lognormvariate(1.0, 0.8))
    world.run()
    return [(now, body) for _, now, body in world.log]


def events(count: int) -> Iterator[tuple[str, str, bytes]]:
    """(subject, id, bytes) of `count` events: the same job lived again and again."""
    facts = lived_job()
    for number in range(count):
        life, place = divmod(number, len(facts))
        now, body = facts[place]
        job, execution = f"j{life}", getattr(body, "execution", None)
        subject = f"facts.{job}.exec.{execution}.run" if execution else f"facts.{job}.sched"
        identity = event_id(job, place)
        envelope = make_envelope(
            body, identity=identity, job=job, aggregate=subject, time=now, causation=identity
        )
        yield subject, identity, encode(envelope)


async def timed(work: Callable[[], Awaitable[int]]) -> tuple[float, float]:
    """(events a second, CPU microseconds an event) of one go."""
    begin, cpu = time.perf_counter(), time.process_time()
    count = await work()
    return count / (time.perf_counter() - begin), (time.process_time() - cpu) / count * 1e6


async def best(work: Callable[[], Awaitable[int]]) -> tuple[float, float]:
    rates = [await timed(work) for _ in range(REPEATS)]
    return max(rate for rate, _ in rates), min(cpu for _, cpu in rates)


async def append_pipelined(log: EventLog, records: list[tuple[str, str, bytes]]) -> int:
    pending = iter(records)

    async def write() -> None:
        for subject, identity, data in pending:
            await log.append(subject, data, event_id=identity, expected=None)

    await asyncio.gather(*(write() for _ in range(IN_FLIGHT)))
    return len(records)


async def append_one_by_one(log: EventLog) -> int:
    last = 0
    for number in range(NUM_ONE_BY_ONE):
        last = await log.append("calls.j.exec.e", b"x" * 300, event_id=f"{number}", expected=last)
    return NUM_ONE_BY_ONE


async def replay_raw(log: EventLog) -> int:
    count = 0
    async for _ in log.read(Stream.FACTS):
        count += 1
    return count


async def replay_fold(log: EventLog, reader: Callable[[bytes], Envelope]) -> int:
    """Decodes and folds every fact into its job's state, as the scheduler does at its start, where
    it holds off the cycle collector."""
    states: dict[str, JobState] = {}
    count = 0
    with no_collection():
        async for recorded in log.read(Stream.FACTS):
            envelope = reader(recorded.data)
            state = states.get(envelope.job)
            if state is None:
                state = states[envelope.job] = JobState(job=envelope.job)
            evolve(state, recorded.sequence, envelope.body)
            count += 1
    return count


async def measure(url: str) -> dict[str, float]:
    await ensure_streams(url)
    log = JetStreamEventLog(url)
    records = list(events(NUM_EVENTS))
    figures: dict[str, float] = {
        "num_events": len(records),
        "mean_event_bytes": sum(len(data) for _, _, data in records) / len(records),
    }
    goes: dict[str, Awaitable[tuple[float, float]]] = {
        "append_pipelined": timed(lambda: append_pipelined(log, records)),
        "append_one_by_one": timed(lambda: append_one_by_one(log)),
        "replay_raw": best(lambda: replay_raw(log)),
        "replay_trusted_fold": best(lambda: replay_fold(log, decode_trusted)),
        "replay_validated_fold": best(lambda: replay_fold(log, decode)),
    }
    for name, go in goes.items():
        figures[f"{name}_per_s"], figures[f"{name}_cpu_us"] = await go
    await log.close()
    return {name: round(value, 1) for name, value in figures.items()}


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        server = NatsServer(Path(directory)).start()
        try:
            figures = asyncio.run(measure(server.url))
        finally:
            server.stop()
    ok = all(figures[name] >= least for name, least in TARGETS.items())
    write_report("replay", figures, TARGETS, ok=ok)


if __name__ == "__main__":
    main()
