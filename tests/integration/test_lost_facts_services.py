"""A fact that cannot be read, met by services that run: on a real nats-server, live and after a
restart, what it names ends and says so, and every other job is trained to its end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gyre.adapters.blobs import MemoryBlobStore
from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog import EventLog, Stream
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events.groups import (
    ExecutionQuarantined,
    GroupReady,
    MicroStepEmitted,
    StreamClosed,
)
from gyre.contracts.events.lost import FactLost
from gyre.contracts.events.scheduling import JobFinished
from gyre.contracts.events.steps import MicroStepClaimed
from gyre.core.report import RunReport
from gyre.scheduler.loop import SchedulerLoop
from gyre.testkit.execution_world import until
from gyre.testkit.nats_server import NatsServer
from gyre.testkit.scheduler_service import Service
from gyre.testkit.scheduler_world import Cells, RecordedQueue, sound_job
from gyre.testkit.specs import job_spec
from gyre.testkit.trajectory_world import World, calls_of, small_spec
from gyre.testkit.virtual_time import VirtualClock, run_virtual
from gyre.trajectory.handlers import Trajectories

HARMED, SOUND, BATCH = "harmed", "sound", "l1-s0000"
GARBAGE = b'{"id": 7}'
VICTIM = f"{HARMED}-g0001-e1"


class Bed:
    """Two jobs of one batch on one log, and nobody but the trajectory service that is real."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.blobs = MemoryBlobStore()
        self.journal = Journal(log, SystemClock(), self.blobs)
        self.worlds = {
            name: World(self.journal, name, small_spec(groups_per_step=2), seed=place)
            for place, name in enumerate((HARMED, SOUND))
        }

    async def play(self, subject: str) -> None:
        """Everything up to the open batch. On `subject` lies garbage, in place of the score if it
        is the score's, before the victim has its own."""
        for world in self.worlds.values():
            await world.submit()
            await world.dispatch(range(2))
        for world in self.worlds.values():
            for number in range(2):
                for place, execution in enumerate(world.plan(number).executions):
                    if execution == VICTIM:
                        await self.log.append(subject, GARBAGE, event_id="g", expected=None)
                        if subject == subjects.score(HARMED, VICTIM):
                            continue
                    calls = calls_of(execution, world.seed)
                    await world.finish(execution, float(place % 2), calls=calls)
            await world.open_batch(BATCH)
            await world.join(BATCH, 0)

    async def said(self, job: str) -> list[Body]:
        """What the trajectory service said of it."""
        facts = self.journal.read(Stream.FACTS, (subjects.all_facts(job),))
        kinds = (ExecutionQuarantined, GroupReady, MicroStepEmitted, StreamClosed)
        return [fact.body async for fact in facts if isinstance(fact.body, kinds)]

    async def claim_all(self) -> bool:
        found = False
        for name, world in self.worlds.items():
            facts = self.journal.read(Stream.FACTS, (subjects.all_facts(name),))
            bodies = [fact.body async for fact in facts]
            claimed = {body.index for body in bodies if isinstance(body, MicroStepClaimed)}
            emitted = {body.index for body in bodies if isinstance(body, MicroStepEmitted)}
            for index in sorted(emitted - claimed):
                await world.claim(BATCH, index)
                found = True
        return found

    async def closed(self, jobs: Sequence[str]) -> bool:
        await self.claim_all()
        said = [await self.said(job) for job in jobs]
        return all(any(isinstance(body, StreamClosed) for body in bodies) for bodies in said)


@asynccontextmanager
async def running(bed: Bed) -> AsyncIterator[None]:
    """One life of the service. Raises what it failed with."""
    ready = asyncio.Event()
    task = asyncio.create_task(Trajectories(bed.journal, bed.blobs).run(ready.set))
    try:
        await ready.wait()
        yield
    finally:
        task.cancel()
        [result] = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(result, asyncio.CancelledError), result


