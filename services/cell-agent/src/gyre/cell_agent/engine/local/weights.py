"""Weights of a checkpoint: reading, validation, checksum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, load_file

from gyre.cell_agent.engine.local.config import read_json
from gyre.cell_agent.engine.local.errors import ModelFilesError, WeightsError
from gyre.core.policy_weights import LM_HEAD

State = Mapping[str, torch.Tensor]


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
