"""The proxy's own failures: to the client the vendor's, to operators a line that says where, to
other executions nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.base import EventLogError
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.contracts.events.calls import CallRecorded, CallUndelivered
from gyre.proxy.app import APIS
from gyre.proxy.calls import Calls
from gyre.proxy.live import OpenCall
from gyre.proxy.requests import Answer
from gyre.testkit.patient_engine import PatientEngine, patient_engine
from gyre.testkit.proxy_world import Facts, RunningProxy, running_proxy
from gyre.testkit.tiny_model import make_tiny_model

EXECUTION, OTHER = "job-test-g0000-e0", "job-test-g0000-e1"
PATHS = sorted(APIS)
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/messages": {
        "model": "policy",
        "max_tokens": 16,
        "messages": [{"role": "user", "content": "hi"}],
    },
    "/v1/responses": {"model": "policy", "input": [{"role": "user", "content": "hi"}]},
}
# What the failure says of the inside, which no client is to see.
INSIDE = "/var/lib/somewhere"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("proxy_failures") / "m", seed=0)


@pytest.fixture
def one_breaks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The answers of EXECUTION cannot be made, for a reason that nobody foresaw."""
    made = Calls.answer

    def answer(self: Calls, call: OpenCall, *rest: Any) -> Answer:
        if call.id.startswith(EXECUTION):
            raise LookupError(f"no {INSIDE}")
        return made(self, call, *rest)

    monkeypatch.setattr(Calls, "answer", answer)
    yield
    monkeypatch.undo()


@asynccontextmanager
async def world(
    model: Path, log: MemoryEventLog | None = None, **limits: float
) -> AsyncIterator[tuple[Facts, PatientEngine, RunningProxy]]:
    log = log or MemoryEventLog()
    facts = Facts(Journal(log, SystemClock()))
    await facts.submit(model)
    async with patient_engine(model) as engine, running_proxy(log, None, **limits) as served:
        await facts.rollout(0, engine.url)
        yield facts, engine, served


async def post(served: RunningProxy, path: str, key: str, **extra: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}", "x-api-key": key}
    return await served.http.post(path, json=BODIES[path] | extra, headers=headers)


def the_line(told: str, event: str) -> str:
    """The one line about `event`, as it was logged (all of it, if it has several lines)."""
    [found] = [part for part in told.split("\n") if f" {event} " in part or f'"{event}"' in part]
    return found


@pytest.mark.usefixtures("one_breaks")
@pytest.mark.parametrize("path", PATHS)
async def test_what_nobody_foresaw_is_the_vendors_own_failure(
    path: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with world(model, retry_grace_s=0) as (facts, engine, served):
        engine.go.set()
        key, other = await facts.start(EXECUTION), await facts.start(OTHER)
        broken, sound = await asyncio.gather(post(served, path, key), post(served, path, other))
        told = "".join(capsys.readouterr())
        events = await facts.calls(EXECUTION)
    assert sound.status_code == 200, sound.text
    assert broken.status_code == 500
    error = broken.json()["error"]
    kind = "api_error" if path == "/v1/messages" else "server_error"
    assert (error["type"], error["message"]) == (kind, "an error inside the proxy")
    assert INSIDE not in broken.text
    line = the_line(told, "request_failed")
    assert EXECUTION in line
    assert f"LookupError: no {INSIDE}" in told
    assert "test_proxy_failures.py" in told  # where it was raised
    assert key not in told
    assert [type(event) for event in events] == [CallRecorded, CallUndelivered]


@pytest.mark.usefixtures("one_breaks")
@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_that_has_begun_ends_with_the_failure(path: str, model: Path) -> None:
    async with world(model, keepalive_s=0.05) as (facts, engine, served):
        key = await facts.start(EXECUTION)
        asked = asyncio.create_task(post(served, path, key, stream=True))
        await engine.until_asked(1)
        await asyncio.sleep(0.2)
        engine.go.set()
        answer = await asked
    assert answer.status_code == 200
    assert INSIDE not in answer.text
    last = [line for line in answer.text.split("\n") if line.startswith("data: {")][-1]
    said = orjson.loads(last.removeprefix("data: "))
    assert "an error inside the proxy" in str(said.get("error") or said["response"]["error"])


class FailingLog(MemoryEventLog):
    """Is away whenever a call is to be recorded."""

    async def append(
        self, subject: str, data: bytes, *, event_id: str, expected: int | None
    ) -> int:
        if b'"call_recorded"' in data:
            raise EventLogError(f"nats://user:pw@{INSIDE} is away")
        return await super().append(subject, data, event_id=event_id, expected=expected)


@pytest.mark.parametrize("path", PATHS)
async def test_a_log_that_is_away_is_no_news_for_clients(
    path: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with world(model, FailingLog()) as (facts, engine, served):
        engine.go.set()
        answer = await post(served, path, await facts.start(EXECUTION))
    assert answer.status_code == (529 if path == "/v1/messages" else 503)
    assert 0 < float(answer.headers["retry-after"]) <= 60
    assert INSIDE not in answer.text
    assert INSIDE in the_line("".join(capsys.readouterr()), "log_away")


async def test_bytes_that_are_no_request_are_refused_without_their_text_in_the_log(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(model) as (facts, _, served):
        key = await facts.start(EXECUTION)
        host, port = served.url.removeprefix("http://").split(":")
        with caplog.at_level(logging.DEBUG):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"POST /v1/messages HTTP/1.1\r\nx-api-key: {key}\0\r\n\r\n".encode())
            said = await asyncio.wait_for(reader.read(), 10)
            writer.close()
    assert said.startswith((b"HTTP/1.0 400 ", b"HTTP/1.1 400 "))
    assert [record.levelname for record in caplog.records if "unreadable" in record.message] == [
        "WARNING"
    ]
    assert key not in caplog.text
