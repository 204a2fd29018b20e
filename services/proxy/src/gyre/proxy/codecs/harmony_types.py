"""Tools as gpt-oss reads them: functions of a TypeScript namespace, made of their JSON schemas.

Written to give, letter by letter, what `openai_harmony` 0.0.8 gives; its own is compiled into its
vocabulary's loader and cannot be called alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

_NAMES = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean"}


def tools_section(namespace: str, description: str | None, tools: Sequence[Any]) -> str:
    """tools: each with name, description and parameters, a JSON schema or None."""
    lines = [f"## {namespace}\n"]
    mark = "// " if tools else ""
    lines += [mark + line for line in _lines(description or "")]
    if tools:
        lines.append(f"namespace {namespace} {{\n")
        for tool in tools:
            lines += [f"// {line}" for line in _lines(tool.description)]
            taken = "" if tool.parameters is None else f"_: {typed(tool.parameters)}"
            lines.append(f"type {tool.name} = ({taken}) => any;\n")
        lines.append(f"}} // namespace {namespace}")
    return "\n".join(["# Tools\n", *lines])


def typed(schema: Any, indent: str = "") -> str:
    """The type that a JSON schema describes; "any" for what is no schema."""
    one_of = _get(schema, "oneOf")
    if isinstance(one_of, list):
        return "".join(f"\n{indent} | {_variant(it, indent)}" for it in one_of)
    kind = _get(schema, "type")
    if isinstance(kind, list):
        names = ["number" if it == "integer" else it for it in kind if isinstance(it, str)]
        if names:
            return " | ".join(names)
    if kind == "object":
        return _object(schema, indent)
    if kind == "array":
        items = _get(schema, "items", _NOTHING)
        return "Array<any>" if items is _NOTHING else f"{typed(items, indent)}[]"
    if kind == "string" and _is_enum(schema):
        values = [f'"{it}"' for it in schema["enum"] if isinstance(it, str)]
        if values:
            return " | ".join(values)
    return _NAMES.get(kind, "any") if isinstance(kind, str) else "any"


_NOTHING = object()


def _get(schema: Any, key: str, default: Any = None) -> Any:
    return schema.get(key, default) if isinstance(schema, dict) else default


def _has(schema: Any, key: str) -> bool:
    return isinstance(schema, dict) and key in schema


def _text(schema: Any, key: str) -> str | None:
    value = _get(schema, key)
    return value if isinstance(value, str) else None


def _is_enum(schema: Any) -> bool:
    values = _get(schema, "enum")
    return isinstance(values, list) and bool(values)


def _nullable(schema: Any, indent: str) -> str:
    name = typed(schema, indent)
    return f"{name} | null" if _get(schema, "nullable") is True and "null" not in name else name


def _default(schema: Any, *, quoted: bool) -> str | None:
    """quoted: whether the name of an enum's member stands in quotes."""
    value = _get(schema, "default", _NOTHING)
    if value is _NOTHING:
        return None
    if isinstance(value, str) and not _is_enum(schema):
        return f'default: "{value}"'
    if isinstance(value, str) and not quoted:
        return f"default: {value}"
    return f"default: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}"


def _variant(schema: Any, indent: str) -> str:
    """One of several types that stand below each other, with its notes."""
    notes = [_text(schema, "description"), _default(schema, quoted=True)]
    return _noted(_nullable(schema, f"{indent}   "), notes)


def _noted(name: str, notes: Sequence[str | None]) -> str:
    told = [note for note in notes if note is not None]
    return f"{name} // {' '.join(told)}" if told else name


def _object(schema: Any, indent: str) -> str:
    description = _text(schema, "description")
    head = "" if description is None else f"{indent}// {description}\n"
    properties = _get(schema, "properties")
    required = _get(schema, "required")
    needed = required if isinstance(required, list) else []
    lines: list[str] = []
    for key, value in (properties if isinstance(properties, dict) else {}).items():
        name = key if key in needed else f"{key}?"
        lines += _comments(value)
        variants = _get(value, "oneOf")
        if isinstance(variants, list):
            lines += _choice(name, value, variants, indent)
            continue
        note = None if _has(value, "oneOf") else _default(value, quoted=False)
        lines.append(_noted(f"{name}: {_nullable(value, indent + '    ')},", [note]))
    body = "".join(f"{indent}{line}\n" for line in lines)
    return f"{head}{{\n{body}{indent}}}"


def _comments(schema: Any) -> Iterator[str]:
    """What stands above a property."""
    title = _text(schema, "title")
    if title is not None:
        yield f"// {title}"
        yield "//"
    description = _text(schema, "description")
    if description is not None and not _has(schema, "oneOf"):
        yield f"// {description}"
    examples = _get(schema, "examples")
    if isinstance(examples, list) and examples:
        yield "// Examples:"
        yield from (f'// - "{it}"' for it in examples if isinstance(it, str))


def _choice(name: str, schema: Any, variants: Sequence[Any], indent: str) -> Iterator[str]:
    """A property of several types, each on a line. A description that it shares with the first of
    them is told once."""
    own = _text(schema, "description")
    first = _text(variants[0], "description") if variants else None
    is_above = own is not None and own != first
    if is_above:
        yield f"// {own}"
    default = _default(schema, quoted=False)
    if default is not None:
        yield f"// {default}"
    yield f"{name}:"
    for place, variant in enumerate(variants):
        told = _text(variant, "description")
        if told == own or (place == 0 and is_above):
            told = None
        notes = [told, _default(variant, quoted=False)]
        yield f" | {_noted(_nullable(variant, f'{indent}   '), notes)}"
    yield ","


def _lines(text: str) -> list[str]:
    """Without the line break's carriage return; a last line that is empty is none."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]
