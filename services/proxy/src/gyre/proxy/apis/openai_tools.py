"""OpenAI's tools as a model of functions reads them, and its calls as the client knows them.

The model knows functions only. A custom tool, whose input is free text, is a function of one string
parameter; a function of a namespace is one whose name begins with the namespace's. Both are undone
on the way out and done again when a call comes back. Tools that the vendor runs itself are left
out, since nothing here could run them, and named in `overridden`: Codex offers a web search with
every request and does without.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gyre.core.messages import ToolCall
from gyre.proxy.apis.base import MAX_TOOLS
from gyre.proxy.apis.openai import invalid_value, missing, read_list, wrong_type
from gyre.proxy.requests import AnswerCall, BadRequest

# The one parameter of a custom tool, as the model reads it.
INPUT = "input"
_NAME_CHARS = 128
_HOSTED = frozenset(
    {
        "apply_patch",
        "code_interpreter",
        "computer",
        "computer_use_preview",
        "file_search",
        "image_generation",
        "local_shell",
        "mcp",
        "programmatic_tool_calling",
        "shell",
        "tool_search",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool as the client declared it. is_custom: its input is free text."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCall:
    """A call in the client's words. payload: JSON arguments, or a custom tool's input."""

    id: str
    tool: Tool
    payload: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolbox:
    """A request's tools. functions: as the model reads them. by_name: of the functions. overridden:
    what of the client's list is not obeyed."""

    functions: tuple[Mapping[str, Any], ...]
    by_name: Mapping[str, Tool]
    overridden: tuple[str, ...]

    def client_call(self, call: AnswerCall) -> ClientCall:
        """A sampled call as the client knows the tool. One that it never declared is a function:
        the client says itself that there is none."""
        tool = self.by_name.get(call.name, Tool(name=call.name))
        payload = _input(call.arguments) if tool.is_custom else call.arguments
        return ClientCall(id=call.id, tool=tool, payload=payload)


def function_call(identity: str, name: str, namespace: str | None, arguments: str) -> ToolCall:
    """A client's call of a function as the model made it."""
    return ToolCall(id=identity, name=flat_name(name, namespace), arguments=arguments)


def custom_call(identity: str, name: str, namespace: str | None, text: str) -> ToolCall:
    """A client's call of a custom tool as the model made it."""
    arguments = orjson.dumps({INPUT: text}).decode()
    return ToolCall(id=identity, name=flat_name(name, namespace), arguments=arguments)


def flat_name(name: str, namespace: str | None) -> str:
    return f"{namespace}.{name}" if namespace else name


def read_tools(raw: Mapping[str, Any]) -> Toolbox:
    """The tools of a request in either API's form. Raises BadRequest."""
    functions: list[Mapping[str, Any]] = []
    by_name: dict[str, Tool] = {}
    overridden: dict[str, None] = {}
    for function, tool, marks in _tools(read_list(raw, "tools"), "tools", None, None):
        overridden.update(dict.fromkeys(marks))
        if function is None or tool is None:
            continue
        functions.append(function)
        if len(functions) > MAX_TOOLS:
            raise BadRequest(
                f"Invalid 'tools': array too long. Expected at most {MAX_TOOLS} tools.",
                code="array_above_max_length",
                param="tools",
            )
        name = flat_name(tool.name, tool.namespace)
        if by_name.setdefault(name, tool) != tool:
            raise BadRequest(f"Duplicate tool name: '{name}'.", param="tools")
    return Toolbox(functions=tuple(functions), by_name=by_name, overridden=tuple(overridden))


_Found = tuple[Mapping[str, Any] | None, Tool | None, list[str]]


def _tools(
    tools: Sequence[Any], where: str, namespace: str | None, about: str | None
) -> Iterator[_Found]:
    """Each tool as a function and as declared, or neither, and what of it is not obeyed. about: of
    the namespace, told with its first tool."""
    for index, tool in enumerate(tools):
        param = f"{where}[{index}]"
        if not isinstance(tool, dict):
            raise wrong_type(param, "an object")
        kind = tool.get("type")
        match kind:
            case "function":
                yield _function(tool, param, namespace, about)
            case "custom":
                yield _custom(tool, param, namespace, about)
            case "namespace" if namespace is None:
                name, text = _name(tool, param), _description(tool, param)
                yield from _tools(read_list(tool, "tools"), f"{param}.tools", name, text)
            case str() if kind in _HOSTED:
                yield None, None, [f"tools.{kind}"]
            case _:
                raise invalid_value(f"{param}.type", kind, "function", "custom", "namespace")
        about = None


def _function(
    tool: Mapping[str, Any], param: str, namespace: str | None, about: str | None
) -> _Found:
    declared = tool.get("function", tool)
    if not isinstance(declared, dict):
        raise wrong_type(f"{param}.function", "an object")
    name = _name(declared, param)
    parameters = declared.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise wrong_type(f"{param}.parameters", "an object")
    marks = ["tools.strict"] if declared.get("strict") is True else []
    shown = _shown(name, namespace, about, _description(declared, param), parameters)
    return shown, Tool(name=name, namespace=namespace), marks


def _custom(
    tool: Mapping[str, Any], param: str, namespace: str | None, about: str | None
) -> _Found:
    declared = tool.get("custom", tool)
    if not isinstance(declared, dict):
        raise wrong_type(f"{param}.custom", "an object")
    name = _name(declared, param)
    text = "The whole input, as plain text."
    asked = declared.get("format")
    grammar = asked.get("grammar", asked) if isinstance(asked, dict) else None
    marks = []
    if isinstance(grammar, dict) and isinstance(grammar.get("definition"), str):
        text += f" It follows this {grammar.get('syntax')} grammar:\n{grammar['definition']}"
        marks.append("tools.format")
    parameters = {
        "type": "object",
        "properties": {INPUT: {"type": "string", "description": text}},
        "required": [INPUT],
    }
    shown = _shown(name, namespace, about, _description(declared, param), parameters)
    return shown, Tool(name=name, namespace=namespace, is_custom=True), marks


def _shown(
    name: str,
    namespace: str | None,
    about: str | None,
    description: str | None,
    parameters: Mapping[str, Any] | None,
) -> Mapping[str, Any]:
    function: dict[str, Any] = {"name": flat_name(name, namespace)}
    text = "\n\n".join(filter(None, (about, description)))
    if text or description is not None:
        function["description"] = text
    if parameters is not None:
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def _name(declared: Mapping[str, Any], param: str) -> str:
    name = declared.get("name")
    if name is None:
        raise missing(f"{param}.name")
    if not isinstance(name, str) or not 0 < len(name) <= _NAME_CHARS:
        raise wrong_type(f"{param}.name", f"a string of 1 to {_NAME_CHARS} characters")
    return name


def _description(declared: Mapping[str, Any], param: str) -> str | None:
    text = declared.get("description")
    if text is not None and not isinstance(text, str):
        raise wrong_type(f"{param}.description", "a string")
    return text


def _input(arguments: str) -> str:
    """The text in a custom tool's arguments, or the arguments themselves where the model put them
    otherwise: the tool says what is wrong with them, nothing is repaired."""
    try:
        found = orjson.loads(arguments)
    except orjson.JSONDecodeError:  # nested deeper than this parser goes
        return arguments
    text = found.get(INPUT) if isinstance(found, dict) and len(found) == 1 else None
    return text if isinstance(text, str) else arguments
