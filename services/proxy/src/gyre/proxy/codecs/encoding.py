"""Messages to tokens and sampled tokens to an answer, with the renderer of the job's model family.

The templates that are served are local to a message: each is framed by special tokens that no text
merges across. So a message renders alone as it renders in its place, and encoding is O(new
content). Only the thinking of earlier turns depends on the place; here it is always kept, because
history stays as it was sampled. What opens a turn behind a tool's result is another thing in some
families (`Family.resumes`), and in one all that stands between two turns is told as one
(`Family.one_text`).

What clients send is literal: no text of theirs becomes a control token (`FastTokenizer.literal`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from gyre.core.matching import Tokens, Tools
from gyre.core.messages import Message
from gyre.proxy.codecs.families import FAMILIES
from gyre.proxy.codecs.family_codec import FamilyCodec
from gyre.proxy.codecs.parsing import ParsedCall, ParsedTurn
from gyre.proxy.codecs.resumed_codec import ResumedCodec
from gyre.proxy.codecs.tokenizer import FastTokenizer, ModelFilesError

__all__ = ["Codec", "FamilyCodec", "ParsedCall", "ParsedTurn", "family_codec", "load_codec"]


class Codec(Protocol):
    """An Encoder (gyre.core.matching) that can also read what was sampled."""

    def head(self, tools: Tools, system: Message | None) -> Tokens: ...
    def inputs(self, messages: Sequence[Message], *, after: str = "user") -> list[Tokens]: ...
    def inputs_after_turn(
        self, turn: Tokens, messages: Sequence[Message], *, opening: Tokens | None = None
    ) -> list[Tokens]: ...
    def turn_end(self, turn: Tokens, *, opening: Tokens | None = None) -> Tokens: ...
    def assistant(self, message: Message, *, after: str = "user") -> Tokens: ...
    def generation(self, *, after: str = "user", carried: Tokens | None = None) -> Tokens: ...
    def parse(
        self,
        output: Sequence[int],
        *,
        tool_calls: bool = True,
        tools: Tools = (),
        opening: Tokens | None = None,
    ) -> ParsedTurn:
        """tool_calls=False: the client wants none, so they are all text. tools: of the request;
        some families write arguments without quotes, so that their schema tells "1" from 1.
        opening: what it was sampled after, the usual one if that is not said."""
        ...

    def text(self, ids: Sequence[int]) -> str: ...
    def token_text(self, token: int) -> str: ...
    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...


def load_codec(path: str, family: str) -> Codec:
    """The codec of the model at `path`, from local files only. Raises ModelFilesError."""
    if family not in FAMILIES:
        raise ModelFilesError(f"model family {family!r} has no renderer here")
    return family_codec(FastTokenizer(Path(path)), family)


def family_codec(tokenizer: FastTokenizer, family: str) -> FamilyCodec:
    """A codec of its own for a family that is served. Raises ModelFilesError for a tokenizer that
    is another's."""
    kind = ResumedCodec if FAMILIES[family].awaits else FamilyCodec
    return kind(tokenizer, FAMILIES[family])
