"""A second opinion on how the trainer's `bridge` names and lays out weights, written by hand.

Megatron fuses what Hugging Face keeps apart: linear_qkv holds, query group after query group, the
group's query heads, its key head and its value head; linear_fc1 holds gate above up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gyre.core.policy_config import PolicyConfig

_PLAIN_IN_LAYER = {
    "input_layernorm.weight": "input_layernorm.weight",
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
}
_HEAD_NORMS = {
    "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
    "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
}


def megatron_to_hf(parameters: Mapping[str, Tensor], policy: PolicyConfig) -> dict[str, Tensor]:
    """Copies, contiguous. A tied output layer has no tensor of its own."""
    weights = {hf: parameters[megatron].clone() for megatron, hf in _plain_names(policy).items()}
    for layer in range(policy.num_layers):
        here, there = f"decoder.layers.{layer}.", f"model.layers.{layer}."
        queries, keys, values = _split_qkv(
            parameters[here + "self_attention.linear_qkv.weight"], policy
        )
        gate, up = parameters[here + "mlp.linear_fc1.weight"].chunk(2)
        weights[there + "self_attn.q_proj.weight"] = queries
        weights[there + "self_attn.k_proj.weight"] = keys
        weights[there + "self_attn.v_proj.weight"] = values
        weights[there + "mlp.gate_proj.weight"] = gate.clone()
        weights[there + "mlp.up_proj.weight"] = up.clone()
    return weights


def hf_to_megatron(weights: Mapping[str, Tensor], policy: PolicyConfig) -> dict[str, Tensor]:
    """weights: all that the model has, and no others."""
    parameters = {megatron: weights[hf] for megatron, hf in _plain_names(policy).items()}
    for layer in range(policy.num_layers):
        here, there = f"decoder.layers.{layer}.", f"model.layers.{layer}."
        qkv = [weights[f"{there}self_attn.{part}_proj.weight"] for part in "qkv"]
        fc1 = [weights[f"{there}mlp.{part}_proj.weight"] for part in ("gate", "up")]
        parameters[here + "self_attention.linear_qkv.weight"] = _fuse_qkv(qkv, policy)
        parameters[here + "mlp.linear_fc1.weight"] = torch.cat(fc1)
    return parameters


def _plain_names(policy: PolicyConfig) -> dict[str, str]:
    names = {
        "embedding.word_embeddings.weight": "model.embed_tokens.weight",
        "decoder.final_layernorm.weight": "model.norm.weight",
    }
    in_layer = _PLAIN_IN_LAYER | (_HEAD_NORMS if policy.qk_norm else {})
    if not policy.tied_embeddings:
        names["output_layer.weight"] = "lm_head.weight"
    for layer in range(policy.num_layers):
        for megatron, hf in in_layer.items():
            names[f"decoder.layers.{layer}.{megatron}"] = f"model.layers.{layer}.{hf}"
    return names


def _group_rows(policy: PolicyConfig) -> list[int]:
    """Rows of queries, keys and values within one query group."""
    queries = policy.num_heads // policy.num_groups * policy.head_size
    return [queries, policy.head_size, policy.head_size]


def _split_qkv(fused: Tensor, policy: PolicyConfig) -> list[Tensor]:
    groups = fused.view(policy.num_groups, sum(_group_rows(policy)), policy.hidden_size)
    parts = groups.split_with_sizes(_group_rows(policy), dim=1)
    return [part.reshape(-1, policy.hidden_size).clone() for part in parts]


def _fuse_qkv(parts: list[Tensor], policy: PolicyConfig) -> Tensor:
    rows = _group_rows(policy)
    groups = [
        part.view(policy.num_groups, count, policy.hidden_size)
        for part, count in zip(parts, rows, strict=True)
    ]
    return torch.cat(groups, dim=1).reshape(-1, policy.hidden_size)
