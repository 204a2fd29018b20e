"""A scheduler's restart from its snapshot, and its memory, on a long log of a real nats-server.

    python tests/bench/bench_snapshot.py                               # a minute
    GYRE_BENCH_EVENTS=10000000 python tests/bench/bench_snapshot.py    # the full size, some minutes

Writes out/bench/snapshot.json. The log holds whole jobs of 24,576 executions, lived through in
virtual time, one after another; all of a job's facts lie on one subject, for the server's index of
subjects is not what is measured. One process reads the log to its end as the scheduler does,
takes a snapshot every `SNAPSHOT_EVERY` facts, and writes down its resident memory. The log ends
just before the next snapshot is due, so a restart has the most to read that it can have. It is
measured in a fresh process, several times: from looking for the snapshot to the last fact folded
(`restart_s`), and beside it the whole process with the interpreter's start and all imports.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.base import Stream
from gyre.adapters.eventlog.jetstream import JetStreamEventLog, append_headers
from gyre.adapters.eventlog.link import Link
from gyre.adapters.eventlog.streams import ensure_streams
from gyre.adapters.journal import Journal
from gyre.adapters.snapshots import SnapshotStore
from gyre.contracts import subjects
from gyre.contracts.codec import encode, make_envelope
from gyre.contracts.envelope import event_id
from gyre.scheduler.folded import Folded
from gyre.scheduler.snapshots import SNAPSHOT_EVERY, Snapshots
from gyre.testkit.benches import lived_job, write_report
from gyre.testkit.nats_server import NatsServer

NUM_EVENTS = int(os.environ.get("GYRE_BENCH_EVENTS", "300000"))
# Facts written between two looks at whether the server has kept up.
CHUNK = 10_000
NUM_MARKS = 10
NUM_RESTARTS = 5
TARGETS = {"restart_s": 2.0, "memory_growth_mb": 50.0}
JOB = "j00000000"


def one_life() -> list[bytes]:
    """The facts of one job of 48 steps of 512 executions, encoded."""
    world = lived_job(num_steps=48, phi=0.5)
    subject = subjects.sched(JOB)
    return [
        encode(
            make_envelope(
                body,
                identity=event_id(place),
                job=JOB,
                aggregate=subject,
                time=now,
                causation=event_id(place),
            )
        )
        for place, (_, now, body) in enumerate(world.log)
    ]


def events(count: int) -> Iterator[tuple[str, str, bytes]]:
    """(subject, id, bytes): the same job lived again and again under another name."""
    life = one_life()
    first = len('{"id":"')
    for number in range(count):
        turn, place = divmod(number, len(life))
        job, identity = f"j{turn:08d}", f"{number:032x}"
        data = life[place].replace(JOB.encode(), job.encode())
        data = data[:first] + identity.encode() + data[first + len(identity) :]
        yield subjects.sched(job), identity, data


async def write_log(url: str, count: int) -> None:
    """Straight into the stream, in order. Only facts that a snapshot can end with carry their id in
    the header: the server keeps the ids of two minutes in memory, here all of them."""
    link = Link(url, name="bench-writer")
    wire = await link.wire()
    for number, (subject, identity, data) in enumerate(events(count), start=1):
        known = number == 1 or number % SNAPSHOT_EVERY == 0
        wire.publish(subject, data, headers=append_headers(identity, None) if known else b"")
        if number % CHUNK == 0 or number == count:
            info = f"$JS.API.STREAM.INFO.{Stream.FACTS.value}"
            await wire.request(info, b"", timeout_s=60.0)
    await link.close()


async def read_all(url: str, directory: Path) -> dict[str, float]:
    """As the scheduler does from the log's beginning. Resident memory at each tenth of it."""
    log = JetStreamEventLog(url)
    head = await log.head(Stream.FACTS)
    snapshots = Snapshots(SnapshotStore(directory), log)
    folded, marks, longest = Folded(), [], 0.0
    begin = time.perf_counter()
    async for fact in Journal(log, SystemClock()).read(Stream.FACTS):
        folded.fold(fact)
        if snapshots.due(folded):
            at = time.perf_counter()
            header, body = snapshots.take(folded)
            longest = max(longest, time.perf_counter() - at)
            await snapshots.write(header, body)
        if fact.sequence % (head // NUM_MARKS) == 0:
            marks.append(resident_mb())
    took = time.perf_counter() - begin
    await log.close()
    return {
        "num_events": folded.sequence,
        "num_jobs": len(folded.cluster.jobs),
        "read_all_per_s": folded.sequence / took,
        "snapshot_take_max_s": longest,
        "snapshot_mb": len(body) / 1e6,
        "memory_first_mb": max(marks[:2]),
        "memory_last_mb": max(marks[-2:]),
        "memory_growth_mb": max(marks[-2:]) - max(marks[:2]),
    }


async def restart(url: str, directory: Path) -> dict[str, float]:
    begin = time.perf_counter()
    log = JetStreamEventLog(url)
    head = await log.head(Stream.FACTS)
    folded = await Snapshots(SnapshotStore(directory), log).newest()
    loaded = time.perf_counter()
    num_facts = head - folded.sequence
    facts = Journal(log, SystemClock()).follow(Stream.FACTS, after=folded.sequence)
    while folded.sequence < head:
        folded.fold(await anext(facts))
    done = time.perf_counter()
    await log.close()
    return {
        "restart_s": done - begin,
        "restart_load_s": loaded - begin,
        "restart_num_facts": num_facts,
        "restart_memory_mb": resident_mb(),
    }


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def in_a_process(step: str, url: str, directory: Path) -> dict[str, float]:
    """What `step` measures in a process of its own, and how long that took in all."""
    begin = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, __file__, step, url, str(directory)],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    figures: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return {**figures, f"{step}_process_s": time.perf_counter() - begin}


def measure(url: str, directory: Path) -> dict[str, float]:
    asyncio.run(ensure_streams(url))
    # A whole number of snapshots, and then all but one of the facts of the next.
    count = NUM_EVENTS // SNAPSHOT_EVERY * SNAPSHOT_EVERY + SNAPSHOT_EVERY - 1
    asyncio.run(write_log(url, count))
    read = in_a_process("read_all", url, directory)
    restarts = [in_a_process("restart", url, directory) for _ in range(NUM_RESTARTS)]
    best = min(restarts, key=lambda figures: figures["restart_s"])
    worst = max(figures["restart_s"] for figures in restarts)
    return {**read, **best, "restart_worst_s": worst}


def main() -> None:
    steps: dict[str, Any] = {"read_all": read_all, "restart": restart}
    if len(sys.argv) == 4:
        print(json.dumps(asyncio.run(steps[sys.argv[1]](sys.argv[2], Path(sys.argv[3])))))
        return
    with tempfile.TemporaryDirectory() as root:
        server = NatsServer(Path(root) / "nats").start()
        try:
            measured = measure(server.url, Path(root) / "snapshots")
        finally:
            server.stop()
    figures = {name: round(value, 3) for name, value in measured.items()}
    ok = all(figures[name] < most for name, most in TARGETS.items())
    write_report("snapshot", figures, TARGETS, ok=ok)


if __name__ == "__main__":
    main()
