"""The scheduler's loop and REST API on the event log in memory, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from gyre.adapters.eventlog.base import Stream
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.contracts import subjects
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import JobState, evolve
from gyre.scheduler.api import create_app
from gyre.scheduler.loop import SchedulerLoop
from gyre.scheduler.views import job_view
from gyre.testkit.lagging_log import LaggingLog
from gyre.testkit.scheduler_world import Cells, RecordedQueue, sound_job
from gyre.testkit.virtual_time import VirtualClock, run_virtual

TOKEN = "api-token"


class Service:
    """One scheduler with its API over `log`."""

    def __init__(self, log: MemoryEventLog | LaggingLog) -> None:
        self.queue = RecordedQueue()
        self.journal = Journal(log, VirtualClock())
        self.loop = SchedulerLoop(self.journal, self.queue, VirtualClock())
        self.cells = Cells(self.journal)
        app = create_app(self.loop, self.journal, SecretStr(TOKEN))
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app),
            base_url="http://scheduler",
            headers={"Authorization": f"Bearer {TOKEN}"},
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Service]:
        ready = asyncio.Event()
        task = asyncio.create_task(self.loop.run(ready))
        try:
            await ready.wait()
            yield self
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await self.http.aclose()

    async def submit(self, raw: dict[str, Any]) -> str:
        answer = await self.http.post("/v1/jobs", json=raw)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    async def facts(self, kind: type | None = None) -> list[Any]:
        return [
            fact.body
            async for fact in self.journal.read(Stream.FACTS)
            if kind is None or isinstance(fact.body, kind)
        ]

    async def until(self, holds: Callable[[SchedulerLoop], bool], seconds: float = 60.0) -> None:
        async with asyncio.timeout(seconds):
            while not holds(self.loop):
                await asyncio.sleep(0.05)

    async def orders(self, num: int) -> None:
        await self.until(lambda _: len(self.queue.puts) >= num)


def scenario(body: Callable[[Service], Coroutine[Any, Any, None]]) -> None:
    """Run `body` against a fresh scheduler with three cells online."""

    async def main() -> None:
        async with Service(MemoryEventLog(clock=VirtualClock())).running() as service:
            await service.cells.register()
            await service.until(lambda loop: len(loop.state.online) == 3)
            await body(service)

    run_virtual(main())


def test_a_submitted_job_is_accepted_started_and_shown(tmp_path: Path) -> None:
    async def body(service: Service) -> None:
        job = await service.submit(sound_job(tmp_path))
        await service.until(lambda loop: loop.state.jobs[job].status == "running")
        shown = (await service.http.get(f"/v1/jobs/{job}")).json()
        assert (shown["id"], shown["name"], shown["status"]) == (job, "job", "running")
        assert [cell["cell"] for cell in shown["cells"]] == [0, 1, 2]
        listed = (await service.http.get("/v1/jobs")).json()["jobs"]
        assert [view["id"] for view in listed] == [job]
        submitted = (await service.facts(sched.JobSubmitted))[0]
        assert submitted.train_tasks == ("a", "b")

    scenario(body)


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Authorization": "Bearer "}],
)
@pytest.mark.parametrize(
    "path", ["/v1/jobs", "/v1/jobs/x", "/v1/jobs/x/events", "/docs", "/nowhere"]
)
def test_without_the_token_nothing_is_answered_but_health(
    path: str, headers: dict[str, str]
) -> None:
    async def body(service: Service) -> None:
        service.http.headers.pop("Authorization")
        answer = await service.http.get(path, headers=headers)
        assert answer.status_code == 401
        assert "GYRE_API_TOKEN" in answer.json()["error"]["message"]
        assert TOKEN not in answer.text
        assert (await service.http.get("/healthz")).json() == {"status": "ok"}

    scenario(body)


@pytest.mark.parametrize(
    ("method", "path", "status", "field"),
    [
        ("GET", "/v1/jobs/none", 404, "job"),
        ("POST", "/v1/jobs/none/cancel", 404, "job"),
        ("POST", "/v1/jobs/none/pause", 404, "job"),
        ("POST", "/v1/jobs/none/drain", 404, "job"),
        ("GET", "/v1/jobs/none/events", 404, "job"),
        ("GET", "/v1/elsewhere", 404, "path"),
        ("DELETE", "/v1/jobs", 405, "path"),
        ("GET", "/v1/jobs/none/events?after=soon", 422, "after"),
    ],
)
def test_every_refusal_has_one_form(method: str, path: str, status: int, field: str) -> None:
    async def body(service: Service) -> None:
        answer = await service.http.request(method, path)
        assert answer.status_code == status
        error = answer.json()["error"]
        assert error["field"] == field
        assert "\n" not in error["message"]

    scenario(body)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b'{"name": "x"}'])
def test_a_body_that_is_no_job_is_refused_in_one_line_and_leaves_no_fact(content: bytes) -> None:
    async def body(service: Service) -> None:
        answer = await service.http.post("/v1/jobs", content=content)
        assert answer.status_code == 422
        assert "\n" not in answer.json()["error"]["message"]
        assert await service.facts(sched.JobSubmitted) == []

    scenario(body)


def test_a_refused_job_names_field_and_mend(tmp_path: Path) -> None:
    async def body(service: Service) -> None:
        raw = sound_job(tmp_path, cells=9)
        answer = await service.http.post("/v1/jobs", json=raw)
        assert answer.status_code == 422
        assert answer.json()["error"] == {
            "field": "cells.count",
            "message": "cells.count: 9 cells wanted, 3 are online; "
            "lower it or start more cell agents",
        }

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
        assert len(await service.facts(sched.CancelRequested)) == 1

    scenario(body)


def test_pause_resume_and_drain_may_be_asked_again_and_show_in_the_job(tmp_path: Path) -> None:
    async def body(service: Service) -> None:
        job = await service.submit(sound_job(tmp_path))
        await service.until(lambda loop: loop.state.jobs[job].status == "running")
        for request, paused, draining in (
            *(("pause", True, False), ("pause", True, False), ("resume", False, False)),
            *(("resume", False, False), ("pause", True, False), ("resume", False, False)),
        ):
            answer = await service.http.post(f"/v1/jobs/{job}/{request}")
            assert answer.status_code == 200
            shown = answer.json()
            assert (shown["paused"], shown["draining"]) == (paused, draining)
        assert len(await service.facts(sched.PauseRequested)) == 2
        assert len(await service.facts(sched.ResumeRequested)) == 2
        answers = await asyncio.gather(
            *(service.http.post(f"/v1/jobs/{job}/drain") for _ in range(3))
        )
        assert [answer.status_code for answer in answers] == [200, 200, 200]
        assert len(await service.facts(sched.DrainRequested)) == 1
        await service.until(lambda loop: loop.state.jobs[job].finished)
        shown = (await service.http.get(f"/v1/jobs/{job}")).json()
        assert (shown["status"], shown["reason"]) == ("succeeded", "drained after step 0")

    scenario(body)


@pytest.mark.parametrize("request_", ["pause", "resume", "drain"])
def test_a_job_that_does_not_run_refuses_in_one_line(tmp_path: Path, request_: str) -> None:
    async def body(service: Service) -> None:
        job = await service.submit(sound_job(tmp_path))
        await service.http.post(f"/v1/jobs/{job}/cancel")
        await service.until(lambda loop: loop.state.jobs[job].finished)
        answer = await service.http.post(f"/v1/jobs/{job}/{request_}")
        assert answer.status_code == 409
        assert answer.json()["error"] == {
            "field": "job",
            "message": f"job {job} is not running, it is cancelled",
        }

    scenario(body)


def test_events_are_the_jobs_facts_until_it_ends_and_resume_after_an_id(tmp_path: Path) -> None:
    async def body(service: Service) -> None:
        job = await service.submit(sound_job(tmp_path))
        await service.http.post(f"/v1/jobs/{job}/cancel")
        await service.until(lambda loop: loop.state.jobs[job].finished)
        sent = await _events(service, f"/v1/jobs/{job}/events")
        assert sent[0]["event"] == "job_submitted"
        assert sent[-1]["event"] == "job_finished"
        data = [json.loads(event["data"]) for event in sent]
        assert {line["job"] for line in data} == {job}
        assert [line["type"] for line in data] == [event["event"] for event in sent]
        resumed = await _events(service, f"/v1/jobs/{job}/events", {"Last-Event-ID": sent[1]["id"]})
        assert resumed == sent[2:]
        assert await _events(service, f"/v1/jobs/{job}/events?after={sent[1]['id']}") == sent[2:]

    scenario(body)


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


def test_nothing_is_decided_before_the_head_at_start_is_folded(tmp_path: Path) -> None:
    async def main() -> None:
        inner = MemoryEventLog(clock=VirtualClock())
        async with Service(inner).running() as service:
            await service.cells.register()
            await service.until(lambda loop: len(loop.state.online) == 3)
            job = await service.submit(sound_job(tmp_path))
            await service.cells.boot(job)
            await service.orders(6)
            known = service.loop.state.jobs[job]
        head = await inner.head(Stream.FACTS)
        watched = _Watched(inner, head)
        async with Service(watched).running() as second:
            assert watched.appended_at == []
            assert second.loop.state.sequence >= head
            assert second.loop.state.jobs[job] == known
            await second.orders(6)
            await asyncio.sleep(5.0)
        assert {name for *_, name in second.queue.puts} == {name for *_, name in service.queue.puts}
        assert await inner.head(Stream.FACTS) == head

    run_virtual(main())


def test_two_schedulers_take_each_decision_once(tmp_path: Path) -> None:
    async def main() -> None:
        inner = MemoryEventLog(clock=VirtualClock())
        source = random.Random(7)
        logs = [LaggingLog(inner, source, 0.3) for _ in range(2)]
        async with Service(logs[0]).running() as first, Service(logs[1]).running() as second:
            await first.cells.register()
            await first.until(lambda loop: len(loop.state.online) == 3)
            job = await first.submit(sound_job(tmp_path, heldout=True))
            await first.cells.boot(job)
            for cell in range(3):
                await first.cells.say(job, cell, cell_events.WorldJoined(cell=cell, epoch=1))
            await first.orders(1)
            await asyncio.sleep(20.0)
            for kind in (sched.JobStarted, sched.WorldFormed, sched.PhaseStarted, sched.Dispatched):
                assert len(await first.facts(kind)) == 1, kind
            assert first.loop.state.jobs[job] == second.loop.state.jobs[job]
            sent = [name for service in (first, second) for *_, name in service.queue.puts]
            assert len(set(sent)) == 1

    run_virtual(main())


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


def test_a_log_that_does_not_answer_is_a_503() -> None:
    async def body(service: Service) -> None:
        async def silent(*_: object, **__: object) -> int:
            raise TimeoutError

        service.journal.append = silent  # type: ignore[method-assign]
        answer = await service.http.post("/v1/jobs", json=sound_job(Path("/tmp/gyre-503")))
        assert answer.status_code == 503
        assert answer.json()["error"]["field"] == "log"

    scenario(body)


def test_the_view_is_a_fold_of_the_log(tmp_path: Path) -> None:
    async def body(service: Service) -> None:
        job = await service.submit(sound_job(tmp_path, heldout=True))
        await service.cells.boot(job)
        await service.orders(1)
        await asyncio.sleep(2.0)
        state = JobState(job=job)
        async for fact in service.journal.read(Stream.FACTS, (subjects.all_facts(job),)):
            evolve(state, fact.sequence, fact.body)
        shown = (await service.http.get(f"/v1/jobs/{job}")).json()
        assert shown == job_view(state).model_dump(mode="json")

    scenario(body)


class _Watched(LaggingLog):
    """Notes appends that come before the reader has delivered the head."""

    def __init__(self, inner: MemoryEventLog, head: int) -> None:
        super().__init__(inner, random.Random(1), 0.5)
        self._head = head
        self._delivered = 0
        self.appended_at: list[int] = []

    async def append(
        self, subject: str, data: bytes, *, event_id: str, expected: int | None
    ) -> int:
        if self._delivered < self._head:
            self.appended_at.append(self._delivered)
        return await super().append(subject, data, event_id=event_id, expected=expected)

    async def follow(self, stream: Stream, **where: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        async for recorded in super().follow(stream, **where):
            await asyncio.sleep(0.2)
            self._delivered = recorded.sequence
            yield recorded


async def _start(service: Service, job: str, execution: str) -> None:
    body = run_events.Started(execution=execution, group="g", task="a")
    await service.journal.append(
        subjects.run(job, execution), body, job=job, cause=(execution, "run"), expected=0
    )


async def _terminate(service: Service, job: str, execution: str) -> None:
    body = run_events.Terminated(
        execution=execution,
        attempt=0,
        reason="cancelled",
        exit_code=None,
        signal=None,
        workspace=None,
        duration_s=0.0,
    )
    await service.journal.append(
        subjects.run(job, execution), body, job=job, cause=(execution, "run"), expected=None
    )


async def _events(
    service: Service, path: str, headers: dict[str, str] | None = None
) -> list[dict[str, str]]:
    answer = await service.http.get(path, headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = answer.text.strip().split("\n\n")
    return [dict(line.split(": ", 1) for line in block.split("\n")) for block in blocks]
