"""Bad clients: too much, too slow, too odd, or not who they say. Each gets its vendor's 4xx or its
overload answer, and others notice nothing."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from gyre.adapters.clock import SystemClock
from gyre.adapters.collection import no_collection
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.proxy.app import APIS
from gyre.testkit.hostile_bodies import VALID
from gyre.testkit.patient_engine import PatientEngine, patient_engine
from gyre.testkit.proxy_world import CONTEXT_TOKENS, Facts, RunningProxy, running_proxy
from gyre.testkit.tiny_model import make_tiny_model

EXECUTION, OTHER = "job-test-g0000-e0", "job-test-g0000-e1"
CHAT = "/v1/chat/completions"
PATHS = sorted(APIS)
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("proxy_hostile") / "m", seed=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    facts: Facts
    engine: PatientEngine
    served: RunningProxy
    key: str
    other: str

    async def post(self, path: str, content: bytes, key: str, **headers: str) -> httpx.Response:
        sent = {"x-api-key": key, "authorization": f"Bearer {key}", **headers}
        return await self.served.http.post(path, content=content, headers=sent)

    async def refused(self, path: str, content: bytes, *statuses: int, key: str = "") -> str:
        """Posts what must be refused; checks the error's shape and that others are served."""
        answer = await self.post(path, content, key or self.key)
        assert answer.status_code in statuses, answer.text
        message = answer.json()["error"]["message"]
        assert isinstance(message, str)
        assert (answer.json().get("type") == "error") == (path == "/v1/messages")
        assert await self.facts.calls(EXECUTION) == []
        good = await self.post(CHAT, orjson.dumps(HI), self.other)
        assert good.status_code == 200, good.text
        return message


@asynccontextmanager
async def world(
    model: Path, *, context_tokens: int = CONTEXT_TOKENS, **limits: float
) -> AsyncIterator[World]:
    log = MemoryEventLog()
    facts = Facts(Journal(log, SystemClock()))
    await facts.submit(model, context_tokens=context_tokens)
    async with patient_engine(model) as engine, running_proxy(log, None, **limits) as served:
        engine.go.set()
        await facts.rollout(0, engine.url)
        key, other = await facts.start(EXECUTION), await facts.start(OTHER)
        yield World(facts=facts, engine=engine, served=served, key=key, other=other)


@pytest.mark.parametrize("path", PATHS)
async def test_only_the_running_attempts_own_key_is_served(path: str, model: Path) -> None:
    body = orjson.dumps(VALID[path])
    async with world(model, key_patience_s=0.05) as w:
        await w.facts.start(EXECUTION, attempt=2)
        forged = w.key[:-4] + "0000"
        renamed = w.other.replace(OTHER, EXECUTION)
        later = w.facts.key(EXECUTION, attempt=3)
        others = Facts(w.facts.journal, job="other-job").key(EXECUTION, attempt=2)
        refused = (w.key, forged, renamed, later, others)
        for key in (*refused, "none", "gyre_", "gyre_a.b.1.x", "é" * 9):
            answer = await w.served.http.post(
                path, content=body, headers={b"authorization": f"Bearer {key}".encode()}
            )
            assert answer.status_code == 401, (key, answer.text)
            assert isinstance(answer.json()["error"]["message"], str)
            assert "x-should-retry" not in answer.headers
        assert (await w.served.http.post(path, content=body)).status_code == 401
        assert await w.facts.calls(EXECUTION) == []
        mine = await w.post(path, body, w.facts.key(EXECUTION, attempt=2), **{"x-run": OTHER})
        assert mine.status_code == 200
        assert len(await w.facts.calls(EXECUTION)) == 1
        assert await w.facts.calls(OTHER) == []


