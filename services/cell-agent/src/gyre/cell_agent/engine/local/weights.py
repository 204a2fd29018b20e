"""Weights of a Qwen3 checkpoint: names and shapes, reading, validation, checksum."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file

from gyre.cell_agent.engine.local.config import ModelConfig, read_json
from gyre.cell_agent.engine.local.errors import ModelFilesError, WeightsError

State = Mapping[str, torch.Tensor]

LM_HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Hugging Face name -> shape of every parameter; a tied model has no `lm_head.weight`."""
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_heads * dim, config.num_kv_heads * dim
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_word_embeddings:
        shapes[LM_HEAD] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (hidden,),
            f"{prefix}.post_attention_layernorm.weight": (hidden,),
            f"{prefix}.self_attn.q_proj.weight": (queries, hidden),
            f"{prefix}.self_attn.k_proj.weight": (keys, hidden),
            f"{prefix}.self_attn.v_proj.weight": (keys, hidden),
            f"{prefix}.self_attn.o_proj.weight": (hidden, queries),
            f"{prefix}.self_attn.q_norm.weight": (dim,),
            f"{prefix}.self_attn.k_norm.weight": (dim,),
            f"{prefix}.mlp.gate_proj.weight": (inner, hidden),
            f"{prefix}.mlp.up_proj.weight": (inner, hidden),
            f"{prefix}.mlp.down_proj.weight": (hidden, inner),
        }
    return shapes


def read_checkpoint(directory: Path) -> dict[str, torch.Tensor]:
    """All tensors of `model.safetensors`, or of the shards its index lists.

    Raises ModelFilesError when there is no readable safetensors checkpoint.
    """
    index = directory / "model.safetensors.index.json"
    single = directory / "model.safetensors"
    if index.exists() and not single.exists():
        files = sorted({directory / str(name) for name in read_json(index)["weight_map"].values()})
    else:
        files = [single]
    state: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            state |= load_file(str(file))
        except (OSError, SafetensorError) as error:
            raise ModelFilesError(f"cannot read weights from {file}: {error}") from error
    return state


def decode_safetensors(payload: bytes) -> dict[str, torch.Tensor]:
    """Tensors of a safetensors document in memory; raises WeightsError, never unpickles."""
    try:
        return load(payload)
    except SafetensorError as error:
        raise WeightsError(f"the payload is not a safetensors document: {error}") from error


def check_state(state: State, shapes: Mapping[str, tuple[int, ...]], *, complete: bool) -> None:
    """Refuse unknown names, wrong shapes and, when `complete`, missing names.

    `lm_head.weight` is accepted and ignored for a tied model, since some writers save it.
    Raises WeightsError naming the first few offenders.
    """
    unknown = [name for name in state if name not in shapes and name != LM_HEAD]
    if unknown:
        raise WeightsError(f"unknown parameters: {_some(unknown)}")
    wrong = [
        f"{name} is {tuple(tensor.shape)}, expected {shapes[name]}"
        for name, tensor in state.items()
        if name in shapes and tuple(tensor.shape) != shapes[name]
    ]
    if wrong:
        raise WeightsError(f"wrong shape: {_some(wrong)}")
    missing = [name for name in shapes if name not in state] if complete else []
    if missing:
        raise WeightsError(f"missing parameters: {_some(missing)}")


def _some(items: Iterable[str], limit: int = 3) -> str:
    listed = sorted(items)
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more


def checksum(state: State) -> str:
    """SHA-256 over each name (UTF-8) and then its fp32 bytes (C order), in name order.

    Taken over the Hugging Face names, so that a trainer which computes it over the weights
    that it exports gets the same digest as the engine that loaded them. A tied model has no
    `lm_head.weight` here.
    """
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode())
        tensor = state[name].detach().to(torch.float32).contiguous()
        digest.update(tensor.numpy().data)
    return digest.hexdigest()
