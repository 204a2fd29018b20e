"""The engine's own forward pass agrees with transformers' Qwen3."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gyre.cell_agent.engine.local.config import read_model_config
from gyre.cell_agent.engine.local.errors import ModelFilesError, WeightsError
from gyre.cell_agent.engine.local.model import Qwen3
from gyre.cell_agent.engine.local.weights import (
    check_state,
    checksum,
    decode_safetensors,
    expected_shapes,
    read_checkpoint,
)
from gyre.testkit.tiny_model import make_tiny_model


def load_model(directory: Path, positions: int = 128) -> Qwen3:
    config = read_model_config(directory)
    model = Qwen3(config, positions)
    state = read_checkpoint(directory)
    check_state(state, expected_shapes(config), complete=True)
    model.load(state)
    return model


def empty_kv(model: Qwen3, slots: int, rows: int) -> torch.Tensor:
    config = model.config
    return torch.zeros(config.num_layers, 2, slots, config.num_kv_heads, rows, config.head_dim)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_equal_transformers_to_1e_4(tmp_path: Path, tied: bool) -> None:
    from transformers import Qwen3ForCausalLM

    directory = make_tiny_model(tmp_path, seed=3, tie_word_embeddings=tied)
    reference = Qwen3ForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokens = torch.randint(0, 400, (60,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = reference(tokens[None]).logits[0]
        model = load_model(directory)
        hidden = model.prefill(tokens, 0, empty_kv(model, 1, 64)[:, :, 0])
        actual = model.logits(hidden)
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


def test_prefill_in_pieces_and_decode_equal_one_prefill(tmp_path: Path) -> None:
    model = load_model(make_tiny_model(tmp_path))
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
    shapes = expected_shapes(read_model_config(make_tiny_model(tmp_path)))
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


def test_a_directory_that_is_no_qwen3_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match="cannot read"):
        read_model_config(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(ModelFilesError, match="is not Qwen3ForCausalLM"):
        read_model_config(tmp_path)