@pytest.mark.parametrize("path", PATHS)
async def test_odd_bodies_are_refused_in_the_vendors_shape(path: str, model: Path) -> None:
    valid = orjson.dumps(VALID[path])
    async with world(model) as w:
        for body in (
            b"",
            b"[]",
            b"null",
            b"{",
            b"\xff\xfe",
            b"[" * 100_000,
            valid.replace(b'"hi"', b'"\\ud800"'),
            valid.replace(b'"hi"', b'"\xed\xa0\x80"'),
            valid.replace(b'"hi"', b"NaN"),
            valid.replace(b'"hi"', b"1e999"),
            valid.replace(b'"user"', b'"nobody"', 1),
            valid.replace(b'"x":"SCHEMA"', b'"x":' + b'{"a":' * 700 + b"1" + b"}" * 700),
        ):
            await w.refused(path, body, 400)


@pytest.mark.parametrize("path", PATHS)
async def test_a_body_that_is_too_large_is_refused_unread(path: str, model: Path) -> None:
    async with world(model, max_body_bytes=100_000) as w:
        big = orjson.dumps(VALID[path] | {"x": "a" * 200_000})
        await w.refused(path, big, 413)

        async def chunks() -> AsyncIterator[bytes]:
            for start in range(0, len(big), 10_000):
                yield big[start : start + 10_000]

        key = {"authorization": f"Bearer {w.key}"}
        assert (await w.served.http.post(path, content=chunks(), headers=key)).status_code == 413
        bomb = gzip.compress(b" " * 50_000_000)
        zipped = key | {"content-encoding": "gzip"}
        assert (await w.served.http.post(path, content=bomb, headers=zipped)).status_code == 413
        broken = await w.served.http.post(path, content=b"no gzip", headers=zipped)
        assert broken.status_code == 400


async def test_ten_thousand_tools_are_refused(model: Path) -> None:
    async with world(model) as w:
        tool = {"name": "n" * 100, "description": "d", "parameters": {"type": "object"}}
        tools = [{"type": "function", "function": tool}] * 10_000
        assert "tools" in await w.refused(CHAT, orjson.dumps(HI | {"tools": tools}), 400)
        body = VALID["/v1/messages"]
        tools = [{**body["tools"][0], "name": f"n{index}"} for index in range(10_000)]
        await w.refused("/v1/messages", orjson.dumps(body | {"tools": tools}), 400)


@pytest.mark.parametrize("path", PATHS)
async def test_beyond_its_share_an_execution_is_told_to_come_later(path: str, model: Path) -> None:
    body = orjson.dumps(VALID[path] | {"stream": False})
    async with world(model, max_execution_calls=2, max_calls=3) as w:
        w.engine.go.clear()
        held = [asyncio.create_task(w.post(path, body, w.key)) for _ in range(2)]
        await w.engine.until_asked(2)
        late = await w.post(path, body, w.key)
        held.append(asyncio.create_task(w.post(path, body, w.other)))
        await w.engine.until_asked(3)
        full = await w.post(path, body, w.other)
        for answer in (late, full):
            assert answer.status_code == (529 if path == "/v1/messages" else 503), answer.text
            assert 0 < float(answer.headers["retry-after"]) <= 60
        w.engine.go.set()
        assert [(await answer).status_code for answer in held] == [200, 200, 200]
        assert (await w.post(path, body, w.key)).status_code == 200
        assert len(await w.facts.calls(EXECUTION)) == 3


@pytest.mark.parametrize("tail", [[], [{"role": "assistant", "content": "x"}]])
async def test_a_long_text_holds_up_no_other_execution(
    tail: list[dict[str, Any]], model: Path
) -> None:
    body = {"messages": [{"role": "user", "content": "some words " * 100_000}, *tail]}
    async with world(model, context_tokens=200_000) as w:
        long = asyncio.create_task(w.post(CHAT, orjson.dumps(body), w.key))
        await asyncio.sleep(0.05)
        for _ in range(3):
            assert (await w.served.http.get("/healthz")).status_code == 200
            assert (await w.post(CHAT, orjson.dumps(HI), w.other)).status_code == 200
        assert not long.done()
        assert (await long).status_code == 400


