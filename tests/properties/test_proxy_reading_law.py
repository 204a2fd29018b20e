"""The law of readings: knowing what was read before changes nothing but the time.

Each API reads random histories, edited, cut and continued as agent programs do it and as nobody
does, written with any spacing and key order: with what is known of the bodies before, and without.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.proxy import readings
from gyre.proxy.app import APIS
from gyre.proxy.readings import Readings
from gyre.proxy.recent import Recent
from gyre.proxy.requests import BadRequest, Request, Sampling
from gyre.proxy.sampling.contexts import ContextTexts

SAMPLING = Sampling(temperature=1.0, max_new_tokens=64)
IDS = ("c1", "c2", "c3")
TEXTS = ("", "a", "ä\n", "\\ud83d x", '"],{"messages":[{', "\x00")


@pytest.fixture(autouse=True)
def short_bodies_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "_SHORT_BYTES", 0)
    monkeypatch.setattr(readings, "_PIECE_BYTES", 64)


def chat_item(draw: st.DrawFn) -> dict[str, Any]:
    text, call = draw(st.sampled_from(TEXTS)), draw(st.sampled_from(IDS))
    function = {"name": "run", "arguments": "{}"}
    calls = [{"id": call, "type": "function", "function": function}]
    return draw(
        st.sampled_from(
            [
                {"role": "user", "content": text},
                {"role": "user", "content": [{"type": "text", "text": text}]},
                {"role": "assistant", "content": text},
                {"role": "assistant", "content": None, "tool_calls": calls},
                {"role": "tool", "tool_call_id": call, "content": text},
                {"role": "system", "content": text},
                {"role": "nobody", "content": text},
            ]
        )
    )


def responses_item(draw: st.DrawFn) -> dict[str, Any]:
    text, call = draw(st.sampled_from(TEXTS)), draw(st.sampled_from(IDS))
    return draw(
        st.sampled_from(
            [
                {"type": "message", "role": "user", "content": text},
                {"role": "assistant", "content": [{"type": "output_text", "text": text}]},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]},
                {"type": "function_call", "call_id": call, "name": "run", "arguments": text},
                {"type": "custom_tool_call", "call_id": call, "name": "sh", "input": text},
                {"type": "function_call_output", "call_id": call, "output": text},
                {"type": "nothing"},
            ]
        )
    )


def messages_item(draw: st.DrawFn) -> dict[str, Any]:
    text, call = draw(st.sampled_from(TEXTS)), draw(st.sampled_from(IDS))
    block: dict[str, Any] = {"type": "text", "text": text}
    marked = block | {"cache_control": {"type": "ephemeral"}}
    use = {"type": "tool_use", "id": f"{call}{draw(st.integers(0, 9))}", "name": "run", "input": {}}
    return draw(
        st.sampled_from(
            [
                {"role": "user", "content": text},
                {"role": "user", "content": [block]},
                {"role": "user", "content": [marked]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call}, block]},
                {"role": "assistant", "content": [block]},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": text}, use]},
                {"role": "system", "content": text},
                {"role": "assistant", "content": [{"type": "image"}]},
            ]
        )
    )


ITEMS: dict[str, tuple[str, Callable[[st.DrawFn], dict[str, Any]]]] = {
    "/v1/chat/completions": ("messages", chat_item),
    "/v1/responses": ("input", responses_item),
    "/v1/messages": ("messages", messages_item),
}


def written(draw: st.DrawFn, name: str, items: Sequence[Any]) -> bytes:
    """The body, as some client writes it: other fields before and behind, or the list twice."""
    style = draw(st.sampled_from(["plain", "pretty", "ascii", "late", "twice", "cut", "comma"]))
    body: dict[str, Any] = {"model": "m", name: items, "system": "s", "tools": []}
    match style:
        case "pretty":
            return json.dumps(
                body, indent=draw(st.sampled_from([0, 2])), ensure_ascii=False
            ).encode()
        case "ascii":
            return json.dumps(body).encode()
        case "late":
            return orjson.dumps({"system": "s", "metadata": {name: [1]}, "model": "m", name: items})
        case "twice":
            again = orjson.dumps({name: items[: draw(st.integers(0, len(items)))]})
            return orjson.dumps(body)[:-1] + b"," + again[1:]
        case "cut":
            data = orjson.dumps(body)
            return data[: draw(st.integers(0, len(data)))]
        case "comma":
            return orjson.dumps(body).replace(b'],"system"', b',],"system"')
        case _:
            return orjson.dumps(body)


@st.composite
def conversations(draw: st.DrawFn, path: str) -> list[bytes]:
    """Bodies of one execution, each made of the one before."""
    name, item = ITEMS[path]
    items: list[Any] = []
    bodies = []
    for _ in range(draw(st.integers(2, 6))):
        edit = draw(st.sampled_from(["go on", "go on", "go on", "again", "drop", "change", "anew"]))
        if edit == "anew":
            items = []
        elif edit == "drop" and items:
            del items[draw(st.integers(0, len(items) - 1))]
        elif edit == "change" and items:
            items[draw(st.integers(0, len(items) - 1))] = item(draw)
        if edit != "again":
            items = items + [item(draw) for _ in range(draw(st.integers(0, 4)))]
        bodies.append(written(draw, name, items))
    return bodies


def outcome(read: Callable[[], Request]) -> Request | tuple[str, int, str | None, str | None]:
    try:
        return read()
    except BadRequest as fault:
        return str(fault), fault.status, fault.code, fault.param


@pytest.mark.parametrize("path", ITEMS)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_request_reads_the_same_with_what_is_known(path: str, data: st.DataObject) -> None:
    api = APIS[path]
    kept: Readings[str] = Readings(2**20)
    for body in data.draw(conversations(path)):
        known = kept.find("e", body)
        alone = outcome(lambda body=body: api.parse(body, {}, SAMPLING).request)  # type: ignore[misc]
        found = outcome(
            lambda body=body, known=known: api.parse(body, {}, SAMPLING, known).request  # type: ignore[misc]
        )
        assert found == alone
        if isinstance(found, Request):
            kept.keep("e", found.reading, known)


def test_what_is_known_is_not_read_again() -> None:
    api = APIS["/v1/chat/completions"]
    items = [{"role": "user", "content": str(number)} for number in range(50)]
    kept: Readings[str] = Readings(2**20)
    first = api.parse(orjson.dumps({"messages": items}), {}, SAMPLING).request
    kept.keep("e", first.reading, None)
    body = orjson.dumps({"messages": [*items, {"role": "user", "content": "new"}]})
    known = kept.find("e", body)
    assert known is not None
    assert known.num_items == 50
    second = api.parse(body, {}, SAMPLING, known).request
    assert all(a is b for a, b in zip(second.messages, first.messages, strict=False))
    kept.keep("e", second.reading, known)
    marked = [*items[:49], items[49] | {"mark": 1}, {"role": "user", "content": "new"}]
    known = kept.find("e", orjson.dumps({"messages": marked}))
    assert known is not None
    assert known.num_items == 49
    assert kept.find("another", body) is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=40))
def test_what_is_kept_stays_within_its_bytes(puts: list[tuple[int, int]]) -> None:
    recent: Recent[int, int] = Recent(64)
    model: dict[int, tuple[int, int]] = {}
    for number, (key, num_bytes) in enumerate(puts):
        recent.put(key, number, num_bytes)
        model.pop(key, None)
        if num_bytes > 64:
            continue
        model[key] = number, num_bytes
        while sum(size for _, size in model.values()) > 64:
            del model[next(iter(model))]
        assert recent.num_bytes == sum(size for _, size in model.values())
    assert all(recent.get(key) == model.get(key, (None, 0))[0] for key in range(6))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b"]),
            st.integers(0, 3000),
            st.lists(st.integers(0, 2**31 - 1), max_size=3),
        ),
        max_size=8,
    )
)
@settings(deadline=None)
def test_contexts_are_written_as_json_writes_them(
    calls: list[tuple[str, int, list[int]]],
) -> None:
    texts = ContextTexts(30_000)
    for execution, length, more in calls:
        ids = array("i", [*range(length), *more])
        for form in (ids, list(ids)):
            assert orjson.loads(b"[%s]" % b"".join(texts.pieces(execution, form))) == list(ids)
