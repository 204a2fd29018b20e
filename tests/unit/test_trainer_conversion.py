"""Hugging Face weights through Megatron's fused layout and back, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gyre.cell_agent.trainer.conversion import hf_to_megatron, megatron_to_hf
from gyre.cell_agent.trainer.errors import BadModel
from gyre.cell_agent.trainer.hf_config import read_policy_config
from gyre.cell_agent.trainer.weights_io import checksum, from_bytes, read_weights, to_bytes
from gyre.testkit.tiny_model import make_tiny_model


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_the_round_trip_is_exact(tmp_path: Path, tied: bool, kv_heads: int) -> None:
    model = make_tiny_model(tmp_path, tie_word_embeddings=tied, num_kv_heads=kv_heads)
    policy, weights = read_policy_config(model), read_weights(model)
    back = megatron_to_hf(hf_to_megatron(weights, policy), policy)
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[name], weights[name]) for name in weights)
    assert checksum(back) == checksum(weights)


def test_a_query_groups_heads_lie_together(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path)
    policy, weights = read_policy_config(model), read_weights(model)
    fused = hf_to_megatron(weights, policy)["decoder.layers.0.self_attention.linear_qkv.weight"]
    keys = weights["model.layers.0.self_attn.k_proj.weight"]
    queries = policy.num_heads // policy.num_groups * policy.head_size
    assert torch.equal(fused[queries : queries + policy.head_size], keys[: policy.head_size])


def test_missing_left_over_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path)
    policy, weights = read_policy_config(model), read_weights(model)
    with pytest.raises(BadModel, match=r"model\.norm\.weight"):
        hf_to_megatron({k: v for k, v in weights.items() if k != "model.norm.weight"}, policy)
    with pytest.raises(BadModel, match=r"model\.extra"):
        hf_to_megatron(weights | {"model.extra": torch.zeros(1)}, policy)
    with pytest.raises(BadModel, match="shapes"):
        hf_to_megatron(
            weights | {"model.layers.0.self_attn.k_proj.weight": torch.zeros(3, 3)}, policy
        )


def test_weights_survive_their_bytes(tmp_path: Path) -> None:
    weights = read_weights(make_tiny_model(tmp_path))
    assert checksum(from_bytes(to_bytes(weights))) == checksum(weights)


def test_a_config_this_trainer_does_not_know_is_refused(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path)
    config = model / "config.json"
    text = config.read_text()
    config.write_text(text.replace('"model_type": "qwen3"', '"model_type": "llama"'))
    with pytest.raises(BadModel, match="model_type 'llama'"):
        read_policy_config(model)
    config.write_text(text.replace('"attention_bias": false', '"attention_bias": true'))
    with pytest.raises(BadModel, match="attention_bias"):
        read_policy_config(model)
    config.unlink()
    with pytest.raises(BadModel, match=r"config\.json"):
        read_policy_config(model)
