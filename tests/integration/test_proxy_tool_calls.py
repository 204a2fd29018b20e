"""Tool calls and what clients make of them, over an engine that says what it is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.contracts.events.calls import CallRecorded
from gyre.testkit.proxy_world import TOOLS, Client, Facts, running_proxy
from gyre.testkit.scripted_engine import ScriptedEngine, scripted_engine
from gyre.testkit.tiny_model import make_tiny_model

EXECUTION = "job-test-g0000-e0"
CALL = '<tool_call>\n{"name": "write_file", "arguments": {"path":"a",  "n": 1.0}}\n</tool_call>'
BROKEN = "<tool_call>\n{broken\n</tool_call>"
END = "<|im_end|>"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("proxy_tools") / "m", seed=0)


class Talk:
    """One client against one script; its calls as they are recorded."""

    def __init__(self, client: Client, facts: Facts, engine: ScriptedEngine) -> None:
        self.client = client
        self.facts = facts
        self.engine = engine

    async def ask(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        response = await self.client.post({"messages": messages, "tools": TOOLS})
        assert response.status_code == 200, response.text
        choice: dict[str, Any] = response.json()["choices"][0]
        return choice

    async def calls(self) -> list[CallRecorded]:
        events = await self.facts.calls(EXECUTION)
        return [event for event in events if isinstance(event, CallRecorded)]


async def talk(model: Path, script: list[str], play: Any) -> None:
    log = MemoryEventLog()
    facts = Facts(Journal(log, SystemClock()))
    await facts.submit(model, max_new_tokens=200)
    async with scripted_engine(model, *script) as engine, running_proxy(log) as served:
        await facts.rollout(0, engine.url)
        client = served.client(await facts.start(EXECUTION))
        await play(Talk(client, facts, engine))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def result(call: dict[str, Any], text: str = "done") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call["id"], "content": text}


async def test_parallel_calls_come_back_reserialised_and_match_by_id(model: Path) -> None:
    async def play(talk: Talk) -> None:
        choice = await talk.ask([user("go")])
        message = choice["message"]
        assert choice["finish_reason"] == "tool_calls"
        assert message["content"] is None
        first, second = message["tool_calls"]
        assert first["id"] != second["id"]
        assert json.loads(first["function"]["arguments"]) == {"path": "a", "n": 1.0}
        for call in (first, second):
            call["function"]["arguments"] = '{"n":1,"path":"a"}'
        history = [user("go"), message, result(first), result(second)]
        await talk.ask(history)
        one, two = await talk.calls()
        assert (one.num_tool_calls, one.num_malformed_tool_calls) == (2, 0)
        assert (two.parent, two.fork_reason) == (one.node, None)
        assert [segment.role for segment in two.segments] == ["tool", "generation"]
        sent = talk.engine.requests[1]["input_ids"]
        before = talk.engine.requests[0]["input_ids"]
        assert sent[: len(before) + len(one.output_ids)] == [*before, *one.output_ids]

    await talk(model, [f"{CALL}\n{CALL}{END}", f"fine{END}"], play)


async def test_a_malformed_call_is_text_and_its_echo_matches(model: Path) -> None:
    async def play(talk: Talk) -> None:
        choice = await talk.ask([user("go")])
        assert "tool_calls" not in choice["message"]
        assert choice["finish_reason"] == "stop"
        assert "{broken" in choice["message"]["content"]
        await talk.ask([user("go"), choice["message"], user("that was no call")])
        one, two = await talk.calls()
        assert one.num_malformed_tool_calls == 1
        assert (two.parent, two.fork_reason) == (one.node, None)

    await talk(model, [BROKEN + END, f"sorry{END}"], play)


async def test_a_cut_turn_goes_on_from_its_own_tokens(model: Path) -> None:
    async def play(talk: Talk) -> None:
        choice = await talk.ask([user("go")])
        assert choice["finish_reason"] == "length"
        await talk.ask([user("go"), choice["message"], user("go on")])
        one, two = await talk.calls()
        assert (two.parent, two.fork_reason) == (one.node, None)

    await talk(model, ["half a sen", f"tence{END}"], play)


async def test_a_dropped_turn_and_a_compaction_are_forks_with_a_reason(model: Path) -> None:
    async def play(talk: Talk) -> None:
        first = (await talk.ask([user("go")]))["message"]
        await talk.ask([user("go"), user("again")])
        history = [user("go"), first, result(first["tool_calls"][0])]
        second = (await talk.ask(history))["message"]
        await talk.ask([user("a summary"), second, user("on")])
        calls = await talk.calls()
        assert [call.fork_reason for call in calls] == [None, "dropped_turn", None, "compaction"]
        tree = await talk.facts.tree(EXECUTION)
        assert [node.sampled.call for node in tree.targets() if node.sampled] == [
            call.call for call in calls
        ]
        sampled = list(calls[2].output_ids)
        text = ",".join(map(str, talk.engine.requests[3]["input_ids"]))
        assert ",".join(map(str, sampled)) in text

    await talk(model, [CALL + END, f"hm{END}", f"fine{END}", f"on{END}"], play)


async def test_logprobs_are_given_when_asked_for(model: Path) -> None:
    async def play(talk: Talk) -> None:
        response = await talk.client.post({"messages": [user("go")], "logprobs": True})
        content = response.json()["choices"][0]["logprobs"]["content"]
        assert "".join(entry["token"] for entry in content) == f"fine{END}"
        assert {entry["logprob"] for entry in content} == {-0.5}

    await talk(model, [f"fine{END}"], play)