async def gaps_during(work: Awaitable[httpx.Response]) -> tuple[list[float], float]:
    """How long at a time the loop did nothing else while `work` was done, and how long it took."""
    loop = asyncio.get_running_loop()
    gaps: list[float] = []

    async def tick() -> None:
        while True:
            before = loop.time()
            await asyncio.sleep(0.005)
            gaps.append(loop.time() - before)

    ticking = asyncio.create_task(tick())
    began = loop.time()
    assert (await work).status_code in (200, 400)
    took = loop.time() - began
    ticking.cancel()
    return gaps, took


async def test_many_small_messages_hold_up_no_other_execution(model: Path) -> None:
    body = orjson.dumps({"messages": [{"role": "user", "content": ""}] * 1200})
    # The proxy is in this process, whose collector looks through what all tests have left.
    with no_collection():
        async with world(model, context_tokens=200_000) as w:
            gaps, took = await gaps_during(w.post(CHAT, body, w.key))
    assert max(gaps) < took / 2


@pytest.mark.parametrize("path", PATHS)
async def test_more_messages_than_are_served_are_refused(path: str, model: Path) -> None:
    body = VALID[path]
    name = "input" if path == "/v1/responses" else "messages"
    said = {"role": "user", "content": "hi"}
    async with world(model, max_messages=20) as w:
        many = orjson.dumps(body | {name: [said] * 21, "instructions": None, "system": []})
        await w.refused(path, many, 413)


@pytest.mark.parametrize("path", PATHS)
async def test_packed_bodies_are_read_within_bounds(path: str, model: Path) -> None:
    plain = orjson.dumps(VALID[path])
    async with world(model, max_body_bytes=100_000) as w:

        async def said(content: bytes, coding: str) -> int:
            answer = await w.post(path, content, w.key, **{"content-encoding": coding})
            if answer.status_code != 200:
                assert isinstance(answer.json()["error"]["message"], str)
            return answer.status_code

        assert await said(gzip.compress(plain), "gzip") == 200
        assert await said(zlib.compress(plain), "deflate") == 200
        assert await said(plain, "identity") == 200
        assert await said(gzip.compress(b" " * 100_001), "gzip") == 413
        assert await said(gzip.compress(plain)[:-9], "gzip") == 400
        assert await said(gzip.compress(gzip.compress(plain)), "gzip") == 400
        assert await said(plain, "gzip") == 400
        for coding in ("br", "zstd", "gzip, gzip", "nonsense"):
            assert await said(plain, coding) == 415


async def slowly(w: World, *parts: bytes) -> bytes:
    """What the proxy says to a client that sends `parts` and then nothing, up to its close."""
    host, port = w.served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for part in parts:
        writer.write(part)
        await writer.drain()
    async with asyncio.timeout(15):
        said = await reader.read()
    writer.close()
    return said


async def test_a_client_that_dribbles_is_closed_and_nobody_waits_for_it(model: Path) -> None:
    async with world(model, body_timeout_s=0.3, idle_timeout_s=0.5) as w:
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {w.key}\r\n"
            "Content-Length: 500\r\n"
        ).encode()
        body, header = await asyncio.gather(
            slowly(w, head, b"\r\n", b'{"messages"'), slowly(w, head)
        )
        assert body.startswith(b"HTTP/1.1 408 ")
        assert b"within 0.3 s" in body
        assert header == b""
        assert (await w.post(CHAT, orjson.dumps(HI), w.key)).status_code == 200


async def test_bodies_under_way_have_a_share_of_memory(model: Path) -> None:
    async with world(model, max_buffered_bytes=1000, body_timeout_s=0.5) as w:
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {w.key}\r\n"
            "Content-Length: 5000\r\n\r\n"
        ).encode()
        said = await slowly(w, head, b" " * 1500)
        assert said.startswith(b"HTTP/1.1 503 ")
        assert (await w.post(CHAT, orjson.dumps(HI), w.key)).status_code == 200


@pytest.mark.parametrize("path", ["/v1/nothing", "/", "/v1/messages/batches"])
async def test_what_is_not_served_is_not_found(path: str, model: Path) -> None:
    async with world(model) as w:
        assert (await w.post(path, b"{}", w.key)).status_code == 404
        assert (await w.served.http.get(CHAT)).status_code == 405
