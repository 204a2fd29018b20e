"""Two `local` engines between which cached prefixes move, and what a test does with them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from aiohttp import web

from gyre.cell_agent.engine.base import EngineClient, Generation
from gyre.cell_agent.engine.local.pulling import HEADER
from gyre.testkit.engine_server import RunningEngine, running_engine
from gyre.testkit.engine_use import serve_weights, take_memory_again
from gyre.testkit.served_app import served
from gyre.testkit.tiny_model import make_two_tiny_models

KEY = "k" * 64
PROMPT = [10 + index % 400 for index in range(700)]
SAMPLING = {"temperature": 1.0, "max_new_tokens": 1200, "ignore_eos": True}
GREEDY = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
DEADLINE_S = 30.0


@asynccontextmanager
async def idle_engine(engine: RunningEngine) -> AsyncIterator[EngineClient]:
    """A client of an engine that serves `models[0]` as w0, idle, with an empty cache."""
    async with EngineClient(engine.url) as client:
        await take_memory_again(client)
        await client.resume()
        await client.abort()
        await serve_weights(client, engine.models[0], "w0")
        yield client


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("migration_models")
    return make_two_tiny_models(root)


@pytest.fixture(scope="module")
def pair(
    models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningEngine, RunningEngine]]:
    logs = tmp_path_factory.mktemp("migration_logs")
    with (
        running_engine("local", models, logs / "0.log", migration_key=KEY) as first,
        running_engine("local", models, logs / "1.log", migration_key=KEY) as second,
    ):
        yield first, second


@pytest.fixture
async def source(pair: tuple[RunningEngine, RunningEngine]) -> AsyncIterator[EngineClient]:
    async with idle_engine(pair[0]) as client:
        yield client


@pytest.fixture
async def destination(pair: tuple[RunningEngine, RunningEngine]) -> AsyncIterator[EngineClient]:
    async with idle_engine(pair[1]) as client:
        yield client


async def post(client: EngineClient, path: str, key: str = KEY, **body: Any) -> httpx.Response:
    """To a cache route; without a bearer when `key` is empty."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(base_url=client.base_url, timeout=DEADLINE_S) as http:
        return await http.post(path, json=body, headers=headers)


async def cut(client: EngineClient, rid: str, *, pin_s: float | None = 20.0) -> Generation:
    """A call of PROMPT that is aborted, and pinned, after some 20 tokens."""
    stream = client.stream(input_ids=PROMPT, sampling_params=SAMPLING, rid=rid)
    last = None
    aborted = False
    async for last in stream:
        if not aborted and len(last.output_ids) >= 20:
            aborted = True
            await client.abort(rid, pin_s=pin_s)
    assert last is not None
    assert last.finish_type == "abort"
    return last


async def pull(
    destination: EngineClient, source: EngineClient, rid: str, tokens: list[int], **extra: Any
) -> dict[str, Any]:
    """The destination's answer to a request for what `source` has pinned of `tokens`."""
    body: dict[str, Any] = {"source": source.base_url, "rid": rid, "input_ids": tokens}
    body |= {"deadline_s": 10.0} | extra
    response = await post(destination, "/pull_cache", **body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def continued(client: EngineClient, tokens: list[int], rid: str) -> Generation:
    """The call goes on: 8 greedy tokens."""
    return await client.generate(input_ids=tokens, sampling_params=GREEDY, rid=rid)


@asynccontextmanager
async def relay(
    source: EngineClient, spoil: Callable[[bytes], bytes]
) -> AsyncIterator[EngineClient]:
    """Stands before `source` and passes its blocks on as `spoil` leaves them, then breaks off."""

    async def blocks(request: web.Request) -> web.StreamResponse:
        real = await post(source, "/cache_blocks", **orjson.loads(await request.read()))
        response = web.StreamResponse(headers={HEADER: real.headers[HEADER]})
        await response.prepare(request)
        await response.write(spoil(real.content))
        assert request.transport is not None
        request.transport.close()
        return response

    app = web.Application()
    app.router.add_post("/cache_blocks", blocks)
    async with served(web.AppRunner(app)) as url, EngineClient(url) as client:
        yield client
