"""A model's tokenizer.json behind the small surface that `renderers` needs.

Straight on the Rust tokenizer: the usual wrapper costs ten times the encoding of a short text, and
a second of imports. It offers no character offsets, so renderers leave their content masks out,
which nothing here reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

# Template scaffolding ("user\n", "assistant\n") and nothing else is this short and this frequent.
_SHORT_CHARS = 32
_NUM_SHORT = 1024


class ModelFilesError(Exception):
    """The job's model directory has no tokenizer that can be read or used."""


class FastTokenizer:
    """Implements renderers' Tokenizer protocol. Holds no state but a cache of short texts."""

    unk_token_id: int | None = None
    eos_token_id: int | None = None

    def __init__(self, path: Path) -> None:
        self.name_or_path = str(path)
        try:
            self._tokenizer: Tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        except Exception as error:
            raise ModelFilesError(f"{path}: no tokenizer can be read: {error}") from error
        self._encode_short = lru_cache(maxsize=_NUM_SHORT)(self._encode)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Token ids of `text`; special tokens are only found, never added."""
        return list(self._encode_short(text)) if len(text) <= _SHORT_CHARS else self._encode(text)

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Bytes that are no UTF-8 become U+FFFD."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def convert_tokens_to_ids(self, token: str) -> int | None:
        """None for a token that is not in the vocabulary."""
        identity: int | None = self._tokenizer.token_to_id(token)
        return identity

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids
