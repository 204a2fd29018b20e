"""A model's tokenizer.json behind the small surface that `renderers` needs.

Straight on the Rust tokenizer: the usual wrapper costs ten times the encoding of a short text, and
a second of imports. It offers no character offsets, so renderers leave their content masks out,
which nothing here reads.

A tokenizer finds control tokens in any text. So that no client's text can close a turn or open a
tool call, `literal` marks where such a name has to be cut, and `encode` encodes the parts apart:
the tokens spell the same text and none of them is a control token.

A token that the model has no embedding for ends SGLang's whole server: a tokenizer that knows more
tokens than its model is refused where it encodes one of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import orjson
from tokenizers import Tokenizer

# Template scaffolding ("user\n", an assistant's header) and little else is this short and frequent.
_SHORT_CHARS = 64
_NUM_SHORT = 1024

# Cuts a text for `encode`. A lone surrogate: no text that can be encoded at all holds one.
_CUT = "\udfff"
# Added tokens of nothing but these are ways to write white space, not controls.
_BLANK = " \n\t\r\u2581"


class ModelFilesError(Exception):
    """The job's model directory has no tokenizer that can be read or used with its model."""


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
        self._num_tokens = _num_tokens(path / "config.json")
        self._encode_short = lru_cache(maxsize=_NUM_SHORT)(self._encode)
        names = {
            token.content: identity
            for identity, token in self._tokenizer.get_added_tokens_decoder().items()
            if len(token.content.strip(_BLANK)) > 1
        }
        self._control = frozenset(names.values())
        self._controls = re.compile(_any_of(list(names)) if names else r"(?!)")

    def literal(self, text: str) -> str:
        """`text`, cut so that `encode` finds no control token in it. O(text)."""
        while self._controls.search(text):
            # Again, since a name may end in another one's.
            text = self._controls.sub(_cut, text)
        return text

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Token ids of `text`; special tokens are only found, never added."""
        if _CUT in text:
            parts = filter(None, text.split(_CUT))
            return [token for part in parts for token in self._encode(part)]
        return list(self._encode_short(text)) if len(text) <= _SHORT_CHARS else self._encode(text)

    def decode(
        self,
        token_ids: Iterable[int],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> str:
        """Bytes that are no UTF-8 become U+FFFD.

        Renderers pass the last one only to find out offsets that way, prefix by prefix, in
        quadratic time; they do without where a tokenizer has no such thing.
        """
        if clean_up_tokenization_spaces is not None:
            raise NotImplementedError("offsets are not offered")
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def convert_tokens_to_ids(self, token: str) -> int | None:
        """None for a token that is not in the vocabulary."""
        identity: int | None = self._tokenizer.token_to_id(token)
        return identity

    def _encode(self, text: str) -> list[int]:
        # Without offsets, which nothing reads, in half the time, and with other threads running.
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        if self._num_tokens is not None and max(ids, default=0) >= self._num_tokens:
            raise ModelFilesError(
                f"{self.name_or_path}: the tokenizer has token {max(ids)}, "
                f"but the model's vocab_size is {self._num_tokens}"
            )
        return ids


def _num_tokens(config: Path) -> int | None:
    """The model's vocab_size; None where its directory does not say."""
    if not config.exists():
        return None
    try:
        raw = orjson.loads(config.read_bytes())
        found = raw.get("vocab_size") or raw.get("text_config", {}).get("vocab_size")
        return None if found is None else int(found)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ModelFilesError(f"{config}: cannot be read: {error}") from error


def _cut(match: re.Match[str]) -> str:
    name = match[0]
    return name[0] + _CUT + name[1:]


def _any_of(names: list[str]) -> str:
    """A regular expression for the longest of `names` that is there, which tells names apart letter
    by letter: vocabularies reserve a thousand, and code is full of what they begin with."""
    tails: dict[str, list[str]] = {}
    for name in names:
        tails.setdefault(name[0], []).append(name[1:])
    branches = []
    for letter, found in sorted(tails.items()):
        longer = [tail for tail in found if tail]
        rest = _any_of(longer) if longer else ""
        is_whole = len(longer) < len(found)
        branches.append(re.escape(letter) + (f"(?:{rest})?" if rest and is_whole else rest))
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
