"""Qwen3's architecture in plain torch, small and fast enough for one CPU core.

Used by the warm start and the simulation only; the product serves and trains the exported
directory with its own engine and Megatron. `save_hf` writes what transformers reads as
Qwen3ForCausalLM; `load_hf` reads it back. All transcripts of a batch share their first tokens
(the tools' preamble), which are computed once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

MAX_POSITIONS = 1024
ROPE_THETA = 10_000.0
EPSILON = 1e-6

Cache = list[tuple[Tensor, Tensor]]
Rope = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of the model; the defaults are the quickstart's 470 k parameters."""

    vocab_size: int
    hidden_size: int = 128
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    intermediate_size: int = 384


class RMSNorm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.weight, EPSILON)


class Attention(nn.Module):
    """Grouped-query attention with Qwen3's norms on queries and keys."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        query, key = (
            heads * shape.head_dim
            for heads in (shape.num_attention_heads, shape.num_key_value_heads)
        )
        self.q_proj = nn.Linear(shape.hidden_size, query, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, key, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, key, bias=False)
        self.o_proj = nn.Linear(query, shape.hidden_size, bias=False)
        self.q_norm = RMSNorm(shape.head_dim)
        self.k_norm = RMSNorm(shape.head_dim)

    def heads(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries and keys, and values: (batch, heads, tokens, head_dim)."""
        query, key, value = (
            projection(x).unflatten(-1, (-1, self.head_dim))
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = self.q_norm(query).transpose(1, 2), self.k_norm(key).transpose(1, 2)
        return rotate(query, rope), rotate(key, rope), value.transpose(1, 2)

    def mix(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Attention's output, (batch, tokens, hidden); no mask means causal."""
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return out


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Rotary position embedding of x by the cosines and sines that broadcast to it."""
    cos, sin = rope
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size)

    def heads(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        return self.self_attn.heads(self.input_layernorm(x), rope)

    def finish(
        self, x: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
    ) -> Tensor:
        """The layer's output for x, given its heads."""
        x = x + self.self_attn.mix(query, key, value, mask)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Policy(nn.Module):
    """The language model; parameter names equal transformers' without the `model.` prefix."""

    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size)
        frequency = ROPE_THETA ** (-torch.arange(0, shape.head_dim, 2) / shape.head_dim)
        angle = torch.outer(torch.arange(MAX_POSITIONS), frequency).repeat(1, 2)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def initialise(self, generator: torch.Generator) -> None:
        """Random weights. Embeddings of 0.1, not 0.02: smaller ones learnt only the format."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                std = 0.1 if name.startswith("embed") else 1 / math.sqrt(parameter.shape[1])
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    std *= 0.35  # residual branches start small
                nn.init.normal_(parameter, std=std, generator=generator)

    def blocks(self) -> list[Layer]:
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def rope(self, start: int, stop: int) -> Rope:
        return self.cos[start:stop], self.sin[start:stop]

    def logits(self, hidden: Tensor) -> Tensor:
        return functional.linear(self.norm(hidden), self.embed_tokens.weight)

    def forward(self, ids: Tensor, num_shared: int, selected: Tensor) -> Tensor:
        """Logits at the selected positions, (number selected, vocabulary).

        ids: (rows, tokens), whose first `num_shared` tokens are the same in every row.
        selected: (rows, tokens - num_shared), true where logits are wanted.
        """
        rows, tokens = ids.shape
        shared, hidden = (
            self.embed_tokens(ids[:1, :num_shared]),
            self.embed_tokens(ids[:, num_shared:]),
        )
        mask = suffix_mask(num_shared, tokens)
        for index, layer in enumerate(self.blocks()):
            query, key, value = layer.heads(hidden, self.rope(num_shared, tokens))
            shared_heads = layer.heads(shared, self.rope(0, num_shared))
            _, shared_key, shared_value = shared_heads
            key = torch.cat([shared_key.expand(rows, -1, -1, -1), key], 2)
            value = torch.cat([shared_value.expand(rows, -1, -1, -1), value], 2)
            hidden = layer.finish(hidden, query, key, value, mask)
            if index + 1 < len(self.layers):
                shared = layer.finish(shared, *shared_heads, None)
        return self.logits(hidden[selected])

    @torch.no_grad()
    def prefill_shared(self, shared_ids: Sequence[int]) -> Cache:
        """Keys and values of the shared prefix, (1, kv heads, tokens, head_dim) a layer."""
        hidden = self.embed_tokens(torch.tensor([list(shared_ids)]))
        cache = []
        for layer in self.blocks():
            query, key, value = layer.heads(hidden, self.rope(0, len(shared_ids)))
            hidden = layer.finish(hidden, query, key, value, None)
            cache.append((key, value))
        return cache

    @torch.no_grad()
    def prefill(
        self, prompts: Sequence[Sequence[int]], shared: Cache, room: int
    ) -> tuple[Cache, Tensor]:
        """Keys and values of the prompts with `room` free places, and logits at their ends.

        Prompts start with the shared prefix and are padded on the right.
        """
        num_shared = shared[0][0].shape[2]
        longest = max(map(len, prompts))
        ids = torch.zeros(len(prompts), longest - num_shared, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt) - num_shared] = torch.tensor(prompt[num_shared:])
        hidden, mask, cache = self.embed_tokens(ids), suffix_mask(num_shared, longest), []
        for layer, (shared_key, shared_value) in zip(self.blocks(), shared, strict=True):
            query, key, value = layer.heads(hidden, self.rope(num_shared, longest))
            keys, values = (
                functional.pad(
                    torch.cat([old.expand(len(prompts), -1, -1, -1), new], 2), (0, 0, 0, room)
                )
                for old, new in ((shared_key, key), (shared_value, value))
            )
            hidden = layer.finish(hidden, query, keys[:, :, :longest], values[:, :, :longest], mask)
            cache.append((keys, values))
        ends = torch.tensor([len(prompt) - num_shared - 1 for prompt in prompts])
        return cache, self.logits(hidden[torch.arange(len(prompts)), ends])

    @torch.no_grad()
    def decode(self, ids: Tensor, positions: Tensor, cache: Cache) -> Tensor:
        """Logits after one more token a row, (rows, vocabulary). Writes the cache in place."""
        rows, visible = torch.arange(len(ids)), int(positions.max()) + 1
        mask = (torch.arange(visible) <= positions[:, None])[:, None, None]
        rope = self.cos[positions][:, None, None], self.sin[positions][:, None, None]
        hidden = self.embed_tokens(ids[:, None])
        for layer, (keys, values) in zip(self.blocks(), cache, strict=True):
            query, key, value = layer.heads(hidden, rope)
            keys[rows, :, positions] = key[:, :, 0]
            values[rows, :, positions] = value[:, :, 0]
            hidden = layer.finish(hidden, query, keys[:, :, :visible], values[:, :, :visible], mask)
        return self.logits(hidden[:, 0])


def suffix_mask(num_shared: int, tokens: int) -> Tensor:
    """What suffix tokens may attend to: the shared prefix and the suffix up to themselves."""
    return torch.ones(tokens - num_shared, tokens, dtype=torch.bool).tril(num_shared)


def save_hf(policy: Policy, tokenizer: Any, folder: Path) -> None:
    """Write config.json, generation_config.json, model.safetensors and the tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    stop = [tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>")]
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        **asdict(policy.shape),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": stop,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": MAX_POSITIONS,
        "pad_token_id": stop[1],
        "rms_norm_eps": EPSILON,
        "rope_theta": ROPE_THETA,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "use_sliding_window": False,
    }
    generation = {
        "eos_token_id": stop,
        "pad_token_id": stop[1],
        "do_sample": True,
        "temperature": 1.0,
    }
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "generation_config.json").write_text(
        json.dumps(generation, indent=2) + "\n", encoding="utf-8"
    )
    weights = {f"model.{name}": value.contiguous() for name, value in policy.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def load_hf(folder: Path) -> Policy:
    """Read a directory written by `save_hf`."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    policy = Policy(Shape(**{name: config[name] for name in Shape.__slots__}))
    weights = load_file(folder / "model.safetensors")
    policy.load_state_dict({name.removeprefix("model."): value for name, value in weights.items()})
    return policy
