"""A llama.cpp file (GGUF) of a Llama as a Hugging Face directory that Gyre trains and serves.

Weights are dequantised to float32 by transformers' own reader. llama.cpp keeps the two halves that
a rotation mixes beside each other, row by row; Hugging Face keeps them apart, head by head.

Messages are told in ChatML, which is the frame of the job's family `qwen3` as well. Its template
has control tokens besides, for tools and for thinking, and this vocabulary has none of them: they
take the places of markers of the model's pre-training that no chat uses. No weight changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, PreTrainedTokenizerFast
from transformers.integrations.gguf.dequant import GGML_BLOCK, dequantize
from transformers.integrations.gguf.reader import (
    GgufHeader,
    load_gguf_state_dict,
    read_gguf_metadata,
)

NAMES = {
    "token_embd.": "model.embed_tokens.",
    "output_norm.": "model.norm.",
    "output.": "lm_head.",
    "blk.": "model.layers.",
    ".attn_norm.": ".input_layernorm.",
    ".attn_q.": ".self_attn.q_proj.",
    ".attn_k.": ".self_attn.k_proj.",
    ".attn_v.": ".self_attn.v_proj.",
    ".attn_output.": ".self_attn.o_proj.",
    ".ffn_norm.": ".post_attention_layernorm.",
    ".ffn_gate.": ".mlp.gate_proj.",
    ".ffn_up.": ".mlp.up_proj.",
    ".ffn_down.": ".mlp.down_proj.",
}
"""What a name begins with, or has within -> the same in Hugging Face's."""

RENAMED = {
    "<issue_start>": "<tool_call>",
    "<issue_closed>": "</tool_call>",
    "<jupyter_code>": "<tool_response>",
    "<jupyter_output>": "</tool_response>",
    "<jupyter_start>": "<think>",
    "<jupyter_text>": "</think>",
}
"""Markers of files and issues in the pre-training's texts -> the control tokens of `qwen3`."""

_VOCABULARY = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")
_CONTROL = 3
"""The type of a control token."""


class NotConvertible(Exception):
    """The file holds another model than this conversion knows. One line."""


def convert(file: Path, out: Path) -> None:
    """Writes config.json, model.safetensors (float32) and the tokenizer's files into `out`.

    Raises NotConvertible."""
    told, _ = read_gguf_metadata(str(file), _VOCABULARY)
    if told["general.architecture"] != "llama" or told["tokenizer.ggml.pre"] != "smollm":
        raise NotConvertible(f"{file.name}: no Llama with the vocabulary of a SmolLM")
    out.mkdir(parents=True, exist_ok=True)
    weights = dict(_weights(GgufHeader.from_file(str(file)), told))
    _config(told, tied="lm_head.weight" not in weights).save_pretrained(out)
    safetensors.torch.save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    make_fast: Any = PreTrainedTokenizerFast  # untyped in transformers
    end = told["tokenizer.ggml.tokens"][told["tokenizer.ggml.eos_token_id"]]
    tokenizer = make_fast(tokenizer_object=_tokenizer(told), eos_token=end, pad_token=end)
    tokenizer.chat_template = told["tokenizer.chat_template"]
    tokenizer.save_pretrained(out)


def _config(told: Mapping[str, Any], *, tied: bool) -> LlamaConfig:
    base = told["llama.rope.freq_base"]
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=told["llama.vocab_size"],
        hidden_size=told["llama.embedding_length"],
        intermediate_size=told["llama.feed_forward_length"],
        num_hidden_layers=told["llama.block_count"],
        num_attention_heads=told["llama.attention.head_count"],
        num_key_value_heads=told["llama.attention.head_count_kv"],
        rms_norm_eps=told["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": base},
        max_position_embeddings=told["llama.context_length"],
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=told["tokenizer.ggml.eos_token_id"],
        pad_token_id=told["tokenizer.ggml.padding_token_id"],
        dtype="float32",
    )


def _weights(header: GgufHeader, told: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Float32, by Hugging Face names."""
    heads = {
        ".attn_q.weight": told["llama.attention.head_count"],
        ".attn_k.weight": told["llama.attention.head_count_kv"],
    }
    stored = load_gguf_state_dict(header)
    for info in header.tensors:
        values: Tensor = stored[info.name][...]
        if info.ggml_type in GGML_BLOCK:
            values = dequantize(values.flatten(), info.ggml_type)
        values = values.float().reshape(info.shape)
        for ending, count in heads.items():
            if info.name.endswith(ending):
                values = _halves_apart(values, count)
        yield _hugging_face(info.name), values.contiguous()


def _halves_apart(rows: Tensor, num_heads: int) -> Tensor:
    """[heads * d, hidden]: rows 0, 2, 4, ... of each head, then rows 1, 3, 5, ..."""
    pairs = rows.reshape(num_heads, -1, 2, rows.shape[1])
    return pairs.transpose(1, 2).reshape(rows.shape)


def _hugging_face(name: str) -> str:
    for old, new in NAMES.items():
        if old in name if old.startswith(".") else name.startswith(old):
            name = name.replace(old, new, 1)
    return name


def _tokenizer(told: Mapping[str, Any]) -> Tokenizer:
    """Byte-level BPE, digits one by one, as `smollm` stands for in llama.cpp."""
    tokens: Sequence[str] = [RENAMED.get(it, it) for it in told["tokenizer.ggml.tokens"]]
    merges = [tuple(pair.split(" ", 1)) for pair in told["tokenizer.ggml.merges"]]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    bpe = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    kinds = told["tokenizer.ggml.token_type"]
    bpe.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == _CONTROL
        ]
    )
    return bpe
