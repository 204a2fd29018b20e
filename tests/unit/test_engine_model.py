"""The engine's own forward pass agrees with transformers' Qwen3 and Llama."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gyre.cell_agent.engine.local.config import read_model_config
from gyre.cell_agent.engine.local.errors import ModelFilesError, WeightsError
from gyre.cell_agent.engine.local.model import Transformer
from gyre.cell_agent.engine.local.weights import (
    check_state,
    decode_safetensors,
    read_checkpoint,
)
from gyre.cell_agent.engine.torch_checksum import checksum
from gyre.core.policy_weights import weight_shapes
from gyre.testkit.tiny_model import make_tiny_model


def load_model(directory: Path, positions: int = 128) -> Transformer:
    config = read_model_config(directory).shapes
    model = Transformer(config, positions)
    state = read_checkpoint(directory)
    check_state(state, weight_shapes(config), complete=True)
    model.load(state)
    return model


def empty_kv(model: Transformer, slots: int, rows: int) -> torch.Tensor:
    config = model.config
    return torch.zeros(config.num_layers, 2, slots, config.num_groups, rows, config.head_size)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("llama", [False, True])
def test_logits_equal_transformers_to_1e_4(tmp_path: Path, tied: bool, llama: bool) -> None:
    from transformers import AutoModelForCausalLM

    directory = make_tiny_model(tmp_path, seed=3, tie_word_embeddings=tied, llama=llama)
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokens = torch.randint(0, 400, (60,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = reference(tokens[None]).logits[0]
        model = load_model(directory)
        hidden = model.prefill(tokens, 0, empty_kv(model, 1, 64)[:, :, 0])
        actual = model.logits(hidden)
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("llama", [False, True])
def test_prefill_in_pieces_and_decode_equal_one_prefill(tmp_path: Path, llama: bool) -> None:
    model = load_model(make_tiny_model(tmp_path, llama=llama))
    tokens = torch.arange(20, 60)
    with torch.inference_mode():
        whole = model.prefill(tokens, 0, empty_kv(model, 1, 64)[:, :, 0])
        kv = empty_kv(model, 1, 64)
        model.prefill(tokens[:17], 0, kv[:, :, 0])
        model.prefill(tokens[17:38], 17, kv[:, :, 0])
        last = []
        for position in (38, 39):
            at = torch.tensor([position])
            last.append(model.decode(tokens[position : position + 1], at, kv))
    torch.testing.assert_close(torch.cat(last), whole[38:], atol=1e-5, rtol=1e-5)


def test_checksum_is_of_names_and_fp32_bytes_whatever_the_order(tmp_path: Path) -> None:
    model = load_model(make_tiny_model(tmp_path))
    state = read_checkpoint(tmp_path)
    assert checksum(model.parameters) == checksum(dict(reversed(list(state.items()))))
    state["model.norm.weight"] = state["model.norm.weight"] + 1
    assert checksum(state) != checksum(model.parameters)


def test_weights_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    shapes = weight_shapes(read_model_config(make_tiny_model(tmp_path)).shapes)
    state = read_checkpoint(tmp_path)
    with pytest.raises(WeightsError, match=r"unknown parameters: nope\.weight"):
        check_state({**state, "nope.weight": torch.zeros(1)}, shapes, complete=False)
    with pytest.raises(WeightsError, match=r"wrong shape: model\.norm\.weight"):
        check_state({"model.norm.weight": torch.zeros(3)}, shapes, complete=False)
    with pytest.raises(WeightsError, match=r"missing parameters: model\.norm\.weight"):
        check_state(
            {k: v for k, v in state.items() if k != "model.norm.weight"}, shapes, complete=True
        )
    with pytest.raises(WeightsError, match="safetensors"):
        decode_safetensors(b"\x80\x04pickle")


def test_a_directory_of_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match="cannot read"):
        read_model_config(tmp_path)
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "mamba"}')
    with pytest.raises(ModelFilesError, match="model_type 'mamba', this engine has qwen3, llama"):
        read_model_config(tmp_path)
    config.write_text('{"model_type": "llama", "mlp_bias": true}')
    with pytest.raises(ModelFilesError, match="mlp_bias is not supported"):
        read_model_config(tmp_path)
