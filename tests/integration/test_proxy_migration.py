"""What a role switch does to a call's cached prefix: it goes along, or is computed again, and the
log says which. Never does it cost the call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.cell_agent.engine.base import EngineClient
from gyre.cell_agent.engine_turn import PIN_S
from gyre.contracts.events.calls import CallRecorded, CallRerouted
from gyre.testkit.engine_server import running_engine
from gyre.testkit.engine_use import drain, serve_weights, take_memory_again
from gyre.testkit.migration_world import models
from gyre.testkit.proxy_world import Facts, LocalEngine, RunningProxy, local_engine, running_proxy

__all__ = ["models"]

SLOW = ("--emulate-decode-tokens-per-s", "100")
LONG: dict[str, Any] = {"max_new_tokens": 300, "call_timeout_s": 30.0}
SAMPLED = 20
TRIES = 8
"""A random policy may end its turn before it can be moved: then another one is asked."""


@pytest.fixture(scope="module")
def fast_engine(
    models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalEngine]:
    log = tmp_path_factory.mktemp("migrating") / "engine.log"
    with local_engine(models[0], log) as running:
        yield running


@pytest.fixture
async def destination(fast_engine: LocalEngine) -> LocalEngine:
    """With an empty cache: what is found there was migrated."""
    async with EngineClient(fast_engine.url) as engine:
        await engine.flush_cache(5.0)
    return fast_engine


@pytest.fixture(scope="module")
def slow_engine(
    models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalEngine]:
    log = tmp_path_factory.mktemp("slow") / "engine.log"
    with local_engine(models[0], log, *SLOW) as running:
        yield running


@pytest.fixture
async def source(slow_engine: LocalEngine) -> LocalEngine:
    async with EngineClient(slow_engine.url) as engine:
        await take_memory_again(engine)
        await engine.resume()
    return slow_engine


@pytest.fixture
def log() -> MemoryEventLog:
    return MemoryEventLog()


@pytest.fixture
async def facts(models: tuple[Path, Path], log: MemoryEventLog) -> Facts:
    facts = Facts(Journal(log, SystemClock()))
    await facts.submit(models[0], **LONG)
    return facts


async def is_under_way(engine: EngineClient, asked: asyncio.Task[object]) -> bool:
    """Waits until the only call has come some way at `engine`; False if it ended before."""
    seen = 0
    while not asked.done():
        load = await engine.loads()
        if load["num_running_reqs"]:
            seen = seen or load["num_active_tokens"]
            if load["num_active_tokens"] >= seen + SAMPLED:
                return True
        await asyncio.sleep(0.01)
    return False


async def switched(
    served: RunningProxy,
    facts: Facts,
    source: LocalEngine,
    *,
    agent_first: bool = False,
    dies: bool = False,
) -> tuple[CallRecorded, CallRerouted, float]:
    """A call that ran at cell 0 when this cell left for training, as its agent does it; what was
    recorded of it, and how long the cell took to leave."""
    async with EngineClient(source.url) as engine:
        for attempt in range(TRIES):
            execution = f"job-test-g{attempt:04d}-e0"
            client = served.client(await facts.start(execution))
            asked = asyncio.create_task(client.chat(f"tell me story {attempt} " * 20))
            if await is_under_way(engine, asked):
                break
            await asked
        began = time.monotonic()
        if agent_first:
            await engine.abort(pin_s=PIN_S)
        moving = asyncio.create_task(facts.move(0, 1, execution))
        await drain(engine, 30.0)
        took = time.monotonic() - began
        await moving
        if dies:
            source.kill()
        await asked
    events = await facts.calls(execution)
    [call] = [event for event in events if isinstance(event, CallRecorded)]
    [moved] = [event for event in events if isinstance(event, CallRerouted)]
    assert call.outcome == "committed"
    assert call.num_reroutes == 1
    assert moved.tokens_kept > 0
    return call, moved, took


async def test_the_prefix_goes_along_and_the_source_may_die(
    log: MemoryEventLog,
    facts: Facts,
    models: tuple[Path, Path],
    destination: LocalEngine,
    tmp_path: Path,
) -> None:
    await facts.rollout(1, destination.url)
    with local_engine(models[0], tmp_path / "doomed.log", *SLOW) as doomed:
        await facts.rollout(0, doomed.url)
        async with running_proxy(log) as served:
            assert_went_along(*await switched(served, facts, doomed, dies=True))


async def test_the_prefix_goes_along_when_the_agent_saw_the_switch_first(
    log: MemoryEventLog, facts: Facts, source: LocalEngine, destination: LocalEngine
) -> None:
    await facts.rollout(0, source.url)
    await facts.rollout(1, destination.url)
    async with running_proxy(log) as served:
        assert_went_along(*await switched(served, facts, source, agent_first=True))


def assert_went_along(call: CallRecorded, moved: CallRerouted, took: float) -> None:
    migrated = call.num_input_tokens + moved.tokens_kept - 1
    assert moved.tokens_migrated == migrated
    assert moved.tokens_prefilled_again <= 0.1 * migrated
    assert 0 < moved.migration_s < PIN_S
    assert took < PIN_S
    assert {span.cell for span in call.spans} == {0, 1}


async def test_other_weights_at_the_destination_compute_it_again(
    log: MemoryEventLog,
    facts: Facts,
    source: LocalEngine,
    destination: LocalEngine,
    models: tuple[Path, Path],
) -> None:
    await facts.rollout(0, source.url)
    await facts.rollout(1, destination.url, version=1)
    async with EngineClient(destination.url) as engine:
        await serve_weights(engine, models[1], "0.1")
        async with running_proxy(log) as served:
            call, moved, took = await switched(served, facts, source)
        await serve_weights(engine, models[0], "0.0")
    assert moved.tokens_migrated == 0
    assert moved.tokens_prefilled_again == call.num_input_tokens + moved.tokens_kept
    assert took < PIN_S
    assert [(span.version, span.cell) for span in call.spans] == [(0, 0), (1, 1)]


async def test_an_engine_without_the_port_computes_it_again(
    log: MemoryEventLog,
    facts: Facts,
    source: LocalEngine,
    models: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    await facts.rollout(0, source.url)
    with running_engine("local", models, tmp_path / "plain.log") as plain:
        await facts.rollout(1, plain.url)
        async with running_proxy(log) as served:
            call, moved, took = await switched(served, facts, source)
    assert moved.tokens_migrated == 0
    assert moved.migration_s == 0
    assert moved.tokens_prefilled_again == call.num_input_tokens + moved.tokens_kept
    assert took < PIN_S


async def test_a_call_that_ends_leaves_no_pin_behind(
    log: MemoryEventLog, facts: Facts, source: LocalEngine
) -> None:
    await facts.rollout(0, source.url)
    async with running_proxy(log) as served, EngineClient(source.url) as engine:
        for attempt in range(TRIES):
            execution = f"job-test-g{attempt:04d}-e0"
            client = served.client(await facts.start(execution))
            body = {"messages": [{"role": "user", "content": f"tell me {attempt}"}]}
            asked = asyncio.create_task(client.post(body))
            if await is_under_way(engine, asked):
                break
            await asked
        began = time.monotonic()
        await facts.terminate(execution)
        assert (await asked).status_code == 503
        async with asyncio.timeout(PIN_S - 1):
            while await engine.num_requests() or await engine.num_pins():
                await asyncio.sleep(0.02)
        assert time.monotonic() - began < PIN_S
