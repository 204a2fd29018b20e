"""Chat messages in one canonical form, whichever API they came by.

Clients resend their history, so a long conversation makes thousands of these a call: they are of
`msgspec`, whose frozen carriers are made in a tenth of a dataclass's time. Immutable and without
cycles, they need no garbage collector (gc=False).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

Role = Literal["system", "user", "assistant", "tool"]


class ToolCall(Struct, frozen=True, kw_only=True, gc=False):
    """id: as the assistant's turn carried it. arguments: JSON text, verbatim."""

    id: str
    name: str
    arguments: str


class Message(Struct, frozen=True, kw_only=True, gc=False):
    """content: the text as the model reads it, "" for none. blocks: the text blocks that it is made
    of, joined by line breaks, where a client sent several; else empty. reasoning: the assistant's,
    if it was sent. call: of a tool's result, which of its turn's calls it answers, from 0; None
    where that is not known."""

    role: Role
    content: str
    blocks: tuple[str, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None
    call: int | None = None

    @classmethod
    def of_blocks(
        cls,
        role: Role,
        blocks: Iterable[str],
        *,
        tool_calls: tuple[ToolCall, ...] = (),
        tool_call_id: str | None = None,
        reasoning: str | None = None,
    ) -> Message:
        """The message that text blocks make. One block is the same message as its text alone."""
        several = tuple(blocks)
        return cls(
            role=role,
            content="\n".join(several),
            blocks=several if len(several) > 1 else (),
            tool_calls=tool_calls,
            tool_call_id=tool_call_id,
            reasoning=reasoning,
        )


# What a message costs beside its text, to match, to encode and to record, however short it is: some
# 0.2 ms, in which 1,000 characters are encoded.
MESSAGE_CHARS = 1000


def num_chars(messages: Iterable[Message]) -> int:
    """What the messages cost when they are new: characters of what they say, and MESSAGE_CHARS for
    each."""
    num = 0
    for message in messages:
        num += MESSAGE_CHARS + len(message.content)
        for call in message.tool_calls:
            num += len(call.arguments)
    return num
