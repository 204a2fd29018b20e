"""What the engine reads of a model: its shapes, and the tokens that end an answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.cell_agent.engine.local.errors import ModelFilesError
from gyre.core.policy_config import LLAMA, QWEN3, PolicyConfig, UnknownModel, policy_config

ARCHITECTURES = {QWEN3: "Qwen3ForCausalLM", LLAMA: "LlamaForCausalLM"}
"""By config.json's model_type: the models that are served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """model_type: one of ARCHITECTURES. shapes: of a dense model."""

    model_type: str
    shapes: PolicyConfig
    eos_token_ids: frozenset[int]


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; raises ModelFilesError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFilesError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelFilesError(f"{path} is not a JSON object")
    return value


def read_model_config(directory: Path) -> ModelConfig:
    """Read `config.json` (and the stop tokens of `generation_config.json`, when present).

    Raises ModelFilesError for another model, or one of these with what the forward pass here has
    not: scaled RoPE, biases, sliding windows.
    """
    path = directory / "config.json"
    raw = read_json(path)
    model_type = raw.get("model_type")
    if model_type not in ARCHITECTURES:
        served = ", ".join(ARCHITECTURES)
        raise ModelFilesError(f"{path}: model_type {model_type!r}, this engine has {served}")
    try:
        shapes = policy_config(raw)
    except UnknownModel as error:
        raise ModelFilesError(f"{path}: {error}") from error
    return ModelConfig(
        model_type=model_type, shapes=shapes, eos_token_ids=_stop_token_ids(raw, directory)
    )


def _stop_token_ids(raw: dict[str, Any], directory: Path) -> frozenset[int]:
    """Union of `eos_token_id` in both files: either may hold one id, a list, or null."""
    ids: set[int] = set()
    sources = [raw]
    generation = directory / "generation_config.json"
    if generation.exists():
        sources.append(read_json(generation))
    for source in sources:
        value = source.get("eos_token_id")
        if isinstance(value, int):
            ids.add(value)
        elif isinstance(value, list):
            ids.update(int(item) for item in value)
    return frozenset(ids)
