"""A renderer whose tokens can be read, one a byte: a test sees what was encoded, and when."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gyre.core.matching import CannotBridge
from gyre.core.messages import Message

CLOSE = 1
GENERATION = array("i", [2, 3])
SEPARATOR = array("i", [4])
TOGETHER = array("i", [5])
END = array("i", [6])


class TokenizerGone(Exception):
    """Something was encoded after the tokenizer had been taken away."""


@dataclass
class ToyEncoder:
    """An Encoder (gyre.core.matching). encoded: contents that were encoded, in order; gone: any
    further one raises TokenizerGone."""

    encoded: list[str] = field(default_factory=list)
    gone: bool = False

    def head(self, tools: Sequence[Mapping[str, Any]], system: Message | None) -> array[int]:
        if not tools and system is None:
            return array("i")
        return self._encode(str(tools) + (system.content if system else ""))

    def inputs(self, messages: Sequence[Message], *, after: str = "user") -> list[array[int]]:
        """As templates do, results that follow each other stand in one frame."""
        found = []
        for index, message in enumerate(messages):
            behind = messages[index + 1 : index + 2]
            together = message.role == "tool" and bool(behind) and behind[0].role == "tool"
            found.append(self._encode(message.content) + (TOGETHER if together else END))
        return found

    def keeps(self, turn: array[int], *, is_sampled: bool) -> bool:
        """Whether the template keeps the turn as it is: all, unless a test says otherwise."""
        return True

    def inputs_after_turn(
        self,
        turn: array[int],
        messages: Sequence[Message],
        *,
        opening: array[int] | None = None,
    ) -> list[array[int]]:
        if not self.keeps(turn, is_sampled=bool(opening)):
            raise CannotBridge
        tokens = self.inputs(messages)
        tokens[0] = self.turn_end(turn) + tokens[0]
        return tokens

    def turn_end(self, turn: array[int], *, opening: array[int] | None = None) -> array[int]:
        closed = len(turn) > 0 and turn[-1] == CLOSE
        return SEPARATOR if closed else array("i", [CLOSE]) + SEPARATOR

    def assistant(self, message: Message, *, after: str = "user") -> array[int]:
        return GENERATION + self._encode(message.content)

    def generation(self, *, after: str = "user", carried: array[int] | None = None) -> array[int]:
        return GENERATION

    def _encode(self, text: str) -> array[int]:
        if self.gone:
            raise TokenizerGone(text)
        self.encoded.append(text)
        return array("i", [10 + byte for byte in text.encode()])
