"""A role switch while an execution's tool runs: its cached prefix goes along, and its next call
finds it or computes it again; the log says which. Never does it cost the call."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.cell_agent.engine.base import EngineClient
from gyre.cell_agent.engine_turn import PIN_S
from gyre.contracts.events.calls import CallRecorded, CallRerouted, CallsSealed
from gyre.testkit.engine_server import running_engine
from gyre.testkit.engine_use import drain, serve_weights, take_memory_again
from gyre.testkit.migration_world import models
from gyre.testkit.proxy_world import (
    Client,
    Facts,
    LocalEngine,
    RunningProxy,
    local_engine,
    running_proxy,
)

__all__ = ["models"]

SHORT: dict[str, Any] = {"max_new_tokens": 8, "call_timeout_s": 30.0}
IDLE = 12
"""Executions between two calls: more than are copied at a time."""


@pytest.fixture(scope="module")
def engines(
    models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[LocalEngine, LocalEngine]]:
    logs = tmp_path_factory.mktemp("idle")
    with (
        local_engine(models[0], logs / "0.log") as first,
        local_engine(models[0], logs / "1.log") as second,
    ):
        yield first, second


async def emptied(engine: LocalEngine) -> LocalEngine:
    """Serving, with an empty cache."""
    async with EngineClient(engine.url) as client:
        await take_memory_again(client)
        await client.resume()
        await client.flush_cache(5.0)
    return engine


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that waits in vain waits for as long as it may, so that it shows."""
    monkeypatch.setattr("gyre.cell_agent.engine_turn.ANNOUNCE_S", PIN_S)


@pytest.fixture
async def source(engines: tuple[LocalEngine, LocalEngine]) -> LocalEngine:
    return await emptied(engines[0])


@pytest.fixture
async def destination(engines: tuple[LocalEngine, LocalEngine]) -> LocalEngine:
    return await emptied(engines[1])


@pytest.fixture
def log() -> MemoryEventLog:
    return MemoryEventLog()


@pytest.fixture
async def facts(models: tuple[Path, Path], log: MemoryEventLog) -> Facts:
    facts = Facts(Journal(log, SystemClock()))
    await facts.submit(models[0], **SHORT)
    return facts


@asynccontextmanager
async def serving(
    log: MemoryEventLog, facts: Facts, source: LocalEngine, destination: LocalEngine
) -> AsyncIterator[RunningProxy]:
    """A proxy, and both engines in rollout: the source as cell 0, the destination as cell 1."""
    await facts.rollout(0, source.url)
    await facts.rollout(1, destination.url)
    async with running_proxy(log) as served:
        yield served


async def idle(served: RunningProxy, facts: Facts, number: int = 0) -> tuple[str, Client]:
    """An execution that has had one answer from cell 0."""
    execution = f"job-test-g{number:04d}-e0"
    client = served.client(await facts.start(execution))
    await client.chat(f"tell me story {number} " * 20)
    return execution, client


async def switched(facts: Facts, source: LocalEngine, *executions: str) -> float:
    """Cell 0 leaves rollout, as its agent does it; how long that took."""
    began = time.monotonic()
    sequence = await facts.move(0, 1, *executions)
    async with EngineClient(source.url) as engine:
        await drain(engine, 30.0, switch=sequence, num_moved=len(executions))
    return time.monotonic() - began


async def last_call(facts: Facts, execution: str) -> CallRecorded:
    events = await facts.calls(execution)
    assert not any(isinstance(event, CallRerouted) for event in events)
    *_, before, call = [event for event in events if isinstance(event, CallRecorded)]
    assert before.moved is None
    assert call.outcome == "committed"
    if call.moved is not None:
        assert call.moved.tokens_at_source == before.num_input_tokens + len(before.output_ids) - 1
        assert (call.moved.source, call.moved.destination) == (0, 1)
    return call


def assert_went_along(call: CallRecorded) -> None:
    moved = call.moved
    assert moved is not None
    # What executions have in common need not come twice.
    assert 0 < moved.tokens_migrated <= moved.tokens_at_source
    assert moved.tokens_prefilled_again == 0
    assert call.num_cached_tokens >= moved.tokens_at_source
    assert 0 < moved.migration_s < PIN_S
    assert {span.cell for span in call.spans} == {1}


async def test_the_prefix_goes_along_and_the_source_may_die(
    log: MemoryEventLog,
    facts: Facts,
    models: tuple[Path, Path],
    destination: LocalEngine,
    tmp_path: Path,
) -> None:
    await facts.rollout(1, destination.url)
    with local_engine(models[0], tmp_path / "doomed.log") as doomed:
        await facts.rollout(0, doomed.url)
        async with running_proxy(log) as served:
            execution, client = await idle(served, facts)
            took = await switched(facts, doomed, execution)
            doomed.kill()
            await client.chat("and then?")
    call = await last_call(facts, execution)
    assert_went_along(call)
    assert call.moved is not None
    assert call.moved.tokens_migrated == call.moved.tokens_at_source
    assert took < PIN_S - 1


