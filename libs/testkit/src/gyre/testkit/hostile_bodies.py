"""Requests as each API's clients send them, and what may be wrong with them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "x": "SCHEMA"}

# One request an API, by its path, with every kind of part that its clients send.
VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "policy",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {
                "role": "assistant",
                "content": "I write",
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "write", "arguments": '{"path":"a"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "done"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {"name": "write", "description": "Write", "parameters": _SCHEMA},
            }
        ],
        "tool_choice": "auto",
        "temperature": 0.5,
        "max_tokens": 10,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": True,
    },
    "/v1/messages": {
        "model": "policy",
        "max_tokens": 100,
        "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": ""},
                    {"type": "text", "text": "I write"},
                    {"type": "tool_use", "id": "toolu_1", "name": "write", "input": {"path": "a"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "done"},
                    {"type": "text", "text": "go on"},
                ],
            },
        ],
        "tools": [{"name": "write", "description": "Write", "input_schema": _SCHEMA}],
        "tool_choice": {"type": "auto"},
        "metadata": {"user_id": "u"},
        "stream": True,
    },
    "/v1/responses": {
        "model": "policy",
        "instructions": "be brief",
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {
                "type": "function_call",
                "call_id": "call_1",
                "name": "write",
                "arguments": '{"path":"a"}',
            },
            {"type": "function_call_output", "call_id": "call_1", "output": "done"},
        ],
        "tools": [
            {"type": "function", "name": "write", "description": "Write", "parameters": _SCHEMA}
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "stream": True,
    },
}

_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(
        ["", "user", "assistant", "tool", "system", "text", "call_1", "toolu_1", "image", "\x00"]
    ),
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)


@st.composite
def edited(draw: st.DrawFn, body: dict[str, Any]) -> dict[str, Any]:
    """`body` with one to three of its parts replaced, dropped or doubled. Changes `body`."""
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(body))
        if not places:
            break
        holder, key = draw(st.sampled_from(places))
        match draw(st.sampled_from(("replace", "drop", "double", "add"))):
            case "replace":
                holder[key] = draw(_VALUES)
            case "drop":
                del holder[key]
            case "double" if isinstance(holder, list):
                holder.append(holder[key])
            case _ if isinstance(holder, dict):
                holder[draw(st.text(max_size=6))] = draw(_VALUES)
            case _:
                holder.append(draw(_VALUES))
    return body


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in `value`."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, part in list(items):
        found.append((value, key))
        if isinstance(part, dict | list):
            found += _places(part)
    return found
