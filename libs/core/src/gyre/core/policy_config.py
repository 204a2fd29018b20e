"""What a Hugging Face config.json says of a model: a Qwen3, dense or of experts, or a Llama."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LLAMA, QWEN3, QWEN3_MOE = "llama", "qwen3", "qwen3_moe"
MODEL_TYPES = (LLAMA, QWEN3, QWEN3_MOE)


class UnknownModel(ValueError):
    """Nothing here computes this model. The message names the field of config.json."""


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
    """Shapes of the policy. num_groups: query groups, i.e. key-value heads. qk_norm: each head's
    queries and keys are normed, as a Qwen3's are and a Llama's are not. experts: None where
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
    qk_norm: bool
    experts: ExpertsConfig | None = None

    @property
    def group_size(self) -> int:
        """Query heads that share one key-value head."""
        return self.num_heads // self.num_groups


def policy_config(raw: object) -> PolicyConfig:
    """raw: what config.json holds. Raises UnknownModel."""
    if not isinstance(raw, Mapping):
        raise UnknownModel("is no object; give a model's own")
    _refuse_unknown(raw)
    rope, heads, hidden = _rope(raw), _size(raw, "num_attention_heads"), _size(raw, "hidden_size")
    groups = _size(raw, "num_key_value_heads")
    if heads % groups:
        raise UnknownModel("num_attention_heads is no multiple of num_key_value_heads")
    return PolicyConfig(
        num_layers=_size(raw, "num_hidden_layers"),
        hidden_size=hidden,
        ffn_size=_size(raw, "intermediate_size"),
        num_heads=heads,
        num_groups=groups,
        head_size=_size(raw, "head_dim") if raw.get("head_dim") else hidden // heads,
        vocab_size=_size(raw, "vocab_size"),
        max_positions=_size(raw, "max_position_embeddings"),
        norm_eps=_positive(raw, "rms_norm_eps"),
        rope_base=_positive(rope, "rope_theta"),
        tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qk_norm=raw["model_type"] != LLAMA,
        experts=_experts(raw) if raw["model_type"] == QWEN3_MOE else None,
    )


def _experts(raw: Mapping[str, Any]) -> ExpertsConfig:
    """transformers 5 writes `num_local_experts`, earlier ones `num_experts`."""
    return ExpertsConfig(
        count=_size(raw, "num_experts" if "num_experts" in raw else "num_local_experts"),
        chosen=_size(raw, "num_experts_per_tok"),
        ffn_size=_size(raw, "moe_intermediate_size"),
        normalized=bool(raw.get("norm_topk_prob", False)),
    )


def _size(raw: Mapping[str, Any], name: str) -> int:
    value = _positive(raw, name)
    if not isinstance(value, int):
        raise UnknownModel(f"{name} is {value}, no whole number")
    return value


def _positive(raw: Mapping[str, Any], name: str) -> float:
    value = raw.get(name)
    if value is None:
        raise UnknownModel(f"lacks {name}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise UnknownModel(f"{name} is {str(value)[:40]!r}, no positive number")
    return value


def _rope(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """transformers 5 writes `rope_parameters`, earlier ones `rope_theta` beside `rope_scaling`."""
    return _object(raw, "rope_parameters") or raw


def _object(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Empty where it is left out or null."""
    value = raw.get(name) or {}
    if not isinstance(value, Mapping):
        raise UnknownModel(f"{name} is no object")
    return value


def _refuse_unknown(raw: Mapping[str, Any]) -> None:
    if raw.get("model_type") not in MODEL_TYPES:
        known = ", ".join(MODEL_TYPES)
        raise UnknownModel(f"model_type {raw.get('model_type')!r} is not supported, only {known}")
    if raw.get("mlp_only_layers") or raw.get("decoder_sparse_step", 1) != 1:
        raise UnknownModel("experts are supported in every layer or in none")
    scaling = _object(raw, "rope_scaling")
    kind = _rope(raw).get("rope_type") or scaling.get("rope_type", scaling.get("type", "default"))
    if kind != "default":
        raise UnknownModel(f"rope_type {kind!r} is not supported, only default")
    for name in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if raw.get(name):
            raise UnknownModel(f"{name} is not supported")
    if raw.get("hidden_act", "silu") != "silu":
        raise UnknownModel(f"hidden_act {raw['hidden_act']!r} is not supported, only silu")
