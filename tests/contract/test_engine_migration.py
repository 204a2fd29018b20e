"""Cached prefixes copied between two processes of `local`: pin, cancel, copy, confirm, release."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gyre.cell_agent.engine.base import EngineClient, Generation
from gyre.cell_agent.engine.local.blocks import BLOCK_TOKENS
from gyre.testkit.engine_server import running_engine
from gyre.testkit.engine_use import drain, serve_weights
from gyre.testkit.migration_world import (
    DEADLINE_S,
    KEY,
    PROMPT,
    SAMPLING,
    continued,
    cut,
    destination,
    models,
    pair,
    post,
    pull,
    relay,
    source,
)

__all__ = ["destination", "models", "pair", "source"]


async def test_a_migrated_prefix_is_cached_at_the_destination_and_the_source_may_die(
    models: tuple[Path, Path], destination: EngineClient, tmp_path: Path
) -> None:
    with running_engine("local", models, tmp_path / "doomed.log", migration_key=KEY) as doomed:
        async with EngineClient(doomed.url) as source:
            partial = await cut(source, "move-00")
            tokens = [*PROMPT, *partial.output_ids]
            told = await continued(source, tokens, "same-00")
            answer = await pull(destination, source, "move-00", tokens)
            doomed.kill()
    assert answer["success"], answer
    answered = await continued(destination, tokens, "move-01")
    migrated = len(tokens) - 1
    assert answer["copied_tokens"] == answer["cached_tokens"] == migrated
    assert answer["copied_bytes"] > migrated * 2 * 2 * 2 * 16 * 4
    assert answered.cached_tokens >= 0.9 * migrated
    assert answered.output_ids == told.output_ids
    assert answered.logprobs == pytest.approx(told.logprobs, abs=1e-3)


async def test_without_a_copy_the_destination_prefills_all_of_it(
    source: EngineClient, destination: EngineClient
) -> None:
    partial = await cut(source, "cold-00")
    answered = await continued(destination, [*PROMPT, *partial.output_ids], "cold-01")
    assert answered.cached_tokens == 0


async def test_what_the_destination_has_is_not_copied_again(
    source: EngineClient, destination: EngineClient
) -> None:
    await continued(destination, PROMPT[:600], "have-00")
    partial = await cut(source, "have-01")
    tokens = [*PROMPT, *partial.output_ids]
    answer = await pull(destination, source, "have-01", tokens)
    assert answer["copied_tokens"] == len(tokens) - 1 - 600
    assert answer["cached_tokens"] == len(tokens) - 1


@pytest.mark.parametrize("published", ["source", "destination"])
async def test_a_publication_between_pin_and_copy_makes_the_prefix_useless(
    published: str,
    source: EngineClient,
    destination: EngineClient,
    models: tuple[Path, Path],
) -> None:
    partial = await cut(source, "old-000")
    tokens = [*PROMPT, *partial.output_ids]
    at = source if published == "source" else destination
    # Without a flush the blocks are still there: only their version keeps them from being used.
    await serve_weights(at, models[1], "w1", flush_cache=False)
    answer = await pull(destination, source, "old-000", tokens)
    assert not answer["success"]
    assert answer["copied_tokens"] == 0
    assert (await continued(destination, tokens, "old-001")).cached_tokens == 0


async def test_a_publication_between_copy_and_call_makes_the_prefix_useless(
    source: EngineClient, destination: EngineClient, models: tuple[Path, Path]
) -> None:
    partial = await cut(source, "late-00")
    tokens = [*PROMPT, *partial.output_ids]
    assert (await pull(destination, source, "late-00", tokens))["success"]
    await serve_weights(destination, models[1], "w1", flush_cache=False)
    answered = await continued(destination, tokens, "late-01")
    assert answered.cached_tokens == 0
    assert answered.weight_version == "w1"


async def test_a_pin_that_nobody_releases_expires(
    source: EngineClient, destination: EngineClient
) -> None:
    partial = await cut(source, "pin-000", pin_s=1.0)
    assert await source.num_pins() == 1
    async with asyncio.timeout(DEADLINE_S):
        while await source.num_pins():
            await asyncio.sleep(0.02)
    answer = await pull(destination, source, "pin-000", [*PROMPT, *partial.output_ids])
    assert not answer["success"]
    assert "410" in answer["error"]


async def test_a_released_pin_is_gone(source: EngineClient) -> None:
    await cut(source, "rel-000")
    assert await source.num_pins() == 1
    for _ in range(2):
        assert (await post(source, "/unpin_cache", rid="rel-000")).status_code == 200
    assert await source.num_pins() == 0


async def test_a_drain_waits_for_pins_but_never_longer_than_their_deadline(
    source: EngineClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def call(rid: str) -> Generation:
        return await source.generate(input_ids=PROMPT, sampling_params=SAMPLING, rid=rid)

    for rid, released, pin_s in (("drain-0", True, 20.0), ("drain-1", False, 2.0)):
        monkeypatch.setattr("gyre.cell_agent.engine_turn.PIN_S", pin_s)
        running = asyncio.create_task(call(rid))
        while not (await source.loads())["num_running_reqs"]:
            await asyncio.sleep(0.01)
        began = time.monotonic()
        draining = asyncio.create_task(drain(source, 30.0))
        assert (await running).finish_type == "abort"
        assert await source.num_pins() == 1
        assert not draining.done()
        if released:
            await post(source, "/unpin_cache", rid=rid)
        await draining
        took = time.monotonic() - began
        assert took < pin_s if released else pin_s <= took < pin_s + 5.0
        assert await source.num_pins() == 0
        await source.resume_memory()
        await source.resume()


async def test_tokens_of_another_conversation_are_not_taken(
    source: EngineClient, destination: EngineClient
) -> None:
    partial = await cut(source, "other-0")
    others = [*PROMPT, *partial.output_ids]
    others[3] += 1
    answer = await pull(destination, source, "other-0", others)
    assert not answer["success"]
    assert answer["error"] == "the pinned tokens are others"


def cut_off(content: bytes) -> bytes:
    return content[: len(content) // 2]


def spoilt(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("spoil", [cut_off, spoilt])
async def test_of_a_copy_that_breaks_the_whole_blocks_before_it_are_kept(
    source: EngineClient, destination: EngineClient, spoil: Callable[[bytes], bytes]
) -> None:
    partial = await cut(source, "broken-0")
    tokens = [*PROMPT, *partial.output_ids]
    async with relay(source, spoil) as between:
        answer = await pull(destination, between, "broken-0", tokens)
    assert not answer["success"]
    assert answer["copied_tokens"] == answer["cached_tokens"] == BLOCK_TOKENS
    answered = await continued(destination, tokens, "broken-1")
    assert answered.cached_tokens == BLOCK_TOKENS
    assert answered.output_ids == (await continued(source, tokens, "broken-2")).output_ids