async def after_restarts(subject: str) -> Bed:
    """The same, of a service that dies after each event."""
    bed = Bed(MemoryEventLog())
    await bed.play(subject)
    while True:
        service = Trajectories(bed.journal, bed.blobs)
        await service.catch_up()
        if await service.pay_one() is None and not await bed.claim_all():
            return bed


def in_any_order(said: Sequence[Body]) -> list[str]:
    """Who paid while the log grew paid in another order, and the numbers in the log are others."""
    return sorted(re.sub(r"event \d+ on", "event on", body.model_dump_json()) for body in said)


def trained(said: Sequence[Body]) -> set[str]:
    return {name for body in said if isinstance(body, MicroStepEmitted) for name in body.executions}


OF_THE_EXECUTION = (subjects.run(HARMED, VICTIM), subjects.score(HARMED, VICTIM))
OF_THE_JOB = (
    subjects.sched(HARMED),
    subjects.group(HARMED, f"{HARMED}-g0000"),
    subjects.batch_stream(HARMED, BATCH),
    subjects.batch_claims(HARMED, BATCH),
    subjects.cell(HARMED, 0),
)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("subject", [*OF_THE_EXECUTION, OF_THE_JOB[0]])
def test_the_trajectory_service_goes_on_with_all_that_is_not_harmed(
    subject: str, nats: NatsServer
) -> None:
    async def scenario() -> None:
        log = JetStreamEventLog(nats.url)
        bed = Bed(log)
        whole = (HARMED, SOUND) if subject in OF_THE_EXECUTION else (SOUND,)
        try:
            async with running(bed):
                await bed.play(subject)
                await until(lambda: bed.closed(whole), 60)
            said = {job: await bed.said(job) for job in (HARMED, SOUND)}
            later = Trajectories(bed.journal, bed.blobs)
            await later.catch_up()
            assert await later.pay_one() is None
        finally:
            await log.close()
        again = await after_restarts(subject)
        for job in whole:
            assert in_any_order(said[job]) == in_any_order(await again.said(job))
        assert bool(trained(said[HARMED])) == (HARMED in whole)

    asyncio.run(scenario())


@pytest.mark.parametrize("subject", OF_THE_EXECUTION)
async def test_an_execution_that_has_lost_a_fact_is_in_quarantine_alone(subject: str) -> None:
    bed = await after_restarts(subject)
    said = await bed.said(HARMED)
    [quarantined] = [body for body in said if isinstance(body, ExecutionQuarantined)]
    assert quarantined.execution == VICTIM
    assert f"on {subject}: event cannot be read" in quarantined.error
    [outcome] = [
        one
        for body in said
        if isinstance(body, GroupReady)
        for one in body.outcomes
        if one.disposition != "valid"
    ]
    assert (outcome.execution, outcome.disposition) == (VICTIM, "excluded")
    everybody = {name for number in range(2) for name in bed.worlds[HARMED].plan(number).executions}
    assert trained(said) == everybody - {VICTIM}


@pytest.mark.parametrize("subject", OF_THE_JOB)
async def test_a_job_that_has_lost_a_fact_is_told_nothing_more(subject: str) -> None:
    bed = await after_restarts(subject)
    assert trained(await bed.said(HARMED)) == set()
    assert any(isinstance(body, StreamClosed) for body in await bed.said(SOUND))


@pytest.mark.parametrize("place", ["facts.harmed.nowhere", "calls.harmed.nowhere"])
async def test_what_lies_on_no_place_of_the_log_harms_nobody(place: str) -> None:
    bed = await after_restarts(place)
    for job in (HARMED, SOUND):
        assert any(isinstance(body, StreamClosed) for body in await bed.said(job))


