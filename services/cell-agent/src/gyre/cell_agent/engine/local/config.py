"""The sizes of a Qwen3 model, read from a Hugging Face `config.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.cell_agent.engine.local.errors import ModelFilesError

SUPPORTED_ARCHITECTURE = "Qwen3ForCausalLM"
DEFAULT_ROPE_THETA = 10_000.0
"""What Qwen3's own configuration class assumes when the file does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and constants of the forward pass; all counts, no units."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    eos_token_ids: frozenset[int]

    @property
    def group_size(self) -> int:
        """Query heads that share one key-value head."""
        return self.num_heads // self.num_kv_heads


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; raises ModelFilesError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFilesError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelFilesError(f"{path} is not a JSON object")
    return value


def read_model_config(directory: Path) -> ModelConfig:
    """Read `config.json` (and the stop tokens of `generation_config.json`, when present).

    Raises ModelFilesError for another architecture, scaled RoPE, attention biases or
    sliding windows: the forward pass here has none of them.
    """
    raw = read_json(directory / "config.json")
    architectures = raw.get("architectures") or []
    if SUPPORTED_ARCHITECTURE not in architectures and raw.get("model_type") != "qwen3":
        raise ModelFilesError(f"{directory}: {architectures} is not {SUPPORTED_ARCHITECTURE}")
    _refuse_unsupported(raw, directory)
    try:
        return _from_raw(raw, _stop_token_ids(raw, directory))
    except KeyError as error:
        raise ModelFilesError(f"{directory}/config.json lacks {error}") from error


def _from_raw(raw: dict[str, Any], eos_token_ids: frozenset[int]) -> ModelConfig:
    rope = raw.get("rope_parameters") or {}
    config = ModelConfig(
        vocab_size=int(raw["vocab_size"]),
        hidden_size=int(raw["hidden_size"]),
        intermediate_size=int(raw["intermediate_size"]),
        num_layers=int(raw["num_hidden_layers"]),
        num_heads=int(raw["num_attention_heads"]),
        num_kv_heads=int(raw["num_key_value_heads"]),
        head_dim=int(raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]),
        rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or DEFAULT_ROPE_THETA),
        max_position_embeddings=int(raw.get("max_position_embeddings", 32_768)),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        eos_token_ids=eos_token_ids,
    )
    if config.num_heads % config.num_kv_heads:
        raise ModelFilesError("num_attention_heads is not a multiple of num_key_value_heads")
    return config


def _refuse_unsupported(raw: dict[str, Any], directory: Path) -> None:
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type != "default":
        raise ModelFilesError(f"{directory}: rope type {rope_type!r} is not supported")
    if raw.get("attention_bias") or raw.get("use_sliding_window"):
        raise ModelFilesError(f"{directory}: attention bias and sliding windows are not supported")
    if raw.get("hidden_act", "silu") != "silu":
        raise ModelFilesError(f"{directory}: hidden_act must be silu")


def _stop_token_ids(raw: dict[str, Any], directory: Path) -> frozenset[int]:
    """Union of `eos_token_id` in both files: either may hold one id, a list, or null."""
    ids: set[int] = set()
    sources = [raw]
    generation = directory / "generation_config.json"
    if generation.exists():
        sources.append(read_json(generation))
    for source in sources:
        value = source.get("eos_token_id")
        if isinstance(value, int):
            ids.add(value)
        elif isinstance(value, list):
            ids.update(int(item) for item in value)
    return frozenset(ids)
