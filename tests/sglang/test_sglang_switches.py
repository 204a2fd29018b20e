"""Calls over the real SGLang that must go on elsewhere, under other weights, or not at all.

SGLang cannot hand cached blocks over. A call that moves is prefilled again at its destination,
which costs time and is counted; the client sees nothing of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gyre.cell_agent import engine_turn
from gyre.cell_agent.engine.base import EngineClient
from gyre.cell_agent.phases import now
from gyre.contracts.events.calls import CallRecorded, CallRerouted
from gyre.testkit.engine_fixtures import SharedEngines
from gyre.testkit.engine_use import serve_weights
from gyre.testkit.proxy_world import Client, local_engine
from gyre.testkit.sglang_reference import TOLERANCE, Reference, furthest
from gyre.testkit.sglang_world import (
    PATIENCE_S,
    SglangWorld,
    is_under_way,
    sglang_world,
    until_idle,
)

MAX_NEW_TOKENS = 1000
TRIES = 8
"""A random policy may end its turn before it can be moved: then another one is asked."""


@pytest.fixture
async def world(
    models: tuple[Path, Path], first: EngineClient, tmp_path: Path
) -> AsyncIterator[SglangWorld]:
    """The first server is cell 0."""
    async with sglang_world(tmp_path, models[0], max_new_tokens=MAX_NEW_TOKENS) as running:
        await running.facts.rollout(0, first.base_url)
        yield running


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    """A call that something befell before it ended, whole all the same. moves: recorded ones."""

    execution: str
    client: Client
    call: CallRecorded
    moves: list[CallRerouted]


async def struck(
    world: SglangWorld,
    engine: EngineClient,
    *,
    prepare: Callable[[], Awaitable[object]],
    strike: Callable[[str], Awaitable[object]],
) -> Struck:
    """A call on cell 0, whose engine has sampled some 20 tokens of it when `strike` is called with
    its execution. prepare: makes everything as it was before a strike."""
    for number in range(TRIES):
        await prepare()
        await world.facts.rollout(0, engine.base_url)
        execution, client = await world.start()
        asked = asyncio.create_task(client.chat(f"tell me story {number} " * 20))
        if await is_under_way(engine, asked):
            await strike(execution)
        await asked
        call, moves = await recorded(world, execution)
        if len(call.spans) > 1:
            return Struck(execution=execution, client=client, call=call, moves=moves)
    raise AssertionError(f"{TRIES} calls ended before they were struck")


async def recorded(world: SglangWorld, execution: str) -> tuple[CallRecorded, list[CallRerouted]]:
    """The execution's one call, whole, and its moves."""
    [call] = await world.calls(execution)
    assert call.outcome == "committed"
    assert len(call.output_logprobs) == len(call.output_ids)
    covered = [index for span in call.spans for index in range(span.start, span.end)]
    assert covered == list(range(len(call.output_ids)))
    return call, await world.moves(execution)


async def assert_as_one_run(world: SglangWorld, met: Struck, *references: Reference) -> None:
    """Each span's tokens have the logprobs that its own reference has after all before them."""
    tree = await world.facts.tree(met.execution)
    context = tree.context_tokens(met.call.node)
    for span, reference in zip(met.call.spans, references, strict=True):
        judged = reference.logprobs(context, met.call.output_ids)[span.start : span.end]
        told = met.call.output_logprobs[span.start : span.end]
        assert furthest(told, judged) < TOLERANCE, span


def assert_prefilled_again(met: Struck) -> None:
    """It moved from cell 0 to cell 1 in its middle, its tokens kept, nothing copied."""
    [moved] = met.moves
    assert (moved.reason, moved.source, moved.destination) == ("transition", 0, 1)
    assert [span.cell for span in met.call.spans] == [0, 1]
    assert moved.tokens_kept == met.call.spans[0].end > 0
    assert moved.tokens_migrated == 0
    assert moved.tokens_prefilled_again == met.call.num_input_tokens + moved.tokens_kept


def assert_told_once(world: SglangWorld, met: Struck) -> None:
    """The log has one line that says why nothing was copied: SGLang has no such route."""
    lines = [*world.said("cache_not_migrated"), *world.said("cache_migrated")]
    [line] = [line for line in lines if line["execution"] == met.execution]
    assert "HTTP 404" in (line.get("reason") or line["error"])


