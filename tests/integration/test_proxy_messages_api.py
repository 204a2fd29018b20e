"""Anthropic's own SDK against the proxy, over a real `local` engine and one that plays a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import AsyncAnthropic

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.contracts.events.calls import CallRecorded
from gyre.testkit.proxy_world import (
    CONTEXT_TOKENS,
    Facts,
    LocalEngine,
    RunningProxy,
    local_engine,
    running_proxy,
)
from gyre.testkit.scripted_engine import ScriptedEngine, scripted_engine
from gyre.testkit.tiny_model import make_tiny_model

EXECUTION = "job-test-g0000-e0"
END = "<|im_end|>"
TOOLS: list[Any] = [
    {
        "name": "write_file",
        "description": "Write a file",
        "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
        "cache_control": {"type": "ephemeral"},
    }
]
THINKING: Any = {"type": "adaptive"}


def call(path: str) -> str:
    arguments = f'{{"path":"{path}",  "n": 1.0}}'
    return f'<tool_call>\n{{"name": "write_file", "arguments": {arguments}}}\n</tool_call>'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("messages_model") / "m", seed=0)


@pytest.fixture(scope="module")
def engine(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    log = tmp_path_factory.mktemp("messages_engine") / "engine.log"
    with local_engine(model, log) as running:
        yield running


class Talk:
    """One SDK client of one execution, with or without streaming."""

    def __init__(self, served: RunningProxy, facts: Facts, key: str, *, stream: bool) -> None:
        self.served = served
        self.facts = facts
        self.stream = stream
        self.sdk = AsyncAnthropic(api_key=key, base_url=served.url, max_retries=0, timeout=30)

    async def ask(self, messages: list[Any], **fields: Any) -> Any:
        """The answer, as the SDK assembles it."""
        request: dict[str, Any] = {"model": "policy", "max_tokens": 64, "messages": messages}
        request |= {"tools": TOOLS} | fields
        if not self.stream:
            return await self.sdk.messages.create(**request)
        async with self.sdk.messages.stream(**request) as stream:
            return await stream.get_final_message()

    async def raw(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """What is posted without the SDK's checks."""
        headers = {"x-api-key": self.sdk.api_key or ""} | headers
        return await self.served.http.post(path, json=body, headers=headers)

    async def calls(self) -> list[CallRecorded]:
        events = await self.facts.calls(EXECUTION)
        return [event for event in events if isinstance(event, CallRecorded)]


@asynccontextmanager
async def talking(
    model: Path, url: str, *, stream: bool = False, limits: dict[str, float] | None = None
) -> AsyncIterator[Talk]:
    log = MemoryEventLog()
    facts = Facts(Journal(log, SystemClock()))
    await facts.submit(model, max_new_tokens=200)
    async with running_proxy(log, **(limits or {})) as served:
        await facts.rollout(0, url)
        talk = Talk(served, facts, await facts.start(EXECUTION), stream=stream)
        async with talk.sdk:
            yield talk


@pytest.fixture
async def talk(model: Path, engine: LocalEngine) -> AsyncIterator[Talk]:
    async with talking(model, engine.url) as running:
        yield running


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value, "cache_control": {"type": "ephemeral"}}


def echo(answer: Any) -> dict[str, Any]:
    """The turn as the SDK sends it back."""
    content = [block.model_dump(exclude_none=True) for block in answer.content]
    return {"role": "assistant", "content": content}


