"""Roles of requests, by what each harness shows on the wire."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gyre.contracts.events.calls import RequestRole
from gyre.core.harness import harness_profile
from gyre.core.messages import Message
from gyre.core.origins import Origin, RequestFacts
from gyre.testkit.matched_calls import MatchedCalls
from gyre.testkit.toy_encoder import ToyEncoder

SUMMARY = (
    "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n"
    "- Your entire response must be plain text: an <analysis> block followed by a <summary> block."
)
TURN = Message(role="assistant", content="I look.")
AGENT = {"x-claude-code-agent-id": "a1", "x-claude-code-session-id": "s"}
NESTED = AGENT | {"x-claude-code-parent-agent-id": "a0"}


def user(*blocks: str) -> Message:
    return Message(role="user", content="\n".join(blocks), blocks=blocks)


def origin(profile: str, *messages: Message, **facts: Any) -> Origin:
    known = {"headers": {}, "num_tools": 3} | facts
    asked = RequestFacts(messages=messages or (user("do it"),), **known)
    return harness_profile(profile).origin(asked)


def codex(turn: dict[str, Any] | None = None, **headers: str) -> Origin:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if turn is not None:
        named["x-codex-turn-metadata"] = json.dumps(turn)
    return origin("codex", headers=named)


def test_a_request_without_signs_is_the_main_agents() -> None:
    for profile in ("llm", "command", "claude-code", "codex", "mini-swe-agent"):
        assert origin(profile) == Origin(role="main")


def test_claude_codes_agents_are_known_by_their_headers() -> None:
    assert origin("claude-code", headers=AGENT) == Origin(role="sub-agent", agent="a1")
    nested = Origin(role="sub-agent", agent="a1", parent_agent="a0")
    assert origin("claude-code", headers=NESTED) == nested


@pytest.mark.parametrize("after", [(), (Message(role="system", content="a reminder"),)])
def test_claude_codes_summary_is_known_by_the_last_words_of_the_user(
    after: tuple[Message, ...],
) -> None:
    demand = (user("do it"), TURN, user("a tool said this", SUMMARY), *after)
    assert origin("claude-code", *demand).role == "main-summary"
    assert origin("claude-code", *demand, headers=AGENT).role == "sub-agent-summary"


@pytest.mark.parametrize(
    "messages",
    [
        (user(SUMMARY), TURN),
        (user(SUMMARY), TURN, user("go on")),
        (user(SUMMARY, "go on"),),
        (user("what do <analysis> and <summary> mean?"),),
        (user("do it"), TURN, Message(role="tool", content=SUMMARY, tool_call_id="c")),
    ],
)
def test_words_of_a_summary_elsewhere_are_no_summary(messages: tuple[Message, ...]) -> None:
    assert origin("claude-code", *messages).role == "main"


def test_what_claude_code_asks_without_tools_is_its_own_business() -> None:
    assert origin("claude-code", num_tools=0, json_schema=True).role == "other"
    assert origin("claude-code", user(SUMMARY), num_tools=0).role == "main-summary"


def test_codex_labels_its_requests() -> None:
    assert codex({"request_kind": "turn", "thread_id": "t"}) == Origin(role="main")
    assert codex({"request_kind": "compaction"}).role == "main-summary"
    assert codex({"request_kind": "prewarm"}).role == "other"
    assert codex({"thread_source": "thread_title"}).role == "other"
    assert codex(x_openai_subagent="guardian").role == "other"
    assert codex(x_openai_subagent="compact") == Origin(role="main-summary")


def test_codexs_sub_agents_name_themselves_and_their_parent() -> None:
    headers = {
        "x_openai_subagent": "collab_spawn",
        "x_codex_parent_thread_id": "t0",
        "thread_id": "t1",
    }
    spawned = codex({"request_kind": "turn"}, **headers)
    assert spawned == Origin(role="sub-agent", agent="t1", parent_agent="t0")
    assert codex({"request_kind": "compaction"}, **headers).role == "sub-agent-summary"
    assert codex(x_openai_subagent="memory_consolidation").role == "other"


@pytest.mark.parametrize("header", ["{", "[1]", "null", '{"request_kind": 7}', "[" * 100_000])
def test_codex_metadata_that_cannot_be_read_says_nothing(header: str) -> None:
    assert codex(x_codex_turn_metadata=header) == Origin(role="main")


def test_a_program_that_says_nothing_is_known_by_the_head_of_its_requests() -> None:
    assert origin("command", same_head=False).role == "sub-agent"
    assert origin("command", num_tools=0, json_schema=True).role == "other"
    assert origin("command", json_schema=True).role == "main"


def test_a_title_that_is_asked_first_does_not_make_the_main_agent_another_one() -> None:
    calls, encoder = MatchedCalls(), ToyEncoder()

    def asks(system: str, tools: list[dict[str, Any]], role: RequestRole) -> bool:
        messages = (Message(role="system", content=system), Message(role="user", content="do it"))
        is_first = calls.matcher.opening(messages, tools).is_first
        plan = calls.matcher.plan(messages, tools, attempt=1, encoder=encoder, request_role=role)
        calls.record(plan, (7, 8), None, request_role=role)
        return is_first

    tools = [{"type": "function", "function": {"name": "run"}}]
    asks("name this session", [], "other")
    assert asks("you are an agent", tools, "main")
    assert asks("you are an agent", tools, "main")
    assert not asks("you look things up", tools, "sub-agent")


def test_a_profile_says_which_roles_are_trained_and_in_which_order() -> None:
    papers = ("main", "main-summary", "sub-agent", "sub-agent-summary")
    for profile in ("llm", "command", "claude-code", "codex", "mini-swe-agent"):
        assert harness_profile(profile).class_order == papers
