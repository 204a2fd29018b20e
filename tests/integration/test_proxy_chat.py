"""The proxy over real `local` engines and an event log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.contracts.events.calls import CallRecorded, CallRerouted, CallsSealed, CallUndelivered
from gyre.testkit.proxy_world import (
    TOOLS,
    Client,
    Facts,
    LocalEngine,
    RunningProxy,
    local_engine,
    running_proxy,
)
from gyre.testkit.tiny_model import make_tiny_model
from gyre.testkit.tree_paths import target_leaves

EXECUTION = "job-test-g0000-e0"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("proxy_model") / "m", seed=0)


@pytest.fixture(scope="module")
def engines(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[LocalEngine]]:
    log = tmp_path_factory.mktemp("proxy_engines") / "engine.log"
    with local_engine(model, log) as first, local_engine(model, log) as second:
        yield [first, second]


@pytest.fixture
def log() -> MemoryEventLog:
    return MemoryEventLog()


@pytest.fixture
async def facts(log: MemoryEventLog, model: Path, engines: list[LocalEngine]) -> Facts:
    facts = Facts(Journal(log, SystemClock()))
    await facts.submit(model)
    for cell, engine in enumerate(engines):
        await facts.rollout(cell, engine.url)
    return facts


@pytest.fixture
async def served(log: MemoryEventLog, facts: Facts) -> AsyncIterator[RunningProxy]:
    async with running_proxy(log) as proxy:
        yield proxy


def recorded(events: list[Any]) -> list[CallRecorded]:
    return [event for event in events if isinstance(event, CallRecorded)]


async def engine_logprobs(
    engine: LocalEngine, context: list[int], output: list[int]
) -> list[float]:
    """What an engine says the output's tokens cost in this context, read as a prompt."""
    body = {
        "input_ids": context + output,
        "return_logprob": True,
        "logprob_start_len": len(context) - 1,
        "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
    }
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.post(f"{engine.url}/generate", json=body, timeout=30)
    entries = answer.json()["meta_info"]["input_token_logprobs"]
    return [entry[0] for entry in entries[-len(output) :]]


async def test_a_turn_is_recorded_exactly_and_before_it_is_answered(
    served: RunningProxy, facts: Facts, engines: list[LocalEngine]
) -> None:
    client = served.client(await facts.start(EXECUTION))
    await client.chat("Write 3 into answer.txt", temperature=0.2, top_p=0.5)

    [call] = recorded(await facts.calls(EXECUTION))
    assert call.outcome == "committed"
    assert call.temperature == 1.0
    assert set(call.overridden) == {"temperature", "top_p"}
    assert call.fork_reason is None
    assert [segment.role for segment in call.segments] == ["system", "user", "generation"]
    assert len(call.output_ids) == len(call.output_logprobs) <= 48
    assert [(span.start, span.end) for span in call.spans] == [(0, len(call.output_ids))]
    assert {(span.lineage, span.version, span.cell) for span in call.spans} == {(0, 0, 0)}
    tree = await facts.tree(EXECUTION)
    context = list(tree.context_tokens(call.node))
    assert call.num_input_tokens == len(context)
    expected = await engine_logprobs(engines[0], context, list(call.output_ids))
    assert list(call.output_logprobs) == pytest.approx(expected, abs=1e-3)


async def test_turns_extend_one_path_and_nothing_is_encoded_twice(
    served: RunningProxy, facts: Facts
) -> None:
    client = served.client(await facts.start(EXECUTION))
    for turn in range(3):
        await client.chat(f"turn {turn}")

    calls = recorded(await facts.calls(EXECUTION))
    assert [call.fork_reason for call in calls] == [None, None, None]
    tree = await facts.tree(EXECUTION)
    [leaf] = target_leaves(tree)
    assert [node.id for node in tree.path(leaf.id) if node.sampled] == [call.node for call in calls]
    for before, after in pairwise(calls):
        prefix = tree.path_tokens(before.node)
        assert tree.context_tokens(after.node)[: len(prefix)] == prefix
    assert calls[2].num_cached_tokens >= tree.num_path_tokens(calls[0].node)