def results(answer: Any) -> list[dict[str, Any]]:
    return [
        {"type": "tool_result", "tool_use_id": block.id, "content": f"done {block.input['path']}"}
        for block in answer.content
        if block.type == "tool_use"
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_turns_of_a_real_engine_extend_one_path(
    model: Path, engine: LocalEngine, stream: bool
) -> None:
    async with talking(model, engine.url, stream=stream) as talk:
        messages = [user("turn 0")]
        for turn in range(1, 4):
            answer = await talk.ask(messages, system="Be brief.", thinking=THINKING)
            assert answer.id.startswith("msg_")
            messages += [echo(answer), user([*results(answer), text(f"turn {turn}")])]
        calls = await talk.calls()
        assert [recorded.fork_reason for recorded in calls] == [None, None, None]
        assert [after.parent for after in calls[1:]] == [before.node for before in calls[:-1]]
        tree = await talk.facts.tree(EXECUTION)
        for before, after in pairwise(calls):
            prefix = tree.path_tokens(before.node)
            assert tree.context_tokens(after.node)[: len(prefix)] == prefix
        used = answer.usage
        assert used.input_tokens + used.cache_read_input_tokens == calls[-1].num_input_tokens
        assert used.cache_read_input_tokens == calls[-1].num_cached_tokens > 0
        assert used.output_tokens == len(calls[-1].output_ids)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_loop_runs_on_the_tokens_that_were_sampled(model: Path, stream: bool) -> None:
    script = [
        f"<think>\nhm\n</think>\n\nI write.\n{call('a')}\n{call('b')}{END}",
        f"{call('c')}{END}",
        f"All is done.{END}",
    ]
    async with (
        scripted_engine(model, *script) as played,
        talking(model, played.url, stream=stream) as talk,
    ):
        history: list[Any] = [user("go")]
        first = await talk.ask(history, thinking=THINKING)
        assert [block.type for block in first.content] == [
            "thinking", "text", "tool_use", "tool_use",
        ]  # fmt: skip
        assert first.content[0].signature
        assert first.content[1].text.strip() == "I write."
        assert [block.input for block in first.content[2:]] == [
            {"path": "a", "n": 1.0}, {"path": "b", "n": 1.0},
        ]  # fmt: skip
        assert first.stop_reason == "tool_use"
        history += [echo(first), user([*results(first), text("go on")])]
        second = await talk.ask(history, thinking=THINKING)
        history += [echo(second), user(results(second))]
        third = await talk.ask(history, thinking=THINKING)
        assert [block.text for block in third.content] == ["All is done."]
        assert third.stop_reason == "end_turn"
        check_one_path(await talk.calls(), played)


def check_one_path(calls: list[CallRecorded], played: ScriptedEngine) -> None:
    """Each request to the engine goes on after the tokens that the one before it sampled."""
    assert [recorded.fork_reason for recorded in calls] == [None] * len(calls)
    for (before, after), (asked, asked_next) in zip(
        pairwise(calls), pairwise(played.requests), strict=True
    ):
        assert after.parent == before.node
        known = [*asked["input_ids"], *before.output_ids]
        assert asked_next["input_ids"][: len(known)] == known


def changed_as_claude_code_does(answer: Any) -> list[dict[str, Any]]:
    """An input with its keys in another order and its numbers as integers; a blank text dropped."""
    blocks: list[dict[str, Any]] = echo(answer)["content"]
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = {"n": int(block["input"]["n"]), "path": block["input"]["path"]}
    return [block for block in blocks if block.get("text", "x").strip()]


async def test_an_echo_that_was_changed_goes_on_with_what_was_sampled(model: Path) -> None:
    script = [f"\n\n{call('a')}{END}", f"so{END}"]
    async with scripted_engine(model, *script) as played, talking(model, played.url) as talk:
        system = [text("x-anthropic-billing-header: cch=1;"), text("Be brief.")]
        first = await talk.ask([user([text("go")])], system=system)
        moved = [text("x-anthropic-billing-header: cch=2;"), {"type": "text", "text": "Be brief."}]
        turn = {"role": "assistant", "content": changed_as_claude_code_does(first)}
        await talk.ask([user("go"), turn, user(results(first))], system=moved)
        check_one_path(await talk.calls(), played)


@pytest.mark.parametrize(
    ("said", "types", "reason"),
    [
        ("", ["text"], "end_turn"),
        ("<think>\nhm\n</think>\n\n", ["thinking"], "end_turn"),
        ("<think>\nhm\n</think>\n\nso", ["thinking", "text"], "end_turn"),
        (f"so {call('a')}", ["text", "tool_use"], "tool_use"),
    ],
)
async def test_a_client_that_waits_long_gets_a_stream_that_is_whole(
    model: Path, said: str, types: list[str], reason: str
) -> None:
    """The engine comes after several idle events; nothing of the turn is lost, nothing doubled."""
    async with scripted_engine(model, said + END) as played:
        log = MemoryEventLog()
        facts = Facts(Journal(log, SystemClock()))
        await facts.submit(model, max_new_tokens=200)
        async with running_proxy(log, keepalive_s=0.05) as served:
            talk = Talk(served, facts, await facts.start(EXECUTION), stream=True)
            async with talk.sdk:
                asked = asyncio.create_task(talk.ask([user("go")], thinking=THINKING))
                await asyncio.sleep(0.4)
                await facts.rollout(0, played.url)
                answer = await asked
        blocks = [block for block in answer.content if block.type != "text" or block.text.strip()]
        idle = [block for block in answer.content if block not in blocks]
        assert [block.type for block in blocks or answer.content] == types
        assert [block.text for block in idle] in ([], [""])
        assert answer.stop_reason == reason
        [recorded] = await talk.calls()
        assert answer.usage.output_tokens == len(recorded.output_ids)


async def test_a_count_is_what_the_call_will_have_and_leaves_no_trace(talk: Talk) -> None:
    system = "Be brief."
    history: list[Any] = [user("turn 0")]
    for turn in range(3):
        request: dict[str, Any] = {"model": "policy", "messages": history, "tools": TOOLS}
        counts = [
            (await talk.sdk.messages.count_tokens(system=system, **request)).input_tokens
            for _ in range(2)
        ]
        other = [*history[:-1], user("another text, never asked")]
        await talk.sdk.messages.count_tokens(system=system, **request | {"messages": other})
        assert len(await talk.calls()) == turn
        answer = await talk.ask(history, system=system)
        recorded = (await talk.calls())[-1]
        assert counts == [recorded.num_input_tokens] * 2
        assert recorded.fork_reason is None
        history += [echo(answer), user([*results(answer), text(f"turn {turn}")])]
    live = talk.served.proxy._lives[EXECUTION]
    assert live.matcher.tree.nodes.keys() == (await talk.facts.tree(EXECUTION)).nodes.keys()


async def test_a_full_context_is_refused_in_the_words_that_make_clients_compact(
    talk: Talk,
) -> None:
    long = [user("word " * 3000)]
    with pytest.raises(anthropic.BadRequestError) as refused:
        await talk.ask(long)
    count = await talk.sdk.messages.count_tokens(model="policy", messages=long, tools=TOOLS)
    assert refused.value.body == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": f"prompt is too long: {count.input_tokens} tokens > "
            f"{CONTEXT_TOKENS - 1} maximum",
        },
        "request_id": refused.value.request_id,
    }
    assert await talk.calls() == []


