"""Anthropic's own SDK against the proxy, over a real `local` engine and one that plays a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.contracts.events.calls import CallRecorded
from gyre.testkit.proxy_world import (
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

    async def calls(self) -> list[CallRecorded]:
        events = await self.facts.calls(EXECUTION)
        return [event for event in events if isinstance(event, CallRecorded)]


@asynccontextmanager
async def talking(model: Path, url: str, *, stream: bool = False) -> AsyncIterator[Talk]:
    log = MemoryEventLog()
    facts = Facts(Journal(log, SystemClock()))
    await facts.submit(model, max_new_tokens=200)
    async with running_proxy(log) as served:
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
