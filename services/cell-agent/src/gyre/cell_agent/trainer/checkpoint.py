"""Checkpoints: a Hugging Face directory that any engine can serve, plus the optimizer's state.

`config.json`, `model.safetensors` (in the trainer's precision), the tokenizer's files,
`trainer_state.pt` (optimizer moments; read with weights_only) and `manifest.json`. Durable or not
there: everything is written and synced in a directory beside it, then renamed into place.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from gyre.cell_agent.trainer.conversion import Weights
from gyre.cell_agent.trainer.errors import CheckpointError
from gyre.cell_agent.trainer.optimizer import OptimizerState
from gyre.cell_agent.trainer.weights_io import SINGLE_FILE, checksum, read_weights, to_bytes

MANIFEST = "manifest.json"
TRAINER_STATE = "trainer_state.pt"
_COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """sha256: the weights' checksum, as the engines report it once they serve them."""

    version: int
    lineage: int
    sha256: str
    num_updates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    manifest: Manifest
    weights: Weights
    optimizer: OptimizerState | None


def save_checkpoint(
    directory: Path,
    *,
    model_path: Path,
    weights: Weights,
    optimizer: OptimizerState | None,
    version: int,
    lineage: int,
) -> Manifest:
    """Saving the same weights to the same place again is no error: a retried command finds the
    first one's work. Raises CheckpointError: something else is there already."""
    manifest = Manifest(
        version=version,
        lineage=lineage,
        sha256=checksum(weights),
        num_updates=optimizer["num_updates"] if optimizer else 0,
    )
    if directory.exists():
        if read_manifest(directory) == manifest:
            return manifest
        raise CheckpointError(f"{directory}: another checkpoint is already there")
    draft = directory.with_name(f".{directory.name}.{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    _write(draft / SINGLE_FILE, lambda path: path.write_bytes(to_bytes(weights)))
    _write(draft / "config.json", lambda path: path.write_text(_config_json(model_path, weights)))
    for name in _COPIED:
        if (model_path / name).exists():
            _write(draft / name, lambda path: shutil.copyfile(model_path / path.name, path))
    if optimizer is not None:
        _write(draft / TRAINER_STATE, lambda path: torch.save(optimizer, path))
    _write(draft / MANIFEST, lambda path: path.write_text(json.dumps(asdict(manifest), indent=2)))
    _sync(draft)
    draft.rename(directory)
    _sync(directory.parent)
    return manifest


def read_manifest(directory: Path) -> Manifest:
    try:
        return Manifest(**json.loads((directory / MANIFEST).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{directory}: no readable {MANIFEST}: {error}") from error


def load_checkpoint(directory: Path) -> Checkpoint:
    """Raises CheckpointError: missing, or weights that do not match the manifest."""
    manifest = read_manifest(directory)
    weights = read_weights(directory)
    if checksum(weights) != manifest.sha256:
        raise CheckpointError(f"{directory}: the weights do not match the manifest's sha256")
    state_path = directory / TRAINER_STATE
    if not state_path.exists():
        return Checkpoint(manifest=manifest, weights=weights, optimizer=None)
    try:
        optimizer: OptimizerState = torch.load(state_path, weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{state_path}: {error}") from error
    return Checkpoint(manifest=manifest, weights=weights, optimizer=optimizer)


def _config_json(model_path: Path, weights: Weights) -> str:
    """The model's own, but for the precision that the weights are now stored in."""
    config = json.loads((model_path / "config.json").read_text())
    config.pop("torch_dtype", None)
    dtype = next(iter(weights.values())).dtype
    return json.dumps(config | {"dtype": str(dtype).removeprefix("torch.")}, indent=2)


def _write(path: Path, write: Callable[[Path], object]) -> None:
    write(path)
    _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