async def test_a_stream_ends_with_done_and_usage(served: RunningProxy, facts: Facts) -> None:
    client = served.client(await facts.start(EXECUTION))
    body = {
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    response = await client.post(body)
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    assert '"usage":{"prompt_tokens":' in lines[-2]
    assert '"role":"assistant"' in lines[0]
    [call] = recorded(await facts.calls(EXECUTION))
    assert call.outcome == "committed"


async def test_only_the_key_of_the_running_attempt_is_served(
    served: RunningProxy, facts: Facts
) -> None:
    first = await facts.start(EXECUTION)
    second = await facts.start(EXECUTION, attempt=2)
    body = {"messages": [{"role": "user", "content": "hello"}]}
    assert (await served.client(second).post(body)).status_code == 200
    for key in (first, "gyre_a.b.1.00", "none"):
        refused = await served.client(key).post(body)
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
    await facts.terminate(EXECUTION, attempt=2)
    assert (await served.client(second).post(body)).status_code == 401


async def test_a_key_is_waited_for_while_its_attempt_is_under_way(
    served: RunningProxy, facts: Facts
) -> None:
    client = served.client(facts.key(EXECUTION))
    asked = asyncio.create_task(client.post({"messages": [{"role": "user", "content": "hi"}]}))
    await asyncio.sleep(0.2)
    await facts.start(EXECUTION)
    assert (await asked).status_code == 200


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        ({"response_format": {"type": "json_object"}}, "unsupported_parameter"),
        ({"n": 2}, "unsupported_parameter"),
        ({"messages": [{"role": "user", "content": "word " * 3000}]}, "context_length_exceeded"),
        ({"messages": [{"role": "nobody", "content": ""}]}, "invalid_value"),
        ({"messages": []}, "empty_array"),
    ],
)
async def test_what_cannot_be_served_is_refused_in_openai_shape(
    served: RunningProxy, facts: Facts, extra: dict[str, Any], code: str | None
) -> None:
    client = served.client(await facts.start(EXECUTION))
    refused = await client.post({"messages": [{"role": "user", "content": "hi"}]} | extra)
    assert refused.status_code == 400
    assert refused.json()["error"]["type"] == "invalid_request_error"
    assert refused.json()["error"]["code"] == code
    assert await facts.calls(EXECUTION) == []


async def test_a_transition_in_mid_call_keeps_every_token(
    served: RunningProxy, facts: Facts, engines: list[LocalEngine]
) -> None:
    num_kept: list[int] = []
    for attempt in range(10):  # until the transition met a call in mid-stream
        executions = [f"job-test-g{attempt + 10}-e{index}" for index in range(6)]
        clients = [served.client(await facts.start(execution)) for execution in executions]
        asked = [asyncio.create_task(client.chat("tell me " * 20)) for client in clients]
        await asyncio.sleep(0.06 + 0.02 * attempt)
        await facts.move(0, 1, *executions)
        await asyncio.gather(*asked)
        await facts.rollout(0, engines[0].url)
        for execution in executions:
            num_kept += await kept_tokens(facts, execution, engines[1])
        if any(tokens > 0 for tokens in num_kept):
            break
    assert any(tokens > 0 for tokens in num_kept), num_kept


async def kept_tokens(facts: Facts, execution: str, engine: LocalEngine) -> list[int]:
    """Tokens kept at each reroute of the execution's one call, which is checked to be exact."""
    events = await facts.calls(execution)
    [call] = recorded(events)
    assert call.outcome == "committed"
    kept = [event.tokens_kept for event in events if isinstance(event, CallRerouted)]
    assert len(kept) == call.num_reroutes
    for tokens, (before, after) in zip(kept, pairwise(call.spans), strict=False):
        assert before.end == after.start == tokens
        assert (before.cell, after.cell) == (0, 1)
    tree = await facts.tree(execution)
    context = list(tree.context_tokens(call.node))
    expected = await engine_logprobs(engine, context, list(call.output_ids))
    assert list(call.output_logprobs) == pytest.approx(expected, abs=1e-3)
    return kept


