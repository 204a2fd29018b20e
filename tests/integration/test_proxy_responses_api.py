"""OpenAI's own client library against the proxy, on both of its APIs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.contracts.events.calls import CallRecorded
from gyre.testkit.proxy_world import Facts, LocalEngine, local_engine, running_proxy
from gyre.testkit.scripted_engine import ScriptedEngine, scripted_engine
from gyre.testkit.tiny_model import make_tiny_model

EXECUTION = "job-test-g0000-e0"
END = "<|im_end|>"
RUN = '<tool_call>\n{{"name": "run", "arguments": {{"cmd":  "{}"}}}}\n</tool_call>'
PATCH = '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "*** Begin"}}\n</tool_call>'
SPAWN = '<tool_call>\n{"name": "agents.spawn", "arguments": {}}\n</tool_call>'
# Three turns of tools, then an answer: what the model says is fixed, the rest is real.
SCRIPT = [
    f"<think>\nhm\n</think>\n\nlet me\n{RUN.format('ls')}\n{RUN.format('pwd')}{END}",
    f"{PATCH}{END}",
    f"<think>\nso\n</think>\n\n{SPAWN}{END}",
    f"done{END}",
]
PARAMETERS = {"type": "object", "properties": {"cmd": {"type": "string"}}}
RESPONSES_TOOLS: list[Any] = [
    {"type": "function", "name": "run", "parameters": PARAMETERS, "strict": False},
    {"type": "custom", "name": "apply_patch"},
    {
        "type": "namespace",
        "name": "agents",
        "description": "Sub-agents.",
        "tools": [{"type": "function", "name": "spawn"}],
    },
]
CHAT_TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "run", "parameters": PARAMETERS}},
    {"type": "custom", "custom": {"name": "apply_patch"}},
    {"type": "function", "function": {"name": "agents.spawn"}},
]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A client of the vendor's library, and what its calls became."""

    client: AsyncOpenAI
    facts: Facts

    async def calls(self) -> list[CallRecorded]:
        events = await self.facts.calls(EXECUTION)
        return [event for event in events if isinstance(event, CallRecorded)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("responses_model") / "m", seed=0)


@pytest.fixture(scope="module")
def engine(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    log = tmp_path_factory.mktemp("responses_engine") / "engine.log"
    with local_engine(model, log) as running:
        yield running


@asynccontextmanager
async def world(
    model: Path, engine_url: str, *, keepalive_s: float = 10.0, **rollout: Any
) -> AsyncIterator[World]:
    log = MemoryEventLog()
    facts = Facts(Journal(log, SystemClock()))
    await facts.submit(model, **rollout)
    await facts.rollout(0, engine_url)
    key = await facts.start(EXECUTION)
    async with (
        running_proxy(log, keepalive_s=keepalive_s) as served,
        AsyncOpenAI(
            api_key=key,
            base_url=f"{served.url}/v1",
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=False),
        ) as client,
    ):
        yield World(client=client, facts=facts)


@asynccontextmanager
async def scripted(model: Path) -> AsyncIterator[tuple[World, ScriptedEngine]]:
    async with (
        scripted_engine(model, *SCRIPT) as engine,
        world(model, engine.url, max_new_tokens=200) as running,
    ):
        yield running, engine


async def respond(client: AsyncOpenAI, *, stream: bool, **fields: Any) -> Any:
    """A response; one that is streamed goes through the library's own reading of the events."""
    if not stream:
        return await client.responses.create(model="policy", **fields)
    async with client.responses.stream(model="policy", **fields) as events:
        *_, last = [event async for event in events]
    assert last.type in ("response.completed", "response.incomplete")
    return last.response


async def complete(client: AsyncOpenAI, *, stream: bool, **fields: Any) -> Any:
    """A chat message, put together from its chunks where it is streamed."""
    if not stream:
        answer = await client.chat.completions.create(model="policy", **fields)
        return answer.choices[0].message
    chunks = await client.chat.completions.create(model="policy", stream=True, **fields)
    message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": []}
    async for chunk in chunks:
        [choice] = chunk.choices
        message["content"] += choice.delta.content or ""
        message["tool_calls"] += [
            call.model_dump(exclude={"index"}, exclude_none=True)
            for call in choice.delta.tool_calls or ()
        ]
    return message


