"""Requests that no context holds are told so before they are encoded, which takes some 300 bytes of
memory a character: 10 GB for the largest body. What could fit is encoded as a whole, once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gyre.core.messages import MESSAGE_CHARS, Message
from gyre.proxy.codecs.encoding import Codec
from gyre.proxy.planning import beside
from gyre.proxy.requests import ContextFull, Request

# Characters for each token of the context. Usual text has 4; up to twice as much costs no more to
# encode than what just fits, so it is counted exactly.
_LIKELY = 8
# More than runs of blanks have on the whole; it is not looked at.
_MOST = 32
_USUAL = 4
_PIECE = 64 * 1024
# What a cut can add to a piece's tokens, and what a message has around its text.
_SLACK = 1.02


async def refuse_overlong(request: Request, codec: Codec, context_tokens: int) -> None:
    """Raises ContextFull, with about the number of tokens."""
    num_chars = request.num_chars - MESSAGE_CHARS * len(request.messages)
    if num_chars <= _LIKELY * context_tokens:
        return
    if num_chars > _MOST * context_tokens:
        raise ContextFull(num_tokens=num_chars // _USUAL, context_tokens=context_tokens)
    await beside(lambda: _look(request.messages, num_chars, codec, context_tokens))


def _look(messages: Sequence[Message], num_chars: int, codec: Codec, context_tokens: int) -> None:
    """Encodes piece by piece until it is too much."""
    num_tokens = seen = 0
    for piece in _pieces(messages):
        num_tokens += sum(map(len, codec.inputs((Message(role="user", content=piece),))))
        seen += len(piece)
        if num_tokens > _SLACK * context_tokens:
            estimated = num_tokens * num_chars // seen
            raise ContextFull(num_tokens=estimated, context_tokens=context_tokens)


def _pieces(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        texts = (message.content, *(call.arguments for call in message.tool_calls))
        for text in texts:
            for start in range(0, len(text), _PIECE):
                yield text[start : start + _PIECE]
