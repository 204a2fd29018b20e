"""What would kill SGLang, or what it refuses, never reaches it from a client, and is the client's
vendor's own error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gyre.cell_agent.engine.base import EngineClient, EngineRefusedError
from gyre.testkit.engine_server import CONTEXT_TOKENS, SERVED_TOKENS
from gyre.testkit.proxy_world import Client
from gyre.testkit.sglang_world import (
    SglangWorld,
    num_requests_served,
    sglang_world,
    until_idle,
)
from gyre.testkit.tiny_model import make_tiny_model, make_tiny_tokenizer

TEXT = Path(__file__).read_text()
PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/responses")


@pytest.fixture
async def world(
    models: tuple[Path, Path], first: EngineClient, tmp_path: Path
) -> AsyncIterator[SglangWorld]:
    async with sglang_world(tmp_path, models[0], max_new_tokens=32) as running:
        await running.facts.rollout(0, first.base_url)
        yield running


def asking(path: str, text: str) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "policy"}
    if path == "/v1/responses":
        return body | {"input": text}
    return body | {"max_tokens": 32, "messages": [{"role": "user", "content": text}]}


async def assert_serves(world: SglangWorld) -> None:
    """A new execution's call is answered."""
    _, client = await world.start()
    await client.chat("are you there?")


@pytest.mark.parametrize("path", PATHS)
async def test_a_context_that_is_too_long_is_the_vendors_error_and_asks_no_server(
    world: SglangWorld, first: EngineClient, path: str
) -> None:
    await assert_serves(world)
    before = await num_requests_served(first)
    assert before > 0
    _, client = await world.start()
    body = asking(path, "word " * 2 * SERVED_TOKENS)
    headers = {"Authorization": f"Bearer {client.key}"}
    refused = await world.http.post(path, json=body, headers=headers)
    assert refused.status_code == 400
    assert refused.json()["error"].get("code", "context_length_exceeded") == (
        "context_length_exceeded"
    )
    assert await num_requests_served(first) == before
    await assert_serves(world)


async def test_the_last_token_that_a_context_has_room_for_is_served(world: SglangWorld) -> None:
    execution, client = await world.start()
    headers = {"Authorization": f"Bearer {client.key}"}

    async def num_tokens(count: int) -> int:
        body = asking("/v1/messages", "a\n" * count)
        answer = await world.http.post("/v1/messages/count_tokens", json=body, headers=headers)
        found: int = answer.json()["input_tokens"]
        return found

    few, more = await num_tokens(10), await num_tokens(20)
    each = (more - few) // 10
    count = 10 + (SERVED_TOKENS - 1 - few) // each
    room = SERVED_TOKENS - await num_tokens(count)
    assert 1 <= room <= each
    body = asking("/v1/messages", "a\n" * count)
    answer = await world.http.post("/v1/messages", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    [call] = await world.calls(execution)
    assert call.outcome == "committed"
    assert call.num_input_tokens == SERVED_TOKENS - room
    assert 1 <= len(call.output_ids) <= room


async def test_an_input_that_the_engine_finds_too_long_is_refused_at_once(
    models: tuple[Path, Path], first: EngineClient, tmp_path: Path
) -> None:
    """SGLang says so in a stream of status 200, with a token that nothing was sampled for."""
    async with sglang_world(tmp_path, models[0], context_tokens=CONTEXT_TOKENS) as world:
        await world.facts.rollout(0, first.base_url)
        execution, client = await world.start()
        headers = {"Authorization": f"Bearer {client.key}"}
        body = asking("/v1/messages", "a\n" * 1000)
        few = await world.http.post("/v1/messages/count_tokens", json=body, headers=headers)
        missing = CONTEXT_TOKENS - 1 - int(few.json()["input_tokens"])
        body = asking("/v1/messages", "a\n" * (1000 + missing // 2))
        refused = await world.http.post("/v1/messages", json=body, headers=headers)
        [call] = await world.calls(execution)
    assert refused.status_code == 500
    assert call.num_input_tokens > SERVED_TOKENS
    assert (call.outcome, call.output_ids) == ("failed", ())
    assert "exceeds the maximum allowed length" in (call.error or "")
    assert await first.health()


async def test_equal_requests_at_once_are_two_in_the_server(
    world: SglangWorld, first: EngineClient
) -> None:
    execution, client = await world.start()
    twin = Client(world.http, client.key)
    await asyncio.gather(client.chat("the same"), twin.chat("the same"))
    calls = await world.calls(execution, calls=2)
    assert [call.outcome for call in calls] == ["committed"] * 2
    tree = await world.facts.tree(execution)
    nodes = [tree.node(call.node) for call in calls]
    assert nodes[0].parent == nodes[1].parent
    assert nodes[0].id != nodes[1].id


async def test_a_rid_that_is_taken_is_refused_and_the_server_lives(
    world: SglangWorld, first: EngineClient
) -> None:
    long = {"temperature": 1.0, "max_new_tokens": 1000, "ignore_eos": True}
    running = asyncio.create_task(
        first.generate(input_ids=[5, 6, 7], sampling_params=long, rid="0" * 32)
    )
    while not await first.num_requests():
        await asyncio.sleep(0.01)
    with pytest.raises(EngineRefusedError, match="Duplicate"):
        await first.generate(input_ids=[5, 6, 7], sampling_params=long, rid="0" * 32)
    await first.abort("0" * 32)
    assert (await running).finish_type == "abort"
    await until_idle(first)
    await assert_serves(world)


async def test_a_token_beyond_the_models_vocabulary_is_never_sent(
    first: EngineClient, tmp_path: Path
) -> None:
    """It would end the server. The model has 512 tokens, its tokenizer knows more."""
    model = make_tiny_model(tmp_path / "model", seed=0)
    make_tiny_tokenizer(900, (TEXT,)).save_pretrained(str(model))
    async with sglang_world(tmp_path / "world", model, max_new_tokens=8) as world:
        await world.facts.rollout(0, first.base_url)
        _, client = await world.start()
        before = await num_requests_served(first)
        refused = await client.post(asking(PATHS[0], TEXT))
        assert refused.status_code == 500
        [line] = world.said("model_files_unread")
        assert "vocab_size is 512" in line["error"]
        assert await num_requests_served(first) == before
    assert await first.health()
