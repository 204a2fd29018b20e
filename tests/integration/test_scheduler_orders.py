"""What the scheduler's loop orders and when: of executions and of jobs, in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gyre.contracts import subjects
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import requests as request_events
from gyre.contracts.events import scheduling as sched
from gyre.testkit.facts import terminated
from gyre.testkit.scheduler_service import Service, scenario
from gyre.testkit.scheduler_world import sound_job


def test_start_orders_are_sent_once_then_again_at_their_deadline_until_started(
    tmp_path: Path,
) -> None:
    async def body(service: Service) -> None:
        raw = sound_job(tmp_path)
        raw["schedule"]["start_deadline_s"] = 20.0
        job = await service.submit(raw)
        await service.cells.boot(job)
        for cell in range(3):
            await service.cells.say(job, cell, cell_events.WorldJoined(cell=cell, epoch=1))
        await service.orders(6)
        first = list(service.queue.puts)
        assert len({order["execution"] for _, order, _ in first}) == 6
        started, *silent = [order["execution"] for _, order, _ in first]
        await _start(service, job, started)
        await asyncio.sleep(15.0)
        assert service.queue.puts == first
        await asyncio.sleep(10.0)
        again = service.queue.puts[6:]
        assert [order["execution"] for _, order, _ in again] == silent
        for (then, *_), (now, *_) in zip(first[1:], again, strict=True):
            assert 20.0 <= now - then <= 22.0
        assert not {name for *_, name in again} & {name for *_, name in first}

    scenario(body)


def test_a_cancelled_job_ends_when_nothing_of_it_runs(tmp_path: Path) -> None:
    async def body(service: Service) -> None:
        job = await service.submit(sound_job(tmp_path))
        await service.cells.boot(job)
        for cell in range(3):
            await service.cells.say(job, cell, cell_events.WorldJoined(cell=cell, epoch=1))
        await service.orders(6)
        answer = await service.http.post(f"/v1/jobs/{job}/cancel")
        assert answer.json()["status"] == "running"
        await service.until(lambda loop: loop.state.jobs[job].cancelled_sent)
        cancelled = (await service.facts(sched.ExecutionsCancelled))[0]
        for execution in cancelled.running:
            await _terminate(service, job, execution)
        await service.until(lambda loop: loop.state.jobs[job].status == "cancelled")
        again = await service.http.post(f"/v1/jobs/{job}/cancel")
        assert again.json()["status"] == "cancelled"
        assert len(await service.facts(request_events.CancelRequested)) == 1

    scenario(body)


def test_a_job_waits_until_the_cells_of_the_one_before_are_offline(tmp_path: Path) -> None:
    async def body(service: Service) -> None:
        first = await service.submit(sound_job(tmp_path))
        second = await service.submit(sound_job(tmp_path))
        await service.http.post(f"/v1/jobs/{first}/cancel")
        await service.until(lambda loop: loop.state.jobs[first].finished)
        await asyncio.sleep(30.0)
        assert service.loop.state.jobs[second].status == "queued"
        for cell in range(3):
            assert service.loop.state.jobs[second].status == "queued"
            await service.cells.change_role(first, cell, "offline")
        await service.until(lambda loop: loop.state.jobs[second].status == "running")

    scenario(body)


def test_a_queued_job_that_is_cancelled_never_starts(tmp_path: Path) -> None:
    async def body(service: Service) -> None:
        await service.submit(sound_job(tmp_path))
        second = await service.submit(sound_job(tmp_path))
        await service.http.post(f"/v1/jobs/{second}/cancel")
        await service.until(lambda loop: loop.state.jobs[second].status == "cancelled")
        started = list(await service.facts(sched.JobStarted))
        assert len(started) == 1

    scenario(body)


async def _start(service: Service, job: str, execution: str) -> None:
    body = run_events.Started(execution=execution, group="g", task="a")
    await service.journal.append(
        subjects.run(job, execution), body, job=job, cause=(execution, "run"), expected=0
    )


async def _terminate(service: Service, job: str, execution: str) -> None:
    body = terminated(execution, "cancelled", attempt=0)
    await service.journal.append(
        subjects.run(job, execution), body, job=job, cause=(execution, "run"), expected=None
    )
