"""Families whose turns go on behind the results that they called for.

The model ends a call with the token that opens a result, reads the results within its turn and goes
on there; the turn is closed once, when somebody else speaks. So what a user says behind a result
closes the turn first, and results that no turn waits for stand in a turn of their own.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import groupby
from typing import ClassVar

from gyre.core.matching import Tokens
from gyre.proxy.codecs.families import Family
from gyre.proxy.codecs.family_codec import FamilyCodec, is_result
from gyre.proxy.codecs.raw_messages import Raw
from gyre.proxy.codecs.tokenizer import FastTokenizer


class ResumedCodec(FamilyCodec):
    """gemma4. Holds no state but caches."""

    # Its template knows no result without a call, and tells the thinking of a last turn.
    _behind: ClassVar[tuple[Raw, ...]] = ()

    def __init__(self, tokenizer: FastTokenizer, family: Family) -> None:
        super().__init__(tokenizer, family)
        names = ("<|tool_response>", "<tool_call|>")
        opens, ends = (tokenizer.convert_tokens_to_ids(name) for name in names)
        assert opens is not None  # the renderer has them, too
        assert ends is not None
        self._result = array("i", [opens])
        self._call_end = array("i", [ends])

    def turn_end(self, turn: Tokens, *, opening: Tokens | None = None) -> Tokens:
        if turn[-1:] and turn[-1] in self._stop and turn[-1:] != self._close:
            return self._close + self._separator  # it waits for results that do not come
        return super().turn_end(turn, opening=opening)

    def generation(self, *, after: str = "user", carried: Tokens | None = None) -> Tokens:
        if carried is None:
            return super().generation(after=after)
        place = array("i") if after == "tool" else self._generation
        resumed = self._opened(carried) == self._resuming
        return place + self._resuming if resumed else place

    def _inputs(self, raw: Sequence[Raw], after: str = "user") -> list[Tokens]:
        found: list[Tokens] = []
        behind_result = after == "tool"
        for results, several in groupby(raw, key=is_result):
            if results:
                told = self._bridge(self._result, list(several), self._generation)
                assert told is not None
                lead = self._result if behind_result else self._generation + self._result
            else:
                told = super()._inputs(list(several))
                lead = self._close + self._separator if behind_result else array("i")
            found += [lead + told[0], *told[1:]]
            behind_result = results
        return found

    def _joined(self, turn: Tokens, raw: Raw, tokens: Tokens, opening: Tokens | None) -> Tokens:
        if is_result(raw):
            if turn[-1:] == self._result:
                return tokens[len(self._generation) + 1 :]
            if turn[-1:] == self._call_end:  # it was cut right behind its call
                return tokens[len(self._generation) :]
        return super()._joined(turn, raw, tokens, opening)
