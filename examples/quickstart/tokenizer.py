"""A byte-level BPE tokenizer for the examples' policies, with Qwen3's special tokens.

Digits and spaces are split off, so that a number or a name has the same tokens wherever it
stands; with Qwen's own splitting a tiny model does not learn to copy.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

from renderers import Qwen3Renderer
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transcripts import TOOLS, draw_transcript
from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
SPLIT = r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+ ?|\n+|\s"
# A multiple of 64, and few enough that the corpus has that many merges.
VOCABULARY_SIZE = 576
NUM_TRANSCRIPTS = 3000


class _CharacterTokenizer:
    """Just enough of a tokenizer to read a renderer's output back as text."""

    unk_token_id = -1
    _FIRST_SPECIAL = 0x110000

    def convert_tokens_to_ids(self, token: str) -> int:
        return self._FIRST_SPECIAL + SPECIAL_TOKENS.index(token)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [ord(character) for character in text]

    def pieces(self, ids: list[int]) -> list[str]:
        """The texts between special tokens."""
        text = "".join("\0" if code >= self._FIRST_SPECIAL else chr(code) for code in ids)
        return [piece for piece in text.split("\0") if piece]


def corpus(rng: random.Random) -> Iterator[str]:
    """Texts between special tokens of rendered transcripts; the tools' preamble now and then."""
    characters = _CharacterTokenizer()
    tokenizer: Any = characters
    renderer = Qwen3Renderer(tokenizer)
    for index in range(NUM_TRANSCRIPTS):
        task, turns = draw_transcript(rng, good_fraction=0.5)
        messages: list[Any] = [{"role": "user", "content": task.prompt}]
        tools = TOOLS if index % 10 == 0 else None
        ids = renderer.render_ids(messages, tools=tools, add_generation_prompt=True)
        yield from characters.pieces(list(ids))
        for turn in turns:
            yield turn.completion.replace("<tool_call>", "").replace("</tool_call>", "")
            yield turn.tool_result or ""


def train_tokenizer(texts: Iterable[str], size: int) -> PreTrainedTokenizerFast:
    """`size` entries, special tokens included; the same texts give the same ones."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",  # noqa: S106 - a token of text, no secret
        pad_token="<|endoftext|>",  # noqa: S106
        additional_special_tokens=list(SPECIAL_TOKENS[1:]),
    )
