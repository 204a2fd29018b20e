"""Calls that one event does not hold, through a proxy over JetStream and a blob store."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.base import MAX_EVENT_BYTES, Stream
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.eventlog.streams import ensure_streams
from gyre.adapters.journal import Journal
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallRecorded, CallsSealed
from gyre.core.tree import Tree
from gyre.proxy.codecs.tokenizer import FastTokenizer
from gyre.testkit.nats_server import NatsServer
from gyre.testkit.patient_engine import PatientEngine, patient_engine
from gyre.testkit.proxy_world import Facts, RunningProxy, running_proxy
from gyre.testkit.tiny_model import make_tiny_model
from gyre.testkit.tree_paths import target_leaves

EXECUTION, OTHER = "job-test-g0000-e0", "job-test-g0000-e1"
# The tiny tokenizer's ids have up to three digits, the engine's logprobs one. A real model's have
# six and seventeen: its calls are as large with 60 k tokens of prompt, or 13 k sampled.
PROMPT_TOKENS = 100_000
SAMPLED_TOKENS = 40_000
CONTEXT_TOKENS = 200_000


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("large_calls") / "m", seed=0)


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats").start()
    asyncio.run(ensure_streams(server.url))
    yield server
    server.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    log: JetStreamEventLog
    blobs: DirectoryBlobStore
    facts: Facts
    engine: PatientEngine


@pytest.fixture
async def world(model: Path, nats: NatsServer, tmp_path: Path) -> AsyncIterator[World]:
    log, blobs = JetStreamEventLog(nats.url), DirectoryBlobStore(tmp_path / "blobs")
    facts = Facts(Journal(log, SystemClock(), blobs))
    await facts.submit(model, context_tokens=CONTEXT_TOKENS, max_new_tokens=50_000)
    async with patient_engine(model) as engine:
        engine.go.set()
        await facts.rollout(0, engine.url)
        yield World(log=log, blobs=blobs, facts=facts, engine=engine)
    await log.close()


def long_text(model: Path, least_tokens: int) -> str:
    """Of at least so many tokens, no two lines alike."""
    rng = random.Random(0)
    tokenizer, lines, num_tokens = FastTokenizer(model), list[str](), 0
    while num_tokens < least_tokens:
        lines.append(" ".join(f"{rng.getrandbits(64):016x}" for _ in range(64)))
        num_tokens += len(tokenizer.encode(lines[-1]))
    return "\n".join(lines)


async def ask(served: RunningProxy, key: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    answer = await served.client(key).post({"model": "policy", "messages": messages})
    assert answer.status_code == 200, answer.text
    message: dict[str, Any] = answer.json()["choices"][0]["message"]
    return message


def shown(tree: Tree) -> list[tuple[str, str | None, tuple[int, ...]]]:
    """All of a tree: nodes with their places and tokens."""
    return [(node.id, node.parent, tuple(node.token_ids)) for node in tree.nodes.values()]


async def test_a_long_first_request_is_answered_recorded_and_known_after_a_restart(
    model: Path, world: World
) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": long_text(model, PROMPT_TOKENS)}]
    key = await world.facts.start(EXECUTION)
    async with running_proxy(world.log, world.blobs) as served:
        messages.append(await ask(served, key, messages))
    before = await world.facts.tree(EXECUTION)

    messages.append({"role": "user", "content": "and then?"})
    async with running_proxy(world.log, world.blobs) as served:
        messages.append(await ask(served, key, messages))
        [live] = served.proxy._lives.values()
        assert shown(live.matcher.tree) == shown(await world.facts.tree(EXECUTION))

    assert [message["content"] for message in messages[1::2]] == ["answer 1", "answer 2"]
    calls = [e for e in await world.facts.calls(EXECUTION) if isinstance(e, CallRecorded)]
    assert [call.outcome for call in calls] == ["committed", "committed"]
    assert [call.fork_reason for call in calls] == [None, None]
    first, second = calls
    assert first.num_input_tokens >= PROMPT_TOKENS
    assert len(first.model_dump_json()) > MAX_EVENT_BYTES > 100 * len(second.model_dump_json())
    assert len([path for path in world.blobs.root.rglob("*") if path.is_file()]) == 1

    tree = await world.facts.tree(EXECUTION)
    assert set(shown(before)) < set(shown(tree))
    prefix = tree.path_tokens(first.node)
    assert tree.context_tokens(second.node)[: len(prefix)] == prefix


async def test_a_long_turn_is_delivered_and_known_after_a_restart(
    model: Path, world: World
) -> None:
    world.engine.says = long_text(model, SAMPLED_TOKENS)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "write a book"}]
    key = await world.facts.start(OTHER)
    async with running_proxy(world.log, world.blobs) as served:
        messages.append(await ask(served, key, messages))
    messages.append({"role": "user", "content": "and another one"})
    async with running_proxy(world.log, world.blobs) as served:
        await ask(served, key, messages)

    calls = [e for e in await world.facts.calls(OTHER) if isinstance(e, CallRecorded)]
    assert messages[1]["content"] == world.engine.says
    assert [call.fork_reason for call in calls] == [None, None]
    assert all(len(call.output_logprobs) == len(call.output_ids) for call in calls)
    assert min(len(call.output_ids) for call in calls) >= SAMPLED_TOKENS
    tree = await world.facts.tree(OTHER)
    [leaf] = target_leaves(tree)
    assert [node.id for node in tree.path(leaf.id) if node.sampled] == [c.node for c in calls]
    assert len([path for path in world.blobs.root.rglob("*") if path.is_file()]) == 2


async def test_an_execution_whose_body_is_lost_is_refused_alone_and_sealed_as_any_other(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, blobs = MemoryEventLog(), DirectoryBlobStore(tmp_path / "blobs")
    facts = Facts(Journal(log, SystemClock(), blobs))
    await facts.submit(model, context_tokens=CONTEXT_TOKENS)
    async with patient_engine(model) as engine:
        engine.go.set()
        await facts.rollout(0, engine.url)
        key, other = await facts.start(EXECUTION), await facts.start(OTHER)
        question = [{"role": "user", "content": long_text(model, PROMPT_TOKENS)}]
        async with running_proxy(log, blobs) as served:
            await ask(served, key, question)
        [blob] = [path for path in blobs.root.rglob("*") if path.is_file()]
        blob.unlink()
        async with running_proxy(log, blobs) as served:
            await ask(served, other, [{"role": "user", "content": "hello"}])
            refused = await served.client(key).post({"model": "policy", "messages": question})
            told = "".join(capsys.readouterr())
            await facts.terminate(EXECUTION)
            await _sealed(facts)
    assert refused.status_code == 500
    assert refused.json()["error"]["code"] == "record_lost"
    assert blob.name not in refused.text  # where it lay is for operators
    assert [blob.name in line for line in told.splitlines() if "record_lost" in line] == [True]
    assert "seal_delayed" not in "".join(capsys.readouterr())
    [seal] = await _readable(facts)
    assert seal == CallsSealed(execution=EXECUTION, num_calls=1, last_seq=1)


async def test_a_proxy_starts_without_the_bodies_of_executions_that_are_over(
    model: Path, tmp_path: Path
) -> None:
    log, blobs = MemoryEventLog(), DirectoryBlobStore(tmp_path / "blobs")
    facts = Facts(Journal(log, SystemClock(), blobs))
    await facts.submit(model, context_tokens=CONTEXT_TOKENS)
    async with patient_engine(model) as engine:
        engine.go.set()
        await facts.rollout(0, engine.url)
        key = await facts.start(EXECUTION)
        async with running_proxy(log, blobs) as served:
            await ask(served, key, [{"role": "user", "content": long_text(model, PROMPT_TOKENS)}])
            await facts.terminate(EXECUTION)
            await _sealed(facts)
        [blob] = [path for path in blobs.root.rglob("*") if path.is_file()]
        blob.unlink()
        other = await facts.start(OTHER)
        async with running_proxy(log, blobs) as served:
            await ask(served, other, [{"role": "user", "content": "hello"}])


async def _readable(facts: Facts) -> list[Body]:
    """The execution's events but those whose bodies are lost."""
    subject = subjects.calls(facts.job, EXECUTION)
    read = facts.journal.read(Stream.CALLS, (subject,), lost=lambda error: None)
    return [fact.body async for fact in read]


async def _sealed(facts: Facts) -> None:
    async with asyncio.timeout(20):
        while not any(isinstance(body, CallsSealed) for body in await _readable(facts)):
            await asyncio.sleep(0.02)