def test_the_scheduler_ends_a_job_that_has_lost_a_fact_and_starts_the_next(tmp_path: Path) -> None:
    """The first one has all the cells; the other gets them. A scheduler that comes later knows the
    same and decides nothing anew."""

    async def main() -> None:
        log = MemoryEventLog(clock=VirtualClock())
        async with Service(log).running() as service:
            await service.cells.register()
            first = await service.submit(sound_job(tmp_path))
            await service.cells.boot(first)
            second = await service.submit(sound_job(tmp_path))
            subject = subjects.cell(first, 1)
            await log.append(subject, GARBAGE, event_id="garbage", expected=None)
            await service.until(lambda loop: loop.state.jobs[first].finished)
            for cell in range(3):
                await service.cells.change_role(first, cell, "offline")
            await service.until(lambda loop: loop.state.jobs[second].status == "running")
            shown = (await service.http.get(f"/v1/jobs/{first}")).json()
            assert (shown["status"], shown["num_lost_facts"]) == ("failed", 1)
            assert shown["reason"].startswith("a fact of the job is lost: GYRE_FACTS event ")
            assert f" on {subject}: event cannot be read" in shown["reason"]
            await asyncio.sleep(5.0)
            facts = await service.facts()
            state = service.loop.state
        async with Service(log).running() as service:
            await asyncio.sleep(5.0)
            assert await service.facts() == facts
            assert service.loop.state.jobs == state.jobs
        assert [body.status for body in facts if isinstance(body, JobFinished)] == ["failed"]

    run_virtual(main())


def test_the_scheduler_meets_it_on_a_real_log_and_runs_on(nats: NatsServer) -> None:
    async def scenario() -> None:
        log = JetStreamEventLog(nats.url)
        journal = Journal(log, SystemClock())
        loop, ready = SchedulerLoop(journal, RecordedQueue(), SystemClock()), asyncio.Event()
        running = asyncio.create_task(loop.run(ready))
        try:
            await ready.wait()
            await Cells(journal).register()
            worlds = [World(journal, name, job_spec()) for name in (HARMED, SOUND)]
            await worlds[0].submit()
            subject = subjects.cell(HARMED, 2)
            sequence = await log.append(subject, GARBAGE, event_id="garbage", expected=None)
            await worlds[1].submit()
            await until(lambda: _ended_and_running(loop), 20)
        finally:
            running.cancel()
            [result] = await asyncio.gather(running, return_exceptions=True)
            reason = loop.state.jobs[HARMED].reason
            await log.close()
        assert isinstance(result, asyncio.CancelledError), result
        assert f"GYRE_FACTS event {sequence} on {subject}: event cannot be read" in reason

    asyncio.run(scenario())


async def _ended_and_running(loop: SchedulerLoop) -> bool:
    jobs = loop.state.jobs
    known = HARMED in jobs and SOUND in jobs
    return known and jobs[HARMED].status == "failed" and not jobs[SOUND].finished


def test_the_scheduler_ends_a_job_whose_submission_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        log = MemoryEventLog(clock=VirtualClock())
        await log.append(subjects.sched("gone"), GARBAGE, event_id="garbage", expected=None)
        async with Service(log).running() as service:
            await service.cells.register()
            job = await service.submit(sound_job(tmp_path))
            await service.until(lambda loop: loop.state.jobs[job].status == "running")
            await service.until(lambda loop: loop.state.jobs["gone"].finished)
            listed = (await service.http.get("/v1/jobs")).json()["jobs"]
            assert [(view["id"], view["status"]) for view in listed] == [
                ("gone", "failed"),
                (job, "running"),
            ]

    run_virtual(main())


async def test_the_report_of_a_job_that_has_lost_a_fact_says_which() -> None:
    bed = await after_restarts(OF_THE_EXECUTION[0])
    report = RunReport(HARMED)
    facts = bed.journal.read(Stream.FACTS, (subjects.all_facts(HARMED),))
    async for fact in facts:
        report.fold_fact(fact.sequence, fact.envelope)
    [lost] = report.summary()["lost_facts"]
    assert lost["execution"] == VICTIM
    assert any(lost["error"] in line for line in report.alarms())
    assert isinstance(report.deliveries.lost_facts[0], FactLost)
