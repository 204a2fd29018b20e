"""Hugging Face weights: what a trainer takes for a model's, and their bytes. How they come into
Megatron's layout and out again is in test_trainer_layouts, beside the second opinion held here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from gyre.cell_agent.engine.torch_checksum import checksum
from gyre.cell_agent.trainer.errors import BadModel
from gyre.cell_agent.trainer.model.hf_config import read_policy_config
from gyre.cell_agent.trainer.model.hf_weights import check_whole
from gyre.cell_agent.trainer.model.weights_io import from_bytes, read_weights, to_bytes
from gyre.core.policy_config import ExpertsConfig
from gyre.testkit.hf_conversion import hf_to_megatron, megatron_to_hf
from gyre.testkit.tiny_model import make_tiny_model


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("llama", [False, True])
def test_the_round_trip_is_exact(tmp_path: Path, tied: bool, kv_heads: int, llama: bool) -> None:
    model = make_tiny_model(tmp_path, tie_word_embeddings=tied, num_kv_heads=kv_heads, llama=llama)
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
    check_whole(weights, policy)
    with pytest.raises(BadModel, match=r"lack model\.norm\.weight"):
        check_whole({k: v for k, v in weights.items() if k != "model.norm.weight"}, policy)
    with pytest.raises(BadModel, match=r"model\.extra"):
        check_whole(weights | {"model.extra": torch.zeros(1)}, policy)
    keys = "model.layers.0.self_attn.k_proj.weight"
    with pytest.raises(BadModel, match=rf"{keys} has shape \(3, 3\), config\.json says \(32, 64\)"):
        check_whole(weights | {keys: torch.zeros(3, 3)}, policy)


def test_a_tied_checkpoint_may_repeat_its_embedding(tmp_path: Path) -> None:
    repeated = {"lm_head.weight": torch.zeros(512, 64)}
    for tied in (True, False):
        model = make_tiny_model(tmp_path / str(tied), tie_word_embeddings=tied)
        policy, weights = read_policy_config(model), read_weights(model)
        assert ("lm_head.weight" in weights) != tied
        check_whole(weights | repeated, policy)


def test_a_model_of_experts_is_read(tmp_path: Path) -> None:
    """By the name that transformers gives their number since 5, and by the one before."""
    model = make_tiny_model(tmp_path, num_experts=4)
    policy, weights = read_policy_config(model), read_weights(model)
    assert policy.experts == ExpertsConfig(count=4, chosen=2, ffn_size=64, normalized=True)
    check_whole(weights, policy)
    with pytest.raises(BadModel, match=r"lack model\.layers\.0\.mlp\.experts\.3\.up_proj"):
        check_whole({k: v for k, v in weights.items() if "experts.3.up" not in k}, policy)
    config = model / "config.json"
    text = config.read_text()
    config.write_text(text.replace('"num_local_experts"', '"num_experts"'))
    assert read_policy_config(model) == policy
    config.write_text(text.replace('"decoder_sparse_step": 1', '"decoder_sparse_step": 2'))
    with pytest.raises(BadModel, match="experts are supported in every layer or in none"):
        read_policy_config(model)


def test_a_llama_has_no_head_norms(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path, llama=True)
    policy, weights = read_policy_config(model), read_weights(model)
    assert not policy.qk_norm
    check_whole(weights, policy)
    norm = {"model.layers.0.self_attn.q_norm.weight": torch.zeros(16)}
    with pytest.raises(BadModel, match=r"that the model has not: model\.layers\.0\..*q_norm"):
        check_whole(weights | norm, policy)


def test_weights_survive_their_bytes(tmp_path: Path) -> None:
    weights = read_weights(make_tiny_model(tmp_path))
    assert checksum(from_bytes(to_bytes(weights))) == checksum(weights)


def test_a_config_this_trainer_does_not_know_is_refused(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path)
    config = model / "config.json"
    text = config.read_text()
    config.write_text(text.replace('"model_type": "qwen3"', '"model_type": "mamba"'))
    with pytest.raises(
        BadModel, match="model_type 'mamba' is not supported, only llama, qwen3, qwen3_moe"
    ):
        read_policy_config(model)
    for scaling in ('"rope_type": "llama3"', '"type": "llama3"'):
        old = json.loads(text) | {"rope_parameters": None, "rope_theta": 1e4}
        config.write_text(json.dumps(old | {"rope_scaling": json.loads(f"{{{scaling}}}")}))
        with pytest.raises(BadModel, match="rope_type 'llama3'"):
            read_policy_config(model)
    config.write_text(text.replace('"num_key_value_heads": 2', '"num_key_value_heads": 3'))
    with pytest.raises(BadModel, match="num_attention_heads is no multiple of num_key_value_heads"):
        read_policy_config(model)
    config.write_text(text.replace('"attention_bias": false', '"attention_bias": true'))
    with pytest.raises(BadModel, match="attention_bias"):
        read_policy_config(model)
    config.unlink()
    with pytest.raises(BadModel, match=r"config\.json"):
        read_policy_config(model)