async def test_errors_are_the_sdks_own(talk: Talk) -> None:
    stranger = Talk(talk.served, talk.facts, "sk-ant-nobody", stream=False)
    async with stranger.sdk:
        with pytest.raises(anthropic.AuthenticationError) as unknown:
            await stranger.ask([user("hi")])
        assert unknown.value.type == "authentication_error"
        with pytest.raises(anthropic.AuthenticationError):
            await stranger.sdk.messages.count_tokens(model="m", messages=[user("hi")])
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    with pytest.raises(anthropic.BadRequestError, match="Could not process image"):
        await talk.ask([user([text("see"), picture])])
    with pytest.raises(anthropic.NotFoundError) as missing:
        await talk.sdk.post("/v1/messages/batches", body={}, cast_to=object)
    assert missing.value.type == "not_found_error"
    assert await talk.calls() == []


async def test_a_body_over_the_limit_is_too_large(model: Path, engine: LocalEngine) -> None:
    async with talking(model, engine.url, limits={"max_body_bytes": 2000}) as talk:
        with pytest.raises(anthropic.APIStatusError) as refused:
            await talk.ask([user("x" * 3000)])
        assert (refused.value.status_code, str(refused.value.type)) == (413, "request_too_large")


async def test_an_overload_is_the_vendors_and_worth_a_retry(
    model: Path, engine: LocalEngine
) -> None:
    async with talking(model, engine.url, limits={"max_calls": 1}) as talk:
        key = await talk.facts.start("job-test-g0000-e1", cell=9)
        busy = Talk(talk.served, talk.facts, key, stream=False)
        async with busy.sdk:
            waits = asyncio.create_task(busy.ask([user("hi")]))
            while talk.served.proxy.calls.num_running == 0:
                await asyncio.sleep(0.01)
            with pytest.raises(anthropic.InternalServerError) as refused:
                await talk.ask([user("hi")])
            assert (refused.value.status_code, refused.value.type) == (529, "overloaded_error")
            assert 0 < int(refused.value.response.headers["retry-after"]) <= 60
            await talk.facts.rollout(9, engine.url)
            await waits
            await talk.ask([user("hi")])


async def test_the_path_and_the_headers_that_clients_use_are_served(talk: Talk) -> None:
    key = talk.sdk.api_key or ""
    for method in ("HEAD", "GET"):
        assert (await talk.served.http.request(method, "/api/hello")).status_code == 200
    body = {"model": "m", "max_tokens": 9, "messages": [user("hi")]}
    bearer = {"Authorization": f"Bearer {key}"}
    answered = await talk.served.http.post("/v1/messages?beta=true", json=body, headers=bearer)
    assert answered.status_code == 200, answered.text
    assert answered.json()["type"] == "message"
    refused = await talk.raw("/v1/messages", body | {"messages": "hi"})
    assert refused.json()["error"]["message"] == "messages: Input should be a valid list"
    [recorded] = await talk.calls()
    assert "max_tokens" in recorded.overridden
    assert key not in str(recorded)
