"""Weights as bytes and as files: safetensors by Hugging Face names."""

from __future__ import annotations

import json
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from gyre.cell_agent.trainer.errors import BadModel

Weights = dict[str, Tensor]
"""By Hugging Face names."""

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


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
