"""What the cache routes of `local` refuse, and what a source that does not answer costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gyre.cell_agent.engine.base import EngineClient
from gyre.testkit.engine_server import RunningEngine, running_engine
from gyre.testkit.migration_world import KEY, PROMPT, continued, idle_engine, post
from gyre.testkit.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    model = make_tiny_model(tmp_path_factory.mktemp("model"))
    return model, model


@pytest.fixture(scope="module")
def engine(
    models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningEngine]:
    log = tmp_path_factory.mktemp("log") / "engine.log"
    with running_engine("local", models, log, migration_key=KEY) as running:
        yield running


@pytest.fixture
async def destination(engine: RunningEngine) -> AsyncIterator[EngineClient]:
    async with idle_engine(engine) as client:
        yield client


@pytest.mark.parametrize("key", ["", "x" * 64])
@pytest.mark.parametrize(
    "path", ["/announce_pins", "/pin_cache", "/unpin_cache", "/cache_blocks", "/pull_cache"]
)
async def test_without_the_jobs_key_nothing_is_given(
    destination: EngineClient, path: str, key: str
) -> None:
    assert (await post(destination, path, key, rid="a")).status_code == 401


async def test_an_engine_without_a_key_has_no_such_routes(
    models: tuple[Path, Path], tmp_path: Path
) -> None:
    with running_engine("local", models, tmp_path / "plain.log") as plain:
        async with EngineClient(plain.url) as client:
            assert (await post(client, "/pull_cache", "")).status_code == 404
            assert (await post(client, "/pull_cache")).status_code == 404


@pytest.mark.parametrize(
    "wrong",
    [
        {"input_ids": []},
        {"input_ids": ["a"]},
        {"input_ids": [5, 100_000]},
        {"source": "file:///etc/passwd"},
        {"deadline_s": 0},
        {"deadline_s": 1e9},
        {"deadline_s": True},
        {"rid": 5},
    ],
)
async def test_a_bad_request_for_a_copy_is_a_400(
    destination: EngineClient, wrong: dict[str, Any]
) -> None:
    body: dict[str, Any] = {"source": "http://127.0.0.1:9", "rid": "a", "input_ids": [5, 6]}
    body |= {"deadline_s": 1.0} | wrong
    assert (await post(destination, "/pull_cache", **body)).status_code == 400


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("/announce_pins", {"switch": "a"}),
        ("/announce_pins", {"num_executions": None}),
        ("/announce_pins", {"rids": [5]}),
        ("/announce_pins", {"pin_s": 0}),
        ("/pin_cache", {"input_ids": []}),
        ("/pin_cache", {"input_ids": [5, 100_000]}),
        ("/pin_cache", {"rid": None}),
        ("/pin_cache", {"pin_s": 1e9}),
    ],
)
async def test_a_bad_announcement_or_pin_is_a_400(
    destination: EngineClient, path: str, wrong: dict[str, Any]
) -> None:
    body: dict[str, Any] = {"rid": "a", "input_ids": [5, 6], "pin_s": 1.0}
    body |= {"switch": 1, "num_executions": 1, "rids": []} | wrong
    assert (await post(destination, path, **body)).status_code == 400


async def test_a_source_that_is_gone_or_silent_costs_no_more_than_the_deadline(
    destination: EngineClient,
) -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        for url in (f"http://127.0.0.1:{port}", "http://127.0.0.1:9"):
            body: dict[str, Any] = {"source": url, "rid": "a", "input_ids": PROMPT}
            body["deadline_s"] = 0.5
            began = time.monotonic()
            answer = (await post(destination, "/pull_cache", **body)).json()
            assert time.monotonic() - began < 3.0
            assert not answer["success"]
            assert answer["error"]
    assert (await continued(destination, PROMPT, "after-0")).cached_tokens == 0