async def run_tools_by_responses(client: AsyncOpenAI, *, stream: bool) -> str:
    """A loop of tools as an agent would write it: output items go back as they came."""
    items: list[Any] = [
        {"role": "developer", "content": [{"type": "input_text", "text": "You are an agent."}]},
        {"role": "user", "content": [{"type": "input_text", "text": "go"}]},
    ]
    while True:
        response = await respond(
            client, stream=stream, input=items, tools=RESPONSES_TOOLS, store=False
        )
        echoed = [item.model_dump(exclude_none=True) for item in response.output]
        items += echoed
        calls = [item for item in echoed if item["type"].endswith("_call")]
        if not calls:
            return str(response.output_text)
        items += [
            {"type": f"{call['type']}_output", "call_id": call["call_id"], "output": "ok"}
            for call in calls
        ]


async def run_tools_by_chat(client: AsyncOpenAI, *, stream: bool) -> str:
    messages: list[Any] = [
        {"role": "developer", "content": [{"type": "text", "text": "You are an agent."}]},
        {"role": "user", "content": "go"},
    ]
    while True:
        message = await complete(client, stream=stream, messages=messages, tools=CHAT_TOOLS)
        if not isinstance(message, dict):
            message = message.model_dump(exclude_none=True)
        messages.append(message)
        if not message.get("tool_calls"):
            return str(message["content"])
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
            for call in message["tool_calls"]
        ]


@pytest.mark.parametrize("loop", [run_tools_by_responses, run_tools_by_chat])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_loop_is_one_path_of_exactly_the_sampled_tokens(
    model: Path, loop: Callable[..., Awaitable[str]], stream: bool
) -> None:
    async with scripted(model) as (running, engine):
        assert await loop(running.client, stream=stream) == "done"
        calls = await running.calls()
    assert [call.num_tool_calls for call in calls] == [2, 1, 1, 0]
    assert [call.fork_reason for call in calls] == [None] * 4
    for before, after in pairwise(calls):
        assert after.parent == before.node
    given = [request["input_ids"] for request in engine.requests]
    for context, call, longer in zip(given, calls, given[1:], strict=False):
        known = [*context, *call.output_ids]
        assert longer[: len(known)] == known


@pytest.mark.parametrize("stream", [False, True])
async def test_responses_of_a_real_engine_are_recorded_and_extend_one_path(
    model: Path, engine: LocalEngine, stream: bool
) -> None:
    async with world(model, engine.url) as running:
        items: list[Any] = []
        for turn in range(3):
            items.append({"role": "user", "content": f"turn {turn}"})
            response = await respond(
                running.client, stream=stream, input=items, tools=RESPONSES_TOOLS
            )
            assert response.usage.output_tokens > 0
            items += [item.model_dump(exclude_none=True) for item in response.output]
            assert items[-1]["type"] == "message"
        calls = await running.calls()
    assert [call.outcome for call in calls] == ["committed"] * 3
    assert [call.fork_reason for call in calls] == [None] * 3
    for before, after in pairwise(calls):
        assert after.parent == before.node


async def test_reasoning_goes_out_shown_and_sealed_and_its_seal_alone_matches(model: Path) -> None:
    async with scripted(model) as (running, _):
        first = await respond(
            running.client, stream=True, input="go", tools=RESPONSES_TOOLS, store=False
        )
        reasoning, message, *_ = first.output
        assert (reasoning.content[0].text, message.content[0].text) == ("hm", "let me")
        echoed = [item.model_dump(exclude_none=True) for item in first.output]
        del echoed[0]["content"]
        user = {"role": "user", "content": "go"}
        results = [
            {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}
            for call in echoed[2:]
        ]
        await respond(
            running.client, stream=True, input=[user, *echoed, *results], tools=RESPONSES_TOOLS
        )
        one, two = await running.calls()
    assert (two.parent, two.fork_reason) == (one.node, None)


