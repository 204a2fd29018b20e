"""A small file of llama.cpp's format becomes a directory that computes and tells the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from gyre.cell_agent.trainer.model.weights_io import read_weights
from gyre.core.messages import Message
from gyre.proxy.codecs.encoding import load_codec
from gyre.testkit.gguf_file import write_gguf
from gyre.testkit.modules import load_module
from gyre.testkit.tiny_model import make_tiny_model

EXAMPLE = Path(__file__).parents[2] / "examples" / "smollm2"
F32, Q4_1 = 0, 3
QUANTISED = "model.layers.1.mlp.down_proj.weight"
SYSTEM = load_module(EXAMPLE / "ask.py", "smollm2_ask").SYSTEM
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe good.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def conversion() -> Any:
    return load_module(EXAMPLE / "convert.py", "smollm2_convert")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama, one tensor of which Q4_1 holds without loss."""
    from safetensors.torch import save_file

    model = make_tiny_model(tmp_path_factory.mktemp("original"), llama=True)
    weights = read_weights(model)
    weights[QUANTISED] = levels(weights[QUANTISED].shape)[0]
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    return model


@pytest.fixture(scope="module")
def converted(
    conversion: ModuleType, original: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    work = tmp_path_factory.mktemp("converted")
    write_gguf(work / "tiny.gguf", metadata_of(original, conversion.RENAMED), stored(original))
    conversion.convert(work / "tiny.gguf", work / "model")
    return work / "model"


def levels(shape: Sequence[int]) -> tuple[Tensor, bytes]:
    """Weights of 16 levels in each block of 32, and their bytes in Q4_1: scale, least value, then
    nibbles, the first half of a block in the low ones."""
    draw = torch.Generator().manual_seed(3)
    blocks = torch.randint(0, 16, (shape[0] * shape[1] // 32, 32), generator=draw)
    scale, least = torch.tensor([0.03125, -0.25], dtype=torch.float16)
    values = (blocks * scale.float() + least.float()).reshape(shape)
    head = torch.stack([scale, least]).numpy().tobytes()
    packed = (blocks[:, :16] | blocks[:, 16:] << 4).to(torch.uint8)
    return values, b"".join(head + row.numpy().tobytes() for row in packed)


def stored(model: Path) -> dict[str, tuple[tuple[int, ...], int, bytes]]:
    """Shape, type and bytes by llama.cpp's names, with its order of a head's rows: the two that a
    rotation mixes beside each other."""
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "model.layers": "blk",
    }
    found = {}
    for name, tensor in read_weights(model).items():
        if "q_proj" in name or "k_proj" in name:
            heads = tensor.reshape(-1, 2, 8, tensor.shape[1])
            tensor = heads.transpose(1, 2).reshape(tensor.shape)
        told = name
        for hf, gguf in names.items():
            told = told.replace(hf, gguf)
        kind, data = F32, tensor.contiguous().numpy().tobytes()
        if name == QUANTISED:
            kind, data = Q4_1, levels(tensor.shape)[1]
        found[told] = (tuple(tensor.shape), kind, data)
    return found


def metadata_of(model: Path, renamed: Mapping[str, str]) -> dict[str, Any]:
    """As llama.cpp's converter writes it of a SmolLM, whose markers have names of their own."""
    config = json.loads((model / "config.json").read_text())
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    markers = {new: old for old, new in renamed.items()}
    vocabulary = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    tokens = [markers.get(token, token) for token, _ in vocabulary]
    tokens += [f"<unused {place}>" for place in range(len(tokens), config["vocab_size"])]
    controls = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", *renamed}
    return {
        "general.architecture": "llama",
        "llama.vocab_size": config["vocab_size"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.freq_base": config["rope_parameters"]["rope_theta"],
        "llama.context_length": config["max_position_embeddings"],
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in controls else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in tokenizer["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.padding_token_id": tokens.index("<|endoftext|>"),
        "tokenizer.chat_template": TEMPLATE,
    }


def test_weights_are_those_that_the_file_holds(original: Path, converted: Path) -> None:
    expected, found = read_weights(original), read_weights(converted)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_directory_computes_what_the_model_does(original: Path, converted: Path) -> None:
    from transformers import AutoModelForCausalLM

    tokens = torch.randint(0, 400, (1, 40), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        one, other = (
            AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)(tokens).logits
            for path in (original, converted)
        )
    # A file of llama.cpp's holds the norms' epsilon and the base of the angles in float32.
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_the_proxy_tells_messages_as_the_models_own_template(converted: Path) -> None:
    from transformers import AutoTokenizer

    codec, tokenizer = load_codec(str(converted), "qwen3"), AutoTokenizer.from_pretrained(converted)
    raw = [("system", SYSTEM), ("user", "Write 12 + 345\n\n"), ("user", "é 漢 🙂 now")]
    whole = tokenizer.apply_chat_template(
        [{"role": role, "content": content} for role, content in raw], add_generation_prompt=True
    )["input_ids"]
    [system, *rest] = [Message(role=role, content=content) for role, content in raw]  # type: ignore[arg-type]
    told = [*codec.head([], system), *(it for part in codec.inputs(rest) for it in part)]
    assert [*told, *codec.generation()] == whole
    assert codec.text(whole).count("345") == 1
    assert set(codec.stop_token_ids) == {
        tokenizer.convert_tokens_to_ids(name) for name in ("<|im_end|>", "<|endoftext|>")
    }


def test_digits_are_tokens_of_their_own_and_markers_have_other_names(
    conversion: ModuleType, converted: Path
) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(converted / "tokenizer.json"))
    digits = [tokenizer.token_to_id(digit) for digit in "2026"]
    assert tokenizer.encode("2026").ids == digits
    for old, new in conversion.RENAMED.items():
        assert tokenizer.token_to_id(old) is None
        assert tokenizer.encode(f"{new}x").tokens[0] == new


@pytest.mark.parametrize(
    ("key", "value"), [("general.architecture", "mamba"), ("tokenizer.ggml.pre", "llama-bpe")]
)
def test_another_model_is_refused_in_one_line(
    conversion: ModuleType, original: Path, tmp_path: Path, key: str, value: str
) -> None:
    metadata = metadata_of(original, conversion.RENAMED) | {key: value}
    write_gguf(tmp_path / "other.gguf", metadata, {})
    with pytest.raises(conversion.NotConvertible, match=r"^other\.gguf: no Llama with"):
        conversion.convert(tmp_path / "other.gguf", tmp_path / "model")
    assert not (tmp_path / "model").exists()