async def test_no_call_is_lost_while_cells_switch_all_the_time(
    served: RunningProxy, facts: Facts, engines: list[LocalEngine]
) -> None:
    executions = [f"job-test-g0003-e{index}" for index in range(8)]
    clients = [served.client(await facts.start(execution)) for execution in executions]
    over = asyncio.Event()

    async def work(client: Client) -> None:
        while not over.is_set():
            client.messages.clear()
            for turn in range(3):
                await client.chat(f"turn {turn}")

    async def switch() -> None:
        for number in range(40):
            source, destination = number % 2, (number + 1) % 2
            await facts.rollout(destination, engines[destination].url)
            await facts.move(source, destination, *executions)
            await asyncio.sleep(0.05)
        over.set()

    await asyncio.gather(switch(), *(work(client) for client in clients))
    num_rerouted = 0
    for execution in executions:
        events = await facts.calls(execution)
        for call in recorded(events):
            assert call.outcome == "committed"
            assert len(call.output_ids) == len(call.output_logprobs)
            starts = [0, *(span.end for span in call.spans)]
            assert [span.start for span in call.spans] == starts[:-1]
            assert starts[-1] == len(call.output_ids)
        num_rerouted += sum(isinstance(event, CallRerouted) for event in events)
    assert num_rerouted > 0


async def test_a_call_waits_for_its_cell_to_be_ready(
    served: RunningProxy, facts: Facts, engines: list[LocalEngine]
) -> None:
    client = served.client(await facts.start(EXECUTION, cell=5))
    asked = asyncio.create_task(client.chat("hello"))
    await asyncio.sleep(0.2)
    assert not asked.done()
    await facts.rollout(5, engines[0].url)
    await asked


async def test_the_end_of_an_execution_seals_its_calls(served: RunningProxy, facts: Facts) -> None:
    silent, busy = "job-test-g0002-e0", "job-test-g0002-e1"
    await facts.start(silent)
    client = served.client(await facts.start(busy, cell=9))
    open_call = asyncio.create_task(client.post({"messages": [{"role": "user", "content": "x"}]}))
    await asyncio.sleep(0.1)
    await facts.terminate(silent)
    await facts.terminate(busy)
    assert (await open_call).status_code == 503
    async with asyncio.timeout(5):
        while not (await facts.calls(silent) and len(await facts.calls(busy)) == 2):
            await asyncio.sleep(0.02)
    assert await facts.calls(silent) == [CallsSealed(execution=silent, num_calls=0, last_seq=0)]
    call, seal = await facts.calls(busy)
    assert isinstance(call, CallRecorded)
    assert call.outcome == "aborted"
    assert isinstance(seal, CallsSealed)
    assert seal.num_calls == 1
    assert not served.proxy._lives


async def test_a_restart_knows_old_turns_and_seals_what_ended(
    log: MemoryEventLog, facts: Facts
) -> None:
    async with running_proxy(log) as first:
        client = first.client(await facts.start(EXECUTION))
        await client.chat("one")
        last = await client.chat("two")
    async with running_proxy(log) as second:
        client.http = second.http
        again = [message for message in client.messages if message is not last]
        while again[-1]["role"] == "tool":
            again.pop()
        body = {"messages": again, "tools": TOOLS}
        retried = await client.post(body, **{"x-stainless-retry-count": "1"})
        assert retried.json()["choices"][0]["message"] == last
        await client.chat("three")
        calls = recorded(await facts.calls(EXECUTION))
        assert [call.fork_reason for call in calls] == [None, None, None]
        assert len(calls[2].segments) <= 4
        assert calls[2].parent == calls[1].node
    await facts.terminate(EXECUTION)
    async with running_proxy(log), asyncio.timeout(5):
        while not isinstance((await facts.calls(EXECUTION))[-1], CallsSealed):
            await asyncio.sleep(0.02)
    assert not any(isinstance(e, CallUndelivered) for e in await facts.calls(EXECUTION))
