"""What a cell's ranks hold beside the weights, on disk: optimizer and random state.

Written and read by torch's distributed checkpoint, one file a rank and an index of all. A tensor's
key names its rank: parts of parameters, which another layout would cut elsewhere, so a cell of
another layout does not read them. How many cells there are is not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from gyre.cell_agent.trainer.errors import CheckpointError
from gyre.cell_agent.trainer.optimizer import OptimizerState
from gyre.cell_agent.trainer.ranks.cell_ranks import CellRanks

TRAINER_STATE = "trainer_state"
_OPTIMIZER, _RANDOM, _NUM_UPDATES = "optimizer/", "random/", "num_updates"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """Of one rank. optimizer: None where nothing was ever updated. random: as `random_state`."""

    optimizer: OptimizerState | None
    random: dict[str, Tensor]

    @property
    def num_updates(self) -> int:
        return self.optimizer["num_updates"] if self.optimizer else 0

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in _flat(self, "").values())


def files_of(rank: int) -> tuple[str, str]:
    """Names of the files that a rank reads: the index of all, and its own."""
    return ".metadata", f"__{rank}_0.distcp"


def write_state(directory: Path, state: TrainerState, ranks: CellRanks) -> None:
    """On all ranks. Synced. Raises CheckpointError, on all of them if on one: torch hides the
    number of the operating system's error, see `retention.lacks_room`."""
    writer = FileSystemWriter(directory, sync_files=True)
    try:
        save(_flat(state, _prefix(ranks)), storage_writer=writer, process_group=ranks.group)
    except CheckpointException as error:
        raise CheckpointError(f"{directory}: {_first(error)}") from error


def read_state(directory: Path, ranks: CellRanks, *, optimizer: bool) -> TrainerState:
    """This rank's, without the optimizer's where it is not wanted. On all ranks. Raises
    CheckpointError: missing, or damaged."""
    prefix = _prefix(ranks)
    wanted = prefix if optimizer else prefix + _RANDOM
    reader = FileSystemReader(directory)
    try:
        known = reader.read_metadata().state_dict_metadata
        tensors = {
            key: torch.empty(entry.size, dtype=entry.properties.dtype)
            for key, entry in known.items()
            if key.startswith(wanted) and isinstance(entry, TensorStorageMetadata)
        }
        load(tensors, storage_reader=reader, process_group=ranks.group)
    except OSError as error:
        raise CheckpointError(f"{directory}: {error}") from error
    except CheckpointException as error:
        raise CheckpointError(f"{directory}: {_first(error)}") from error
    return _structured({key.removeprefix(prefix): value for key, value in tensors.items()})


def _prefix(ranks: CellRanks) -> str:
    return f"rank{ranks.rank}/"


def _flat(state: TrainerState, prefix: str) -> dict[str, Any]:
    tensors = {f"{prefix}{_RANDOM}{name}": value for name, value in state.random.items()}
    if state.optimizer is None:
        return tensors
    tensors[prefix + _NUM_UPDATES] = torch.tensor(state.num_updates)
    for name, values in state.optimizer["parameters"].items():
        for key, value in values.items():
            tensors[f"{prefix}{_OPTIMIZER}{name}/{key}"] = value
    return tensors


def _structured(tensors: Mapping[str, Tensor]) -> TrainerState:
    random: dict[str, Tensor] = {}
    parameters: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith(_RANDOM):
            random[key.removeprefix(_RANDOM)] = value
        elif key.startswith(_OPTIMIZER):
            name, _, what = key.removeprefix(_OPTIMIZER).rpartition("/")
            parameters.setdefault(name, {})[what] = value
    if _NUM_UPDATES not in tensors:
        return TrainerState(optimizer=None, random=random)
    optimizer = {"num_updates": int(tensors[_NUM_UPDATES]), "parameters": parameters}
    return TrainerState(optimizer=optimizer, random=random)


def _first(error: CheckpointException) -> str:
    """One line, of the rank that failed first."""
    rank, (failure, _) = min(error.failures.items())
    return f"rank {rank}: {type(failure).__name__}: {' '.join(str(failure).split())[:200]}"
