"""The REST API. Reads the loop's state, writes only facts: job_submitted and what is requested."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import SecretStr
from starlette.exceptions import HTTPException

from gyre.adapters.eventlog.base import EventLogError, Stream
from gyre.adapters.journal import Journal
from gyre.contracts import subjects
from gyre.contracts.codec import encode
from gyre.contracts.events import scheduling as sched
from gyre.contracts.http import JobList, JobView
from gyre.scheduler.cells_api import answer_cells
from gyre.scheduler.loop import SchedulerLoop
from gyre.scheduler.requests import (
    CANCEL,
    DRAIN,
    PAUSE,
    RESUME,
    JobRequest,
    append_request,
    folded,
)
from gyre.scheduler.sizes import check_sizes
from gyre.scheduler.submission import InvalidJob, check_surroundings, parse_spec
from gyre.scheduler.views import job_view

_OPEN_PATHS = frozenset({"/healthz"})


def create_app(loop: SchedulerLoop, journal: Journal, token: SecretStr) -> FastAPI:
    """The API over a running loop. All but /healthz wants `Authorization: Bearer <token>`."""
    app = FastAPI(title="Gyre scheduler", version="1", docs_url="/docs")

    @app.middleware("http")
    async def authorise(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        sent = request.headers.get("authorization", "")
        wanted = f"Bearer {token.get_secret_value()}"
        if request.url.path in _OPEN_PATHS or hmac.compare_digest(sent.encode(), wanted.encode()):
            return await call_next(request)
        return _error(401, "authorization", "wrong or missing bearer token; set GYRE_API_TOKEN")

    _answer_errors(app)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/v1/jobs", status_code=201)
    async def submit(request: Request) -> JobView:
        try:
            raw = await request.json()
        except ValueError as error:
            raise InvalidJob("job", f"the body is no JSON: {error}") from error
        return await _submit(loop, journal, raw)

    @app.get("/v1/jobs")
    async def list_jobs() -> JobList:
        return JobList(jobs=[job_view(job) for job in loop.state.jobs.values()])

    @app.get("/v1/jobs/{job}")
    async def show(job: str) -> Response:
        if job not in loop.state.jobs:
            return _unknown(job)
        return JSONResponse(job_view(loop.state.jobs[job]).model_dump(mode="json"))

    _answer_requests(app, loop, journal)
    answer_cells(app, loop, journal)

    @app.get("/v1/jobs/{job}/events")
    async def events(job: str, request: Request, after: int = 0) -> Response:
        if job not in loop.state.jobs:
            return _unknown(job)
        last = request.headers.get("last-event-id", "")
        start = int(last) if last.isdigit() else after
        stream = _server_sent(journal, job, start)
        return StreamingResponse(stream, media_type="text/event-stream")

    return app


def _answer_requests(app: FastAPI, loop: SchedulerLoop, journal: Journal) -> None:
    """POST /v1/jobs/{job}/cancel, pause, resume, drain: each may be repeated. A job that has ended
    can be cancelled, to no effect; the others want one that runs."""

    async def answer(job: str, request: JobRequest) -> Response:
        state = loop.state.jobs.get(job)
        if state is None:
            return _unknown(job)
        if request.wants_running and state.status != "running":
            return _error(409, "job", f"job {job} is not running, it is {job_view(state).status}")
        await append_request(loop, journal, job, request)
        return JSONResponse(job_view(loop.state.jobs[job]).model_dump(mode="json"))

    @app.post("/v1/jobs/{job}/cancel")
    async def cancel(job: str) -> Response:
        return await answer(job, CANCEL)

    @app.post("/v1/jobs/{job}/pause")
    async def pause(job: str) -> Response:
        return await answer(job, PAUSE)

    @app.post("/v1/jobs/{job}/resume")
    async def resume(job: str) -> Response:
        return await answer(job, RESUME)

    @app.post("/v1/jobs/{job}/drain")
    async def drain(job: str) -> Response:
        return await answer(job, DRAIN)


def _answer_errors(app: FastAPI) -> None:
    """Every refusal has one form, the framework's own too."""

    @app.exception_handler(InvalidJob)
    async def invalid_job(_: Request, error: InvalidJob) -> Response:
        return _error(422, error.field, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid_request(_: Request, error: RequestValidationError) -> Response:
        fault = error.errors()[0]
        field = str(fault["loc"][-1])
        return _error(422, field, f"{field}: {fault['msg']}")

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        return _error(error.status_code, "path", f"{request.url.path}: {error.detail}")

    @app.exception_handler(TimeoutError)
    @app.exception_handler(EventLogError)
    async def no_log(_: Request, error: Exception) -> Response:
        reason = error or "time-out"
        return _error(503, "log", f"the event log does not answer: {reason}; try again")


async def _submit(loop: SchedulerLoop, journal: Journal, raw: object) -> JobView:
    spec = parse_spec(raw)
    body = check_surroundings(spec, loop.state.agents.values())
    job = f"{spec.name}-{secrets.token_hex(3)}"
    check_sizes(job, body)
    sequence = await journal.append(
        subjects.sched(job), body, job=job, cause=("submit", job), causation="api", expected=0
    )
    await folded(loop, sequence)
    return job_view(loop.state.jobs[job])


async def _server_sent(journal: Journal, job: str, after: int) -> AsyncIterator[str]:
    """Every fact of the job as `id: <sequence>`, `event: <type>`, `data: <JSON>`; ends with it."""
    async for fact in journal.follow(Stream.FACTS, (subjects.all_facts(job),), after):
        data = encode(fact.envelope).decode()
        yield f"id: {fact.sequence}\nevent: {fact.envelope.type}\ndata: {data}\n\n"
        if isinstance(fact.body, sched.JobFinished):
            return


def _error(status: int, field: str, message: str) -> JSONResponse:
    return JSONResponse({"error": {"field": field, "message": message}}, status_code=status)


def _unknown(job: str) -> JSONResponse:
    return _error(404, "job", f"no job {job!r}; `gyre job ls` lists the jobs")
