"""The port to a model family's renderer."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from gyre.core.messages import Message

Tokens: TypeAlias = "array[int]"
Tools: TypeAlias = Sequence[Mapping[str, Any]]


class CannotBridge(Exception):
    """The family's template would not keep the turn's tokens as they were sampled."""


class Encoder(Protocol):
    """Turns new content into tokens, int32. Each joins on without touching what is before."""

    def head(self, tools: Tools, system: Message | None) -> Tokens:
        """What opens a conversation: the tools and the first system message. Without both: what a
        template writes all the same, or nothing."""
        ...

    def inputs(self, messages: Sequence[Message]) -> list[Tokens]:
        """One entry a message, none of them the assistant's, after a message that is closed."""
        ...

    def inputs_after_turn(self, turn: Tokens, messages: Sequence[Message]) -> list[Tokens]:
        """As `inputs`, after an assistant's turn; the first entry closes the turn.

        Raises CannotBridge; then the turn is encoded anew, as `assistant` tells it.
        """
        ...

    def turn_end(self, turn: Tokens) -> Tokens:
        """What closes an assistant's turn before anything may follow."""
        ...

    def assistant(self, message: Message) -> Tokens:
        """An assistant turn that was not sampled here: its opening and text, up to its close."""
        ...

    def generation(self) -> Tokens:
        """What opens the turn that is to be sampled."""
        ...