async def test_a_role_switch_between_two_servers_keeps_the_tokens_and_prefills_again(
    world: SglangWorld,
    first: EngineClient,
    second: EngineClient,
    models: tuple[Path, Path],
    references: tuple[Reference, Reference],
) -> None:
    await world.facts.rollout(1, second.base_url)

    async def leave(execution: str) -> None:
        await world.facts.move(0, 1, execution)
        await until_idle(first)
        # As the cell's agent makes it ready for the trainer, and lets it serve again.
        await engine_turn.stop_admitting(first, now())
        await engine_turn.release(first)
        if await engine_turn.take_back(first):
            await first.update_weights_from_disk(str(models[0]), weight_version="0.0")
        await engine_turn.warm(first)

    met = await struck(world, first, prepare=second.flush_cache, strike=leave)
    assert_prefilled_again(met)
    assert_told_once(world, met)
    await assert_as_one_run(world, met, references[0], references[0])
    await met.client.chat("and then?")
    after = (await world.calls(met.execution, calls=2))[1]
    known = met.call.num_input_tokens + len(met.call.output_ids)
    assert after.num_cached_tokens >= known - 1


async def test_a_role_switch_to_the_other_kind_of_engine_is_no_different(
    world: SglangWorld,
    first: EngineClient,
    models: tuple[Path, Path],
    references: tuple[Reference, Reference],
    tmp_path: Path,
) -> None:
    with local_engine(models[0], tmp_path / "local.log", "--context-length", "2048") as local:
        await world.facts.rollout(1, local.url)
        async with EngineClient(local.url) as destination:
            met = await struck(
                world,
                first,
                prepare=destination.flush_cache,
                strike=lambda execution: world.facts.move(0, 1, execution),
            )
    assert_prefilled_again(met)
    assert_told_once(world, met)
    await assert_as_one_run(world, met, references[0], references[0])


async def test_a_publication_in_mid_call_is_two_spans_of_one_turn(
    world: SglangWorld,
    first: EngineClient,
    models: tuple[Path, Path],
    references: tuple[Reference, Reference],
) -> None:
    async def publish(execution: str) -> None:
        await serve_weights(first, models[1], "0.1")

    async def withdraw() -> None:
        await serve_weights(first, models[0], "0.0")

    met = await struck(world, first, prepare=withdraw, strike=publish)
    assert met.moves == []
    assert [(span.lineage, span.version) for span in met.call.spans] == [(0, 0), (0, 1)]
    await assert_as_one_run(world, met, *references)


async def test_a_client_that_leaves_stops_its_request_in_the_server(
    world: SglangWorld, first: EngineClient
) -> None:
    for _ in range(TRIES):
        execution, client = await world.start()
        asked = asyncio.create_task(client.chat("tell me a story " * 20))
        await is_under_way(first, asked)
        asked.cancel()
        await until_idle(first)
        [call] = await world.calls(execution)
        if call.outcome == "aborted":
            break
    # Others ended while the proxy still held them for the client's retry.
    assert call.outcome == "aborted"
    assert 0 < len(call.output_ids) < MAX_NEW_TOKENS
    assert len(call.output_logprobs) == len(call.output_ids)


async def knock(url: str) -> None:
    """Waits until somebody has asked again, in vain, at the place of an engine that is gone."""
    knocked = asyncio.Event()

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write_eof()
        await reader.read()  # to the end: whoever asked has seen that nobody answers
        writer.close()
        knocked.set()

    listener = await asyncio.start_server(hang_up, "127.0.0.1", int(url.rpartition(":")[2]))
    async with listener, asyncio.timeout(PATIENCE_S):
        await knocked.wait()


async def test_a_killed_server_loses_no_token_that_it_sent(
    world: SglangWorld,
    first: EngineClient,
    shared_engines: SharedEngines,
    references: tuple[Reference, Reference],
) -> None:
    doomed = shared_engines.alive("sglang", 1)

    async def kill(execution: str) -> None:
        doomed.kill()
        await knock(doomed.url)
        await world.facts.rollout(1, first.base_url)
        await world.facts.move(0, 1, execution)

    async def is_alive() -> None:
        assert doomed.process.poll() is None, "the call ended before its server was killed"

    async with EngineClient(doomed.url) as source:
        met = await struck(world, source, prepare=is_alive, strike=kill)
        assert not await source.health()
    [moved] = met.moves
    assert moved.reason == "engine_lost"
    assert moved.tokens_kept == met.call.spans[0].end > 0
    assert [span.cell for span in met.call.spans] == [0, 1]
    await assert_as_one_run(world, met, references[0], references[0])
