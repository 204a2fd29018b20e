"""Server-sent events of an engine's stream, one JSON text each."""

from __future__ import annotations

from collections.abc import AsyncIterator

_SEPARATOR = b"\n\n"
_PREFIX = b"data: "
_DONE = b"[DONE]"


async def event_texts(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of each event that is whole. Sampled text may hold any character, also those that
    Unicode counts among the ends of lines, so only the bytes of an event's end are one."""
    rest = b""
    async for piece in pieces:
        *events, rest = (rest + piece).split(_SEPARATOR)
        for event in events:
            data = event.removeprefix(_PREFIX)
            if data != event and data != _DONE:
                yield data
