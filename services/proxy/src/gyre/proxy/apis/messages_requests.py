"""A Messages request's body to what is asked.

The job's sampling parameters override the client's: what was asked and not done is named in
`overridden`. An output format is not enforced either, since a grammar would falsify the recorded
probabilities. Tools that the vendor runs itself, or whose schema only the vendor knows, are
refused: without them a client's side request (a web search) would be answered out of thin air.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from gyre.proxy.apis.base import MAX_TOOLS
from gyre.proxy.apis.messages_history import read_messages, read_system
from gyre.proxy.readings import Known, opened, reading_of
from gyre.proxy.requests import BadRequest, Request, Sampling

# How much of the model's thinking the client is shown: its text, only that there was some, nothing.
Thinking = Literal["shown", "omitted", "hidden"]

# What a request may carry with these values and nothing is overridden by ignoring it.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_p": (None, 1),
    "top_k": (None, 0, -1),
    "stop_sequences": (None, []),
    "output_format": (None,),
}
_REFUSED = ("mcp_servers", "container")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request, and what of the answer this API's client is shown."""

    request: Request
    thinking: Thinking


def read_request(
    body: bytes,
    headers: Mapping[str, str],
    sampling: Sampling,
    known: Known | None = None,
) -> Asked:
    """Raises BadRequest, with the field at fault in its text."""
    found = opened(body, "messages", known, _object)
    raw = found.raw
    model = raw.get("model", "policy")
    if not isinstance(model, str):
        raise BadRequest("model: Input should be a valid string", param="model")
    for name in _REFUSED:
        if raw.get(name):
            raise BadRequest(f"{name}: not served here", param=name)
    thinking = _part(raw, "thinking")
    choice = _part(raw, "tool_choice")
    system = read_system(raw.get("system"))
    messages, closed = read_messages(raw.get("messages"), found.num_known, found.messages)
    request = Request(
        model=model,
        messages=system + found.messages + messages,
        tools=_tools(raw.get("tools"), model),
        tool_calls=choice.get("type") != "none",
        stream=raw.get("stream") is True,
        json_schema=_wants_schema(raw),
        overridden=tuple(_overridden(raw, thinking, choice, sampling)),
        headers=headers,
        reading=reading_of(body, "messages", found, closed, messages, len(system)),
    )
    return Asked(request=request, thinking=_shown(thinking))


def _object(body: bytes) -> dict[str, Any]:
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"The request body is not valid JSON: {error}") from error
    if not isinstance(raw, dict):
        raise BadRequest("The request body is not valid JSON: expected an object")
    return raw


def _part(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The object of that name; empty if there is none."""
    value = raw.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadRequest(f"{name}: Input should be an object", param=name)
    return value


def _shown(thinking: Mapping[str, Any]) -> Thinking:
    if thinking.get("type") not in ("enabled", "adaptive"):
        return "hidden"
    return "omitted" if thinking.get("display") == "omitted" else "shown"


def _overridden(
    raw: Mapping[str, Any],
    thinking: Mapping[str, Any],
    choice: Mapping[str, Any],
    sampling: Sampling,
) -> Iterator[str]:
    if raw.get("temperature") not in (None, sampling.temperature):
        yield "temperature"
    if raw.get("max_tokens") not in (None, sampling.max_new_tokens):
        yield "max_tokens"
    for name, neutral in _NEUTRAL.items():
        if raw.get(name) not in neutral:
            yield name
    if thinking and thinking.get("type") != "adaptive":
        yield "thinking"  # the policy thinks as it has learnt to
    for name, value in _part(raw, "output_config").items():
        if value is not None:
            yield f"output_config.{name}"
    if not _keeps_everything(_part(raw, "context_management")):
        yield "context_management"
    if choice.get("type") in ("any", "tool"):
        yield "tool_choice"
    if choice.get("disable_parallel_tool_use") is True:
        yield "disable_parallel_tool_use"


def _wants_schema(raw: Mapping[str, Any]) -> bool:
    formats = (raw.get("output_format"), _part(raw, "output_config").get("format"))
    return any(isinstance(item, dict) and item.get("type") == "json_schema" for item in formats)


def _keeps_everything(management: Mapping[str, Any]) -> bool:
    """Whether no edit of the context is asked for: history stays as it was sampled."""
    edits = management.get("edits") or []
    return isinstance(edits, list) and all(
        isinstance(edit, dict) and edit.get("keep") == "all" for edit in edits
    )


def _tools(tools: Any, model: str) -> tuple[Mapping[str, Any], ...]:
    """Canonical functions, in the client's order."""
    if tools is None:
        return ()
    if not isinstance(tools, list):
        raise BadRequest("tools: Input should be a valid list", param="tools")
    if len(tools) > MAX_TOOLS:
        raise BadRequest(
            f"tools: List should have at most {MAX_TOOLS} items after validation, not {len(tools)}",
            param="tools",
        )
    read = tuple(_tool(tool, f"tools.{index}", model) for index, tool in enumerate(tools))
    if len({tool["function"]["name"] for tool in read}) < len(read):
        raise BadRequest("tools: Tool names must be unique.", param="tools")
    return read


def _tool(tool: Any, where: str, model: str) -> Mapping[str, Any]:
    if not isinstance(tool, dict):
        raise BadRequest(f"{where}: Input should be an object", param="tools")
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise BadRequest(f"{where}: '{model}' does not support tool types: {kind}.", param="tools")
    name, description, schema = tool.get("name"), tool.get("description"), tool.get("input_schema")
    if not isinstance(name, str) or not name:
        raise BadRequest(f"{where}.custom.name: Input should be a valid string", param="tools")
    if not isinstance(schema, dict):
        raise BadRequest(f"{where}.custom.input_schema: Input should be an object", param="tools")
    try:
        orjson.dumps(schema)
    except orjson.JSONEncodeError as error:
        text = f"{where}.custom.input_schema: Input is nested too deeply"
        raise BadRequest(text, param="tools") from error
    function: dict[str, Any] = {"name": name}
    if isinstance(description, str):
        function["description"] = description
    return {"type": "function", "function": function | {"parameters": schema}}