async def test_many_leave_in_time_and_calls_that_come_meanwhile_wait_for_their_own(
    log: MemoryEventLog, facts: Facts, source: LocalEngine, destination: LocalEngine
) -> None:
    async with serving(log, facts, source, destination) as served:
        started = [await idle(served, facts, number) for number in range(IDLE)]
        executions = [execution for execution, _ in started]
        leaving = asyncio.create_task(switched(facts, source, *executions))
        await asyncio.gather(*(client.chat("and then?") for _, client in started[:3]))
        took = await leaving
        await asyncio.gather(*(client.chat("and then?") for _, client in started[3:]))
    assert took < PIN_S
    for execution in executions[3:]:
        assert_went_along(await last_call(facts, execution))
    for execution in executions[:3]:
        # The fact of the move may have come after the request.
        call = await last_call(facts, execution)
        if call.moved is not None:
            assert_went_along(call)


async def test_a_source_that_does_not_answer_costs_a_call_no_more_than_a_copy_may(
    log: MemoryEventLog,
    facts: Facts,
    source: LocalEngine,
    destination: LocalEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gyre.proxy.sampling.departures.COPY_S", 0.5)
    monkeypatch.setattr("gyre.proxy.sampling.migration.ANNOUNCE_S", 30.0)
    async with serving(log, facts, source, destination) as served:
        execution, client = await idle(served, facts)
        source.process.send_signal(signal.SIGSTOP)
        try:
            await facts.move(0, 1, execution)
            began = time.monotonic()
            await client.chat("and then?")
            assert time.monotonic() - began < 15.0
        finally:
            source.process.send_signal(signal.SIGCONT)
    moved = (await last_call(facts, execution)).moved
    assert moved is not None
    assert moved.tokens_migrated == 0
    assert moved.tokens_prefilled_again == moved.tokens_at_source


async def test_a_second_switch_takes_it_along_again(
    log: MemoryEventLog, facts: Facts, source: LocalEngine, destination: LocalEngine
) -> None:
    async with serving(log, facts, source, destination) as served:
        execution, client = await idle(served, facts)
        await switched(facts, source, execution)
        await emptied(source)
        await facts.rollout(2, source.url)
        sequence = await facts.move(1, 2, execution)
        async with EngineClient(destination.url) as engine:
            await drain(engine, 30.0, switch=sequence, num_moved=1)
        await client.chat("and then?")
    calls = [event for event in await facts.calls(execution) if isinstance(event, CallRecorded)]
    moved = calls[-1].moved
    assert moved is not None
    assert (moved.source, moved.destination) == (0, 2)
    assert moved.tokens_migrated == 2 * moved.tokens_at_source
    assert moved.tokens_prefilled_again == 0


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
            execution, client = await idle(served, facts)
            took = await switched(facts, source, execution)
            await client.chat("and then?")
    moved = (await last_call(facts, execution)).moved
    assert moved is not None
    assert (moved.tokens_migrated, moved.migration_s) == (0, 0.0)
    assert moved.tokens_prefilled_again == moved.tokens_at_source
    assert took < PIN_S - 1


async def test_other_weights_at_the_destination_are_no_cost_of_the_switch(
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
            execution, client = await idle(served, facts)
            took = await switched(facts, source, execution)
            await client.chat("and then?")
        await serve_weights(engine, models[0], "0.0")
    call = await last_call(facts, execution)
    assert call.moved is None
    assert call.num_cached_tokens == 0
    assert took < PIN_S - 1


async def test_what_was_copied_for_a_call_that_never_comes_is_said_at_the_end(
    log: MemoryEventLog, facts: Facts, source: LocalEngine, destination: LocalEngine
) -> None:
    async with serving(log, facts, source, destination) as served:
        execution, _ = await idle(served, facts)
        await switched(facts, source, execution)
        await facts.terminate(execution)
        async with asyncio.timeout(10):
            while not isinstance(seal := (await facts.calls(execution))[-1], CallsSealed):
                await asyncio.sleep(0.02)
    [unused] = seal.unused
    assert (unused.source, unused.destination) == (0, 1)
    assert unused.tokens_migrated == unused.tokens_at_source > 0
    assert unused.migration_s > 0


async def test_a_proxy_that_starts_anew_loses_no_more_than_the_saving(
    log: MemoryEventLog, facts: Facts, source: LocalEngine, destination: LocalEngine
) -> None:
    async with serving(log, facts, source, destination) as served:
        execution, client = await idle(served, facts)
    async with running_proxy(log) as served:
        client.http = served.http
        took = await switched(facts, source, execution)
        await client.chat("and then?")
    call = await last_call(facts, execution)
    assert call.moved is None
    assert call.num_cached_tokens == 0
    assert took < PIN_S - 1


async def test_a_cell_is_not_held_up_by_an_execution_that_ends_or_never_called(
    log: MemoryEventLog, facts: Facts, source: LocalEngine, destination: LocalEngine
) -> None:
    async with serving(log, facts, source, destination) as served:
        execution, _ = await idle(served, facts)
        await facts.order("job-test-g0007-e0", 0)
        await facts.terminate(execution)
        assert await switched(facts, source, execution, "job-test-g0007-e0") < PIN_S - 1
