"""The scheduler's REST API over a log in memory, in virtual time: views, requests and refusals."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gyre.adapters.eventlog.base import Stream
from gyre.contracts import subjects
from gyre.contracts.events import requests as request_events
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import JobState, evolve
from gyre.scheduler.views import job_view
from gyre.testkit.scheduler_service import TOKEN, Service, scenario
from gyre.testkit.scheduler_world import sound_job


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
        assert len(await service.facts(request_events.PauseRequested)) == 2
        assert len(await service.facts(request_events.ResumeRequested)) == 2
        answers = await asyncio.gather(
            *(service.http.post(f"/v1/jobs/{job}/drain") for _ in range(3))
        )
        assert [answer.status_code for answer in answers] == [200, 200, 200]
        assert len(await service.facts(request_events.DrainRequested)) == 1
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


async def _events(
    service: Service, path: str, headers: dict[str, str] | None = None
) -> list[dict[str, str]]:
    answer = await service.http.get(path, headers=headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = answer.text.strip().split("\n\n")
    return [dict(line.split(": ", 1) for line in block.split("\n")) for block in blocks]
