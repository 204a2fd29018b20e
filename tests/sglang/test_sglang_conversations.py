"""What the proxy records of conversations over the real SGLang is what SGLang computed: the ids,
their logprobs in exactly the recorded context, the version, and what the prefix cache spared."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from gyre.cell_agent.engine.base import EngineClient
from gyre.contracts.events.calls import CallRecorded
from gyre.core.tree import Tree
from gyre.testkit.proxy_world import Client
from gyre.testkit.sglang_reference import TOLERANCE, Reference, furthest, logprobs_of_engine
from gyre.testkit.sglang_world import SglangWorld, sglang_world

NUM_TURNS = 4
ASKED = [f"{number}: tell me about the quick brown fox. " * 12 for number in range(NUM_TURNS)]


async def over_chat(world: SglangWorld, client: Client) -> None:
    for text in ASKED:
        await client.chat(text)


async def over_messages(world: SglangWorld, client: Client) -> None:
    history: list[Any] = []
    async with AsyncAnthropic(api_key=client.key, base_url=world.url, max_retries=0) as sdk:
        for text in ASKED:
            history.append({"role": "user", "content": [{"type": "text", "text": text}]})
            async with sdk.messages.stream(
                model="policy", max_tokens=64, system="Be brief.", messages=history
            ) as stream:
                answer = await stream.get_final_message()
            content = [block.model_dump(exclude_none=True) for block in answer.content]
            history.append({"role": "assistant", "content": content})


async def over_responses(world: SglangWorld, client: Client) -> None:
    items: list[Any] = []
    async with AsyncOpenAI(api_key=client.key, base_url=f"{world.url}/v1", max_retries=0) as sdk:
        for text in ASKED:
            items.append({"role": "user", "content": text})
            response = await sdk.responses.create(
                model="policy", input=items, instructions="Be brief.", store=False
            )
            items += [item.model_dump(exclude_none=True) for item in response.output]


def contexts(tree: Tree, calls: list[CallRecorded]) -> list[array[int]]:
    """What each call was conditioned on, by the log alone."""
    return [tree.context_tokens(call.node) for call in calls]


@pytest.mark.parametrize("talk", [over_chat, over_messages, over_responses])
async def test_ids_logprobs_and_versions_are_the_servers_own(
    first: EngineClient,
    models: tuple[Path, Path],
    references: tuple[Reference, Reference],
    tmp_path: Path,
    talk: Callable[[SglangWorld, Client], Awaitable[None]],
) -> None:
    await first.update_weight_version("3.7")
    async with sglang_world(tmp_path, models[0], max_new_tokens=48) as world:
        await world.facts.rollout(0, first.base_url)  # which says 0.0: the server knows better
        execution, client = await world.start()
        await talk(world, client)
        calls = await world.calls(execution, calls=NUM_TURNS)
        tree = await world.facts.tree(execution)
    assert [call.outcome for call in calls] == ["committed"] * NUM_TURNS
    assert [call.fork_reason for call in calls[1:]] == [None] * (NUM_TURNS - 1)
    for call, context in zip(calls, contexts(tree, calls), strict=True):
        assert len(context) == call.num_input_tokens
        own = await logprobs_of_engine(first.base_url, context, call.output_ids)
        assert furthest(call.output_logprobs, own) < TOLERANCE
        judged = references[0].logprobs(context, call.output_ids)
        assert furthest(call.output_logprobs, judged) < TOLERANCE
        [span] = call.spans
        assert (span.start, span.end) == (0, len(call.output_ids))
        assert (span.lineage, span.version, span.cell) == (3, 7, 0)


@pytest.mark.parametrize("talk", [over_chat, over_messages, over_responses])
async def test_each_turn_finds_the_one_before_it_in_the_prefix_cache(
    first: EngineClient,
    models: tuple[Path, Path],
    tmp_path: Path,
    talk: Callable[[SglangWorld, Client], Awaitable[None]],
) -> None:
    async with sglang_world(tmp_path, models[0], max_new_tokens=48) as world:
        await world.facts.rollout(0, first.base_url)
        execution, client = await world.start()
        await talk(world, client)
        calls = await world.calls(execution, calls=NUM_TURNS)
    assert calls[0].num_cached_tokens == 0
    for before, after in pairwise(calls):
        # All that was computed: of a turn's last token only its probability was.
        assert after.num_cached_tokens >= before.num_input_tokens + len(before.output_ids) - 1
        assert after.num_cached_tokens < after.num_input_tokens


async def test_logprobs_are_at_the_jobs_temperature(
    first: EngineClient,
    models: tuple[Path, Path],
    references: tuple[Reference, Reference],
    tmp_path: Path,
) -> None:
    async with sglang_world(tmp_path, models[0], temperature=0.6, max_new_tokens=48) as world:
        await world.facts.rollout(0, first.base_url)
        execution, client = await world.start()
        await client.chat(ASKED[0], temperature=1.0, top_p=0.5)
        [call] = await world.calls(execution)
        tree = await world.facts.tree(execution)
    assert call.temperature == 0.6
    assert {"temperature", "top_p"} <= set(call.overridden)
    context = tree.context_tokens(call.node)
    judged = references[0].logprobs(context, call.output_ids, 0.6)
    assert furthest(call.output_logprobs, judged) < TOLERANCE
    assert furthest(call.output_logprobs, references[0].logprobs(context, call.output_ids)) > 0.1
