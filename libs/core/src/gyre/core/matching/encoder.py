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
    """Turns new content into tokens, int32. Each joins on without touching what is before.

    after: the role of what stands right before, "user" for any that no template tells apart from
    it. opening: what a sampled turn was sampled after, empty for a turn that was told and holds its
    own; None where that is not known, and the usual one is meant.
    """

    def head(self, tools: Tools, system: Message | None) -> Tokens:
        """What opens a conversation: the tools and the first system message. Without both: what a
        template writes all the same, or nothing."""
        ...

    def inputs(self, messages: Sequence[Message], *, after: str = "user") -> list[Tokens]:
        """One entry a message, none of them the assistant's, after a message that is closed. An
        empty one is told within the one before it: they are known together only."""
        ...

    def inputs_after_turn(
        self, turn: Tokens, messages: Sequence[Message], *, opening: Tokens | None = None
    ) -> list[Tokens]:
        """As `inputs`, after an assistant's turn; the first entry closes the turn.

        Raises CannotBridge; then the turn is encoded anew, as `assistant` tells it.
        """
        ...

    def turn_end(self, turn: Tokens, *, opening: Tokens | None = None) -> Tokens:
        """What closes an assistant's turn before anything may follow."""
        ...

    def assistant(self, message: Message, *, after: str = "user") -> Tokens:
        """An assistant turn that was not sampled here: its opening and text, up to its close."""
        ...

    def generation(self, *, after: str = "user", carried: Tokens | None = None) -> Tokens:
        """What opens the turn that is to be sampled. carried: what a turn was sampled after that is
        told here as it is."""
        ...
