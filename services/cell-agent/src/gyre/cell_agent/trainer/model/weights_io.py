"""Weights as bytes and as files: safetensors by Hugging Face names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from gyre.cell_agent.trainer.errors import BadModel

Weights = dict[str, Tensor]
"""By Hugging Face names."""

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


def checksum(weights: Mapping[str, Tensor]) -> str:
    """SHA-256 over names in order, each followed by its tensor's bytes in float32. The engine's
    /weights_checker computes the same, so equal means: these very weights are served."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].detach().to(torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()


def read_weights(model_path: Path) -> Weights:
    """Raises BadModel: no safetensors there, or damaged ones."""
    try:
        if (model_path / SINGLE_FILE).exists():
            return safetensors.torch.load_file(model_path / SINGLE_FILE)
        index = json.loads((model_path / INDEX_FILE).read_text())
        weights: Weights = {}
        for name in sorted(set(index["weight_map"].values())):
            weights.update(safetensors.torch.load_file(model_path / name))
        return weights
    except (OSError, ValueError, KeyError, safetensors.SafetensorError) as error:
        raise BadModel(f"{model_path}: no readable weights: {error}") from error


def to_bytes(weights: Weights) -> bytes:
    # transformers refuses files without the format note.
    return safetensors.torch.save(weights, metadata={"format": "pt"})


def from_bytes(payload: bytes) -> Weights:
    try:
        return safetensors.torch.load(payload)
    except (ValueError, safetensors.SafetensorError) as error:
        raise BadModel(f"the weights cannot be read: {error}") from error
