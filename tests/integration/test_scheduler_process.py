"""The scheduler as a process on a real nats-server: killed right after an append, and doubled."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.base import Stream
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.journal import Journal
from gyre.adapters.workqueue.jetstream import JetStreamWorkQueue
from gyre.contracts import subjects
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import JobState, evolve
from gyre.scheduler.views import job_view
from gyre.testkit.nats_server import NatsServer, free_port
from gyre.testkit.scheduler_world import Cells, sound_job

TOKEN = "the-api-token"
NUM_ORDERS = 6
DEADLINE_S = 60.0


class Scheduler:
    """One process and the way to talk to it."""

    def __init__(self, nats: NatsServer, home: Path, **env: str) -> None:
        self.port = free_port()
        self._env = {
            "PATH": os.environ["PATH"],
            "GYRE_HOME": str(home),
            "GYRE_NATS_URL": nats.url,
            "GYRE_DATABASE_URL": "postgresql+psycopg://unused",
            "GYRE_KEY_SECRET": "a-secret",
            "GYRE_API_TOKEN": TOKEN,
            "GYRE_SCHEDULER_PORT": str(self.port),
            **env,
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.log = home / "scheduler.log"
        self.http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"Authorization": f"Bearer {TOKEN}"},
            timeout=20.0,
        )

    @contextmanager
    def running(self) -> Iterator[Scheduler]:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gyre.scheduler"], env=self._env, stderr=log
            )
        try:
            yield self
        finally:
            self.process.kill()
            self.process.wait(10)

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Lines of the latest process's log that begin with this action."""
        whole, _, _ = self.log.read_text().rpartition("\n")
        lines = [json.loads(line) for line in whole.splitlines()]
        return [line for line in lines if line["event"] == event]

    async def serves(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    await self.http.get("/healthz")
                    return
                except httpx.TransportError:
                    await asyncio.sleep(0.05)

    async def submit(self, raw: dict[str, Any]) -> str:
        """Once the cells are known to it."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                answer = await self.http.post("/v1/jobs", json=raw)
                if answer.status_code == 201:
                    return str(answer.json()["id"])
                assert answer.json()["error"]["field"] == "cells.count", answer.text
                await asyncio.sleep(0.05)

    async def died(self) -> int:
        async with asyncio.timeout(DEADLINE_S):
            while self.process is None or (status := self.process.poll()) is None:
                await asyncio.sleep(0.05)
            return status


async def _submitted(journal: Journal) -> str:
    facts = journal.read(Stream.FACTS)
    (job,) = [fact.job async for fact in facts if isinstance(fact.body, sched.JobSubmitted)]
    return job


async def _boot(journal: Journal, job: str) -> None:
    cells = Cells(journal)
    await cells.boot(job)
    for cell in range(3):
        await cells.say(job, cell, cell_events.WorldJoined(cell=cell, epoch=1))


async def _bodies(journal: Journal, job: str) -> list[Any]:
    facts = journal.read(Stream.FACTS, (subjects.all_facts(job),))
    return [fact.body async for fact in facts]


async def _replayed(journal: Journal, job: str) -> JobState:
    state = JobState(job=job)
    async for fact in journal.read(Stream.FACTS, (subjects.all_facts(job),)):
        evolve(state, fact.sequence, fact.body)
    return state


async def _shown_is_the_replayed_state(scheduler: Scheduler, journal: Journal, job: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            shown = (await scheduler.http.get(f"/v1/jobs/{job}")).json()
            state = await _replayed(journal, job)
            if state.training.ordered == NUM_ORDERS and shown["sequence"] == state.sequence:
                assert shown == job_view(state).model_dump(mode="json")
                return
            await asyncio.sleep(0.1)


async def _all_orders(url: str, job: str) -> list[str]:
    queue = JetStreamWorkQueue(url)
    try:
        taken: list[str] = []
        while items := await queue.take(subjects.start_order(job), f"test-{job}", 50, 1.5):
            for item in items:
                taken.append(json.loads(item.data)["execution"])
                await item.ack()
        return taken
    finally:
        await queue.close()


def _each_decision_once(bodies: list[Any]) -> None:
    for kind in (sched.JobStarted, sched.WorldFormed, sched.PhaseStarted, sched.Dispatched):
        assert sum(isinstance(body, kind) for body in bodies) == 1, kind
    orders = [
        order.execution
        for body in bodies
        if isinstance(body, sched.StartOrdered)
        for order in body.orders
    ]
    assert len(orders) == len(set(orders)) == NUM_ORDERS


@pytest.mark.parametrize("nth", [1, 2, 4, 5])
async def test_killed_after_its_nth_append_it_goes_on_and_doubles_nothing(
    nats: NatsServer, tmp_path: Path, nth: int
) -> None:
    log = JetStreamEventLog(nats.url)
    journal = Journal(log, SystemClock())
    scheduler = Scheduler(nats, tmp_path, GYRE_FAILPOINT=f"scheduler.after_append:{nth}")
    try:
        await Cells(journal).register()
        with scheduler.running():
            await scheduler.serves()
            # It may die before its answer is out; the job is in the log all the same.
            with contextlib.suppress(httpx.TransportError):
                await scheduler.submit(sound_job(tmp_path))
            job = await _submitted(journal)
            await _boot(journal, job)
            assert await scheduler.died() == -signal.SIGKILL
        with scheduler.running():
            await scheduler.serves()
            await _shown_is_the_replayed_state(scheduler, journal, job)
            # An order is in the log before it is in the queue.
            ordered = await _all_orders(nats.url, job)
        _each_decision_once(await _bodies(journal, job))
        executions = (await _replayed(journal, job)).executions
        assert sorted(ordered) == sorted(executions)
    finally:
        await scheduler.http.aclose()
        await log.close()


async def test_two_processes_on_one_log_take_each_decision_once(
    nats: NatsServer, tmp_path: Path
) -> None:
    log = JetStreamEventLog(nats.url)
    journal = Journal(log, SystemClock())
    first, second = (Scheduler(nats, tmp_path / name) for name in ("one", "two"))
    try:
        await Cells(journal).register()
        with first.running(), second.running():
            await first.serves()
            await second.serves()
            job = await first.submit(sound_job(tmp_path))
            await _boot(journal, job)
            for scheduler in (first, second):
                await _shown_is_the_replayed_state(scheduler, journal, job)
            assert first.process is not None
            first.process.send_signal(signal.SIGTERM)
            assert await first.died() == 0
        _each_decision_once(await _bodies(journal, job))
        assert len(await _all_orders(nats.url, job)) == NUM_ORDERS
    finally:
        await first.http.aclose()
        await second.http.aclose()
        await log.close()


async def test_a_restart_reads_the_log_from_its_snapshot_on_or_all_of_it_when_none_fits(
    nats: NatsServer, tmp_path: Path
) -> None:
    log = JetStreamEventLog(nats.url)
    journal = Journal(log, SystemClock())
    scheduler = Scheduler(nats, tmp_path, GYRE_SNAPSHOT_EVERY="4")
    try:
        await Cells(journal).register()
        with scheduler.running():
            await scheduler.serves()
            job = await scheduler.submit(sound_job(tmp_path))
            await _boot(journal, job)
            await _shown_is_the_replayed_state(scheduler, journal, job)
            written = await _snapshots_after(scheduler, 10)
        head = await journal.head(Stream.FACTS)
        with scheduler.running():
            await scheduler.serves()
            await _shown_is_the_replayed_state(scheduler, journal, job)
            (loaded,) = scheduler.logged("snapshot_loaded")
            assert loaded["sequence"] >= written
            assert scheduler.logged("caught_up")[0]["num_facts"] == head - loaded["sequence"]
        snapshots = list((tmp_path / "snapshots" / "scheduler").glob("*.snapshot"))
        for path in snapshots:
            path.unlink()
            path.write_bytes(b"{}")
        with scheduler.running():
            await scheduler.serves()
            await _shown_is_the_replayed_state(scheduler, journal, job)
            assert len(scheduler.logged("snapshot_refused")) == len(snapshots) == 2
            assert scheduler.logged("caught_up")[0]["num_facts"] == head
    finally:
        await scheduler.http.aclose()
        await log.close()


async def _snapshots_after(scheduler: Scheduler, sequence: int) -> int:
    """Sequence of a snapshot behind `sequence`, once it and one before it are written."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            written = [line["sequence"] for line in scheduler.logged("snapshot_written")]
            if len(written) > 1 and written[-1] > sequence:
                return int(written[-1])
            await asyncio.sleep(0.05)


def test_bad_settings_are_one_line_and_exit_status_2() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "gyre.scheduler"],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert len(ended.stderr.strip().splitlines()) == 1
    assert "GYRE_NATS_URL" in ended.stderr
