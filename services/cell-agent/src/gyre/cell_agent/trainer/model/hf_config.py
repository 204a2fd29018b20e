"""What a Hugging Face config.json says of a Qwen3-architecture model, dense or of experts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.cell_agent.trainer.errors import BadModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsConfig:
    """Of a mixture of experts in every layer. chosen: experts a token goes through. normalized:
    their weights add up to 1."""

    count: int
    chosen: int
    ffn_size: int
    normalized: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """Shapes of the policy. num_groups: query groups, i.e. key-value heads. experts: None where
    every token goes through the same feed-forward layers, of ffn_size."""

    num_layers: int
    hidden_size: int
    ffn_size: int
    num_heads: int
    num_groups: int
    head_size: int
    vocab_size: int
    max_positions: int
    norm_eps: float
    rope_base: float
    tied_embeddings: bool
    experts: ExpertsConfig | None = None


def read_policy_config(model_path: Path) -> PolicyConfig:
    """Raises BadModel, naming the field of config.json that this trainer does not know."""
    path = model_path / "config.json"
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BadModel(f"{path}: {error}") from error
    _refuse_unknown(raw)
    try:
        return PolicyConfig(
            num_layers=raw["num_hidden_layers"],
            hidden_size=raw["hidden_size"],
            ffn_size=raw["intermediate_size"],
            num_heads=raw["num_attention_heads"],
            num_groups=raw["num_key_value_heads"],
            head_size=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
            vocab_size=raw["vocab_size"],
            max_positions=raw["max_position_embeddings"],
            norm_eps=raw["rms_norm_eps"],
            rope_base=_rope(raw)["rope_theta"],
            tied_embeddings=raw.get("tie_word_embeddings", False),
            experts=_experts(raw) if raw["model_type"] == "qwen3_moe" else None,
        )
    except KeyError as error:
        raise BadModel(f"{path}: lacks {error.args[0]}") from error


def _experts(raw: Mapping[str, Any]) -> ExpertsConfig:
    """transformers 5 writes `num_local_experts`, earlier ones `num_experts`."""
    return ExpertsConfig(
        count=raw["num_experts"] if "num_experts" in raw else raw["num_local_experts"],
        chosen=raw["num_experts_per_tok"],
        ffn_size=raw["moe_intermediate_size"],
        normalized=raw.get("norm_topk_prob", False),
    )


def _rope(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """transformers 5 writes `rope_parameters`, earlier ones `rope_theta` beside `rope_scaling`."""
    parameters: Mapping[str, Any] | None = raw.get("rope_parameters")
    return raw if parameters is None else parameters


def _refuse_unknown(raw: Mapping[str, Any]) -> None:
    if raw.get("model_type") not in ("qwen3", "qwen3_moe"):
        raise BadModel(
            f"config.json: model_type {raw.get('model_type')!r}, this trainer has qwen3, qwen3_moe"
        )
    if raw.get("mlp_only_layers") or raw.get("decoder_sparse_step", 1) != 1:
        raise BadModel("config.json: this trainer has experts in every layer or in none")
    scaling = raw.get("rope_scaling") or {}
    kind = _rope(raw).get("rope_type") or scaling.get("rope_type", "default")
    if kind != "default":
        raise BadModel(f"config.json: rope_type {kind!r} is not supported, only default")
    for name in ("attention_bias", "use_sliding_window"):
        if raw.get(name):
            raise BadModel(f"config.json: {name} is not supported")
    if raw.get("hidden_act", "silu") != "silu":
        raise BadModel(f"config.json: hidden_act {raw['hidden_act']!r}, this trainer has silu")
