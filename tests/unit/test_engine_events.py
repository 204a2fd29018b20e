"""An engine's stream is read event by event, whatever was sampled and however it was cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gyre.cell_agent.engine.events import event_texts

# What Unicode counts among the ends of lines, and what a stream is framed with.
CUTS = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\r\n\n"


def read(pieces: Sequence[bytes]) -> list[bytes]:
    async def arriving() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def all_of() -> list[bytes]:
        return [text async for text in event_texts(arriving())]

    return asyncio.run(all_of())


@given(
    st.lists(st.text(st.sampled_from(CUTS + "a")), min_size=1, max_size=4),
    st.lists(st.integers(0, 400), max_size=6),
)
def test_events_are_whole_whatever_they_hold_and_however_they_come(
    said: list[str], cuts: list[int]
) -> None:
    events = [orjson.dumps({"text": text}) for text in said]
    stream = b"".join(b"data: " + event + b"\n\n" for event in [*events, b"[DONE]"])
    edges = sorted({0, len(stream), *(cut % len(stream) for cut in cuts)})
    pieces = [stream[start:end] for start, end in pairwise(edges)]
    assert read(pieces) == events


def test_an_event_that_breaks_off_is_none() -> None:
    assert read([b'data: {"text": "a"}\n\ndata: {"text": "ab']) == [b'{"text": "a"}']
