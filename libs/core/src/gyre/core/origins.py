"""Where in a harness a request comes from: its role, and which of the harness's agents asks.

Harnesses say it in headers, some in the words of the request; each function here reads one
harness's signs, pure, over the same facts. They were seen on the wire of the versions that the
profiles name. A request that shows none of the signs is its main agent's.

| role | the request |
|---|---|
| main | the agent that was given the task |
| main-summary | its history, to be summed up because the context is full |
| sub-agent, sub-agent-summary | the same of an agent that another one started |
| other | what the program asks for itself, such as a title: recorded, never trained |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gyre.contracts.events.calls import RequestRole
from gyre.core.messages import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """What a request shows, whichever API it came by.

    headers: the client's, names in lower case. json_schema: the answer has to fit a schema.
    same_head: it opens with the tools and the system text of the execution's first request that an
    agent made, or there was none yet.
    """

    headers: Mapping[str, str]
    messages: Sequence[Message]
    num_tools: int
    json_schema: bool = False
    same_head: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """agent, parent_agent: the harness's own names of the sub-agent that asks and of the agent that
    started it; None for the main agent, and where the harness does not say."""

    role: RequestRole
    agent: str | None = None
    parent_agent: str | None = None


ReadOrigin: TypeAlias = Callable[[RequestFacts], Origin]

# What Claude Code's demand for a summary says whatever else it says; not what a task would.
_CLAUDE_SUMMARY = ("CRITICAL: Respond with TEXT ONLY", "<analysis>", "<summary>")
# Codex's threads that nobody asked for: it names its sessions, keeps memories and reviews what asks
# for approval by itself.
_CODEX_OWN_THREADS = ("thread_title", "memory_consolidation", "guardian")
# The thread in which Codex sums up its main agent's history, where that is a thread of its own.
_CODEX_COMPACT_THREAD = "compact"


def main_origin(facts: RequestFacts) -> Origin:
    """A harness that has one agent."""
    return Origin(role="main")


def generic_origin(facts: RequestFacts) -> Origin:
    """By the shape of the prefix, for programs that say nothing: an answer in a schema without
    tools is the program's own business, another head another agent."""
    if facts.json_schema and facts.num_tools == 0:
        return Origin(role="other")
    return Origin(role="main" if facts.same_head else "sub-agent")


def claude_code_origin(facts: RequestFacts) -> Origin:
    """Claude Code 2.1.220: agents by header, a summary by the last words of the user."""
    agent = facts.headers.get("x-claude-code-agent-id") or None
    parent = facts.headers.get("x-claude-code-parent-agent-id") or None
    is_summary = _demands_claude_summary(facts.messages)
    if facts.num_tools == 0 and not is_summary:
        return Origin(role="other", agent=agent, parent_agent=parent)
    return _of(agent, parent, is_summary=is_summary)


def codex_origin(facts: RequestFacts) -> Origin:
    """Codex 0.171.0: every request is labelled in its headers."""
    turn = _codex_metadata(facts.headers)
    parent = facts.headers.get("x-codex-parent-thread-id") or _text(turn, "parent_thread_id")
    kind = facts.headers.get("x-openai-subagent") or _text(turn, "subagent_kind")
    if kind == _CODEX_COMPACT_THREAD:
        return Origin(role="main-summary")
    is_sub_agent = kind is not None or parent is not None
    agent = _text(turn, "thread_id") or facts.headers.get("thread-id") if is_sub_agent else None
    request = _text(turn, "request_kind") or "turn"
    own = {kind, _text(turn, "thread_source")}.intersection(_CODEX_OWN_THREADS)
    if own or request not in ("turn", "compaction"):
        return Origin(role="other", agent=agent, parent_agent=parent)
    if is_sub_agent:
        role: RequestRole = "sub-agent-summary" if request == "compaction" else "sub-agent"
        return Origin(role=role, agent=agent, parent_agent=parent)
    return Origin(role="main-summary" if request == "compaction" else "main")


def _of(agent: str | None, parent: str | None, *, is_summary: bool) -> Origin:
    if agent is None:
        return Origin(role="main-summary" if is_summary else "main")
    role: RequestRole = "sub-agent-summary" if is_summary else "sub-agent"
    return Origin(role=role, agent=agent, parent_agent=parent)


def _demands_claude_summary(messages: Sequence[Message]) -> bool:
    """The user's last text block; a system reminder may stand after it, no turn."""
    for message in reversed(messages):
        if message.role == "system":
            continue
        if message.role != "user":
            return False
        last = message.blocks[-1] if message.blocks else message.content
        return all(part in last for part in _CLAUDE_SUMMARY)
    return False


def _codex_metadata(headers: Mapping[str, str]) -> Mapping[str, Any]:
    """A client's header may hold anything: what is no JSON object says nothing."""
    try:
        found = json.loads(headers.get("x-codex-turn-metadata", "{}"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(metadata: Mapping[str, Any], name: str) -> str | None:
    value = metadata.get(name)
    return value if isinstance(value, str) and value else None