@pytest.mark.parametrize(
    ("fields", "error", "code"),
    [
        ({"input": "word " * 3000}, openai.BadRequestError, "context_length_exceeded"),
        ({"previous_response_id": "resp_1"}, openai.BadRequestError,
         "previous_response_not_found"),
        ({"text": {"format": {"type": "json_object"}}}, openai.BadRequestError,
         "unsupported_parameter"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
         openai.BadRequestError, "invalid_value"),
        ({"extra_headers": {"Authorization": "Bearer none"}}, openai.AuthenticationError,
         "invalid_api_key"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_refused_raises_the_librarys_own_errors(
    model: Path, fields: dict[str, Any], error: type[openai.APIStatusError], code: str, stream: bool
) -> None:
    async with world(model, "http://127.0.0.1:9") as running:
        asked: dict[str, Any] = {"model": "policy", "input": "hi", "stream": stream}
        with pytest.raises(error) as refused:
            await running.client.responses.create(**(asked | fields))
        assert refused.value.code == code
        assert await running.calls() == []


async def test_an_engine_that_never_comes_is_a_server_error(model: Path) -> None:
    async with world(model, "http://127.0.0.1:9", call_timeout_s=0.3) as running:
        with pytest.raises(openai.InternalServerError) as failed:
            await running.client.responses.create(model="policy", input="hi")
        assert failed.value.status_code == 503


async def test_a_stream_is_kept_alive_and_its_failure_is_the_librarys_error(model: Path) -> None:
    async with world(model, "http://127.0.0.1:9", keepalive_s=0.05, call_timeout_s=0.4) as running:
        events = await running.client.responses.create(model="policy", input="hi", stream=True)
        kinds = []

        async def read() -> None:
            async for event in events:
                kinds.append(event.type)  # noqa: PERF401  it raises on the way

        with pytest.raises(openai.APIError) as failed:
            await read()
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert len(kinds) > 3
        assert set(kinds[2:]) == {"response.in_progress"}
        assert type(failed.value) is openai.APIError
        assert failed.value.code == "rate_limit_exceeded"
        assert failed.value.message.endswith("Please try again in 2s.")


async def test_the_events_of_a_stream_that_was_kept_alive_are_numbered_without_a_gap(
    model: Path,
) -> None:
    async with scripted_engine(model, *SCRIPT) as engine:
        log = MemoryEventLog()
        facts = Facts(Journal(log, SystemClock()))
        await facts.submit(model, max_new_tokens=200)
        key = await facts.start(EXECUTION)
        async with (
            running_proxy(log, keepalive_s=0.05) as served,
            AsyncOpenAI(api_key=key, base_url=f"{served.url}/v1", max_retries=0) as client,
        ):
            events = await client.responses.create(model="policy", input="hi", stream=True)
            told = [await anext(aiter(events))]
            await asyncio.sleep(0.2)  # some signs of life
            await facts.rollout(0, engine.url)
            told += [event async for event in events]
    assert [event.type for event in told].count("response.in_progress") > 2
    assert told[-1].type == "response.completed"
    assert [event.sequence_number for event in told] == list(range(len(told)))


async def test_models_are_listed_for_clients_of_either_vendor(model: Path) -> None:
    async with world(model, "http://127.0.0.1:9") as running:
        listed = [item.id async for item in running.client.models.list()]
        assert listed == ["policy"]
        assert (await running.client.models.retrieve("gpt-x")).id == "gpt-x"
        headers = {"anthropic-version": "2023-06-01"}
        page = await running.client.get("/models", cast_to=object, options={"headers": headers})
        assert isinstance(page, dict)
        [item] = page["data"]
        assert (item["type"], item["id"]) == ("model", "policy")
        assert (item["max_input_tokens"], item["max_tokens"]) == (1024, 48)
        assert (page["first_id"], page["has_more"]) == ("policy", False)
        none = {"Authorization": "Bearer none"}
        with pytest.raises(openai.AuthenticationError) as refused:
            await running.client.models.list(extra_headers=none)
        assert refused.value.code == "invalid_api_key"
        with pytest.raises(openai.AuthenticationError) as refused:
            await running.client.models.list(extra_headers=none | headers)
        assert isinstance(refused.value.body, dict)
        assert refused.value.body["type"] == "authentication_error"


async def test_two_equal_responses_are_two_calls(model: Path, engine: LocalEngine) -> None:
    async with world(model, engine.url) as running:
        given = await asyncio.gather(
            *(running.client.responses.create(model="policy", input="hi") for _ in range(2))
        )
        calls = await running.calls()
    assert len(calls) == 2
    assert len({response.id for response in given}) == 2
    assert calls[0].node != calls[1].node
