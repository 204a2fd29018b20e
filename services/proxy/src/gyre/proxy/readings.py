"""What of a request's history was read before.

Agent programs resend their whole history, byte by byte the same up to what is new. So a body is
compared with those of the execution's last requests, at the speed of memory, and list items that
lie wholly in the part that is equal are neither parsed nor translated again.

That is exact. Bytes that a JSON text begins with fix which items stand in which list before they
end, whatever follows; only another list of the same name, later on, would take the list's place.
So the known items are cut out, and a mark that no client can know is put there: the rest is read if
the mark is found where it belongs, and if not, the whole body.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import orjson

from gyre.core.matching import Trail
from gyre.core.messages import Message, num_chars
from gyre.proxy.recent import Recent

# Shorter bodies are read and matched in less time than is spent on knowing them again.
_SHORT_BYTES = 1024
# Of one execution: it and sub-agents that run beside it.
_KEPT = 4
# Two bodies are compared piece by piece, so that where they differ is found in one.
_PIECE_BYTES = 32 * 1024
# What a message takes beside its text.
_MESSAGE_BYTES = 256

K = TypeVar("K")

_MARK = secrets.token_hex(16)
_MARK_JSON = orjson.dumps(_MARK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """body: of a request, up to the end of the last item of the list that holds its history.
    start: where the first item may begin. ends: of the items. closed: how many messages the items
    up to each one make, or -1 where the next item may belong to the last message. messages: that
    all items make, without what a request says beside its list. num_chars: of what is said up to
    each of them. trail: of the call that came of it, for the next one; no part of the reading, but
    kept as long."""

    body: bytes
    start: int
    ends: array[int]
    closed: array[int]
    messages: tuple[Message, ...]
    num_chars: array[int]
    trail: Trail = field(default_factory=Trail, compare=False, repr=False)

    @property
    def num_bytes(self) -> int:
        """Of memory, about: the body, and its texts once more."""
        return 2 * len(self.body) + _MESSAGE_BYTES * len(self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What of a body was read before: the first `num_items` of the reading's, one at least."""

    reading: Reading
    num_items: int

    @property
    def num_bytes(self) -> int:
        """Of the body, up to the end of what is known."""
        return self.reading.ends[self.num_items - 1]

    @property
    def messages(self) -> tuple[Message, ...]:
        """What it makes."""
        return self.reading.messages[: self.reading.closed[self.num_items - 1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A parsed body. raw: its object, with only what is not known in the list. text: what raw was
    parsed from. known: what is left out there."""

    raw: Mapping[str, Any]
    text: bytes
    known: Known | None = None
    messages: tuple[Message, ...] = ()

    @property
    def num_known(self) -> int:
        """Items of the client's list that are left out in raw."""
        return 0 if self.known is None else self.known.num_items


class Readings(Generic[K]):
    """The last ones by execution and API. Mutated by `keep`."""

    def __init__(self, max_bytes: int) -> None:
        self._recent: Recent[K, tuple[Reading, ...]] = Recent(max_bytes)

    def find(self, key: K, body: bytes) -> Known | None:
        """What most of the body is known from."""
        best: Known | None = None
        for reading in self._recent.get(key) or ():
            count = _num_equal(body, reading)
            while count > 0 and reading.closed[count - 1] < 0:
                count -= 1
            if count > 0 and (best is None or reading.ends[count - 1] > best.num_bytes):
                best = Known(reading=reading, num_items=count)
        return best

    def keep(self, key: K, reading: Reading | None, known: Known | None) -> None:
        """known: what the reading goes on from, whose place it takes."""
        if reading is None:
            return
        before = None if known is None else known.reading
        others = [one for one in self._recent.get(key) or () if one is not before]
        kept = (reading, *others)[:_KEPT]
        self._recent.put(key, kept, sum(one.num_bytes for one in kept))


def opened(
    body: bytes,
    name: str,
    known: Known | None,
    read_object: Callable[[bytes], Mapping[str, Any]],
) -> Opened:
    """Parses a body whose history is the list `name`. read_object: does it for a whole one; raises
    whatever that raises."""
    if known is not None:
        text = body[: known.reading.start] + _MARK_JSON + body[known.num_bytes :]
        raw = _parsed(text)
        items = raw.get(name) if isinstance(raw, dict) else None
        if isinstance(items, list) and items[:1] == [_MARK]:
            del items[0]
            return Opened(raw=raw, text=text, known=known, messages=known.messages)
    return Opened(raw=read_object(body), text=body)


def reading_of(
    body: bytes,
    name: str,
    opened: Opened,
    closed: Sequence[int],
    messages: tuple[Message, ...],
    num_lead: int = 0,
) -> Reading | None:
    """What a later request may know of this one. closed, messages: of the items that were new.
    num_lead: messages that the request says beside its list. None if it is not worth it."""
    if len(body) < _SHORT_BYTES:
        return None
    known = opened.known
    found = _places(opened.text, name)
    if found is None or len(found[1]) != len(closed) + (known is not None) or not found[1]:
        return None
    start, ends = found
    if known is None:
        return Reading(
            body=body[: ends[-1]],
            start=start,
            ends=array("q", ends),
            closed=array("q", closed),
            messages=messages,
            num_chars=array("q", _counts(messages, 0)),
            trail=Trail(num_lead=num_lead),
        )
    old, num_items, num_before = known.reading, known.num_items, len(opened.messages)
    # The mark stands where what was cut out did.
    moved = known.num_bytes - ends[0]
    chars = old.num_chars[num_before - 1] if num_before else 0
    all_ends = old.ends[:num_items] + array("q", [end + moved for end in ends[1:]])
    return Reading(
        body=body[: all_ends[-1]],
        start=old.start,
        ends=all_ends,
        closed=old.closed[:num_items]
        + array("q", [count if count < 0 else count + num_before for count in closed]),
        messages=opened.messages + messages,
        num_chars=old.num_chars[:num_before] + array("q", _counts(messages, chars)),
        trail=old.trail.next(num_lead, num_before),
    )


def _counts(messages: Sequence[Message], before: int) -> Iterator[int]:
    """Characters up to each of the messages."""
    for message in messages:
        before += num_chars((message,))
        yield before


def _num_equal(body: bytes, reading: Reading) -> int:
    """How many items lie in the part that both bodies begin with."""
    ends, other = reading.ends, reading.body
    if body.startswith(other):
        return len(ends)
    low = 0
    while body[low : low + _PIECE_BYTES] == other[low : low + _PIECE_BYTES]:
        low += _PIECE_BYTES
    high = low + _PIECE_BYTES
    while low + 1 < high:  # equal up to low, not up to high
        middle = (low + high) // 2
        if body[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return int(np.searchsorted(np.asarray(ends), low, side="right"))


def _parsed(body: bytes) -> Any:
    """None for what is no JSON."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _places(body: bytes, name: str) -> tuple[int, list[int]] | None:
    """Where the items of the list `name` may begin, and where each ends. All are objects, but for
    the mark."""
    try:
        whole = getattr(_OUTLINES[name].decode(body), name)
        items = _ITEMS.decode(whole)
    except (msgspec.MsgspecError, RecursionError):  # deeper than it goes
        return None
    start = place = _address(whole) - _address(body) + 1
    ends = []
    for item in items:
        length = len(item)
        if body.startswith(_MARK_JSON, place):
            place += length
        else:
            place = body.index(b"{", place) + length
        ends.append(place)
    return start, ends


class _Messages(msgspec.Struct):
    messages: msgspec.Raw


class _Input(msgspec.Struct):
    input: msgspec.Raw


_OUTLINES: dict[str, msgspec.json.Decoder[Any]] = {
    "messages": msgspec.json.Decoder(_Messages),
    "input": msgspec.json.Decoder(_Input),
}
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])


def _address(data: bytes | msgspec.Raw) -> int:
    """In memory: parts of a JSON text that msgspec leaves raw are views of it."""
    interface: Mapping[str, Any] = np.frombuffer(data, dtype=np.uint8).__array_interface__
    place: int = interface["data"][0]
    return place
