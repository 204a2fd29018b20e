"""Checkpoints: a Hugging Face directory that any engine can serve, plus the trainer's own state.

`config.json`, `model.safetensors` (in the trainer's precision), the tokenizer's files,
`trainer_state/` (`trainer_state.py`) and `manifest.json`. Durable or not there: everything is
written and synced in a directory beside it, then renamed into place. All ranks of a cell take part;
the first one writes what is not each rank's own.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from gyre.adapters.logging import get_logger
from gyre.cell_agent.engine.torch_checksum import checksum
from gyre.cell_agent.trainer.carriers import WeightsName
from gyre.cell_agent.trainer.checkpoints.manifest import (
    MANIFEST,
    Manifest,
    check_layout,
    fields_of,
    read_manifest,
)
from gyre.cell_agent.trainer.checkpoints.retention import (
    NO_ROOM,
    Retention,
    draft_of,
    lacks_room,
    prune,
)
from gyre.cell_agent.trainer.checkpoints.trainer_state import (
    TRAINER_STATE,
    TrainerState,
    files_of,
    read_state,
    write_state,
)
from gyre.cell_agent.trainer.errors import CheckpointError, NoSpace
from gyre.cell_agent.trainer.model.weights_io import (
    SINGLE_FILE,
    Weights,
    read_weights,
    to_bytes,
)
from gyre.cell_agent.trainer.ranks.cell_ranks import CellRanks
from gyre.contracts.training_job import LayoutSection

T = TypeVar("T")
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
class Content:
    """What one rank puts into a checkpoint: copies, which nothing changes any more. weights: whole,
    and of rank 0 alone looked at."""

    model_path: Path
    layout: LayoutSection
    name: WeightsName
    weights: Weights
    state: TrainerState


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    manifest: Manifest
    weights: Weights
    state: TrainerState


def save_checkpoint(
    directory: Path, content: Content, ranks: CellRanks, retention: Retention
) -> Manifest:
    """On all ranks of the cell. Saving the same weights to the same place again is no error: a
    retried command finds the first one's work. Older checkpoints beside it go once it is durable,
    or sooner if it does not fit.

    Raises CheckpointError on all ranks: something else is there already, it cannot be written;
    NoSpace: it does not fit. Nothing of it is left then.
    """
    manifest, found = ranks.once(partial(_begun, directory, content))
    if found:
        return manifest
    try:
        manifest = _write(directory, content, manifest, ranks)
    except NoSpace:
        if ranks.once(partial(_pruned, directory.parent, retention, coming=1)) == 0:
            raise
        manifest = _write(directory, content, manifest, ranks)
    ranks.once(partial(_pruned, directory.parent, retention))
    return manifest


def load_checkpoint(
    directory: Path, layout: LayoutSection, ranks: CellRanks, *, optimizer: bool = True
) -> Checkpoint:
    """On all ranks of the cell, whose layout it is. optimizer: whether its state is wanted. Raises
    CheckpointError: missing, of another layout, or files that do not match the manifest."""
    manifest = read_manifest(directory)
    check_layout(directory, manifest, layout)
    weights = read_weights(directory)
    if checksum(weights) != manifest.sha256:
        raise CheckpointError(f"{directory}: the weights do not match the manifest's sha256")
    for name in files_of(ranks.rank):
        if _file_sha256(directory / TRAINER_STATE / name) != manifest.state_sha256.get(name):
            raise CheckpointError(f"{directory}: {name} does not match the manifest's sha256")
    state = read_state(directory / TRAINER_STATE, ranks, optimizer=optimizer)
    return Checkpoint(manifest=manifest, weights=weights, state=state)


def _pruned(parent: Path, retention: Retention, *, coming: int = 0) -> int:
    """`prune`, as far as the disk lets it: what is saved stays saved, and what was to go stays
    until the next time."""
    try:
        return prune(parent, retention, coming=coming)
    except OSError as error:
        get_logger().warning("checkpoints_not_pruned", directory=str(parent), error=str(error))
        return 0


def _begun(directory: Path, content: Content) -> tuple[Manifest, bool]:
    """What is to be written, and whether it is there already."""
    manifest = Manifest(
        version=content.name.version,
        lineage=content.name.lineage,
        sha256=checksum(content.weights),
        num_updates=content.state.num_updates,
        num_ranks=content.layout.num_ranks,
        layout=fields_of(content.layout),
    )
    if not directory.exists():
        _on_disk(directory, partial(directory.parent.mkdir, parents=True, exist_ok=True))
        return manifest, False
    found = read_manifest(directory)
    check_layout(directory, found, content.layout)
    if not found.names_the_same(manifest):
        raise CheckpointError(f"{directory}: another checkpoint is already there")
    return found, True


def _write(directory: Path, content: Content, manifest: Manifest, ranks: CellRanks) -> Manifest:
    draft = draft_of(directory)
    try:
        file_sha256 = ranks.once(
            partial(_on_disk, directory, partial(_write_model, draft, content))
        )
        # The first rank's draft: its name is the same for all.
        shared = ranks.once(lambda: draft)
        write_state(shared / TRAINER_STATE, content.state, ranks)
        finish = partial(_finish, draft, directory, replace(manifest, file_sha256=file_sha256))
        return ranks.once(partial(_on_disk, directory, finish))
    except CheckpointError as error:
        # Asked while the draft still takes what there was.
        full = ranks.any(isinstance(error, NoSpace) or _lacks_room(directory, content))
        ranks.once(partial(shutil.rmtree, draft, ignore_errors=True))
        if not full or isinstance(error, NoSpace):
            raise
        raise _no_space(directory, error) from error


def _lacks_room(directory: Path, content: Content) -> bool:
    """For about what this rank writes."""
    weights = sum(tensor.nbytes for tensor in content.weights.values())
    try:
        return lacks_room(directory.parent, weights + content.state.num_bytes)
    except OSError:
        return False  # of what it died of there is an error already


def _write_model(draft: Path, content: Content) -> str:
    """Returns the SHA-256 of the weights' file."""
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    model_path, weights = content.model_path, content.weights
    payload = to_bytes(weights)
    _write_file(draft / SINGLE_FILE, lambda path: path.write_bytes(payload))
    config = _config_json(model_path, weights)
    _write_file(draft / "config.json", lambda path: path.write_text(config))
    for name in _COPIED:
        if (model_path / name).exists():
            _write_file(draft / name, lambda path: shutil.copyfile(model_path / path.name, path))
    return hashlib.sha256(payload).hexdigest()


def _finish(draft: Path, directory: Path, manifest: Manifest) -> Manifest:
    """From here on it is there."""
    files = sorted((draft / TRAINER_STATE).iterdir())
    manifest = replace(manifest, state_sha256={path.name: _file_sha256(path) for path in files})
    text = json.dumps(asdict(manifest), indent=2)
    _write_file(draft / MANIFEST, lambda path: path.write_text(text))
    _sync(draft / TRAINER_STATE)
    _sync(draft)
    draft.rename(directory)
    _sync(directory.parent)
    return manifest


def _on_disk(directory: Path, work: Callable[[], T]) -> T:
    """`work`, with what the disk refuses as a CheckpointError."""
    try:
        return work()
    except OSError as error:
        if error.errno in NO_ROOM:
            raise _no_space(directory, error) from error
        raise CheckpointError(f"{directory}: {error}") from error


def _no_space(directory: Path, error: Exception) -> NoSpace:
    there = next(parent for parent in directory.absolute().parents if parent.exists())
    free = shutil.disk_usage(there).free
    return NoSpace(
        f"{directory}: no room on its disk, {free / 1e6:.1f} MB are free: make room, then resume "
        f"the job ({error})"
    )


def _file_sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _config_json(model_path: Path, weights: Weights) -> str:
    """The model's own, but for the precision that the weights are now stored in."""
    config = json.loads((model_path / "config.json").read_text())
    config.pop("torch_dtype", None)
    dtype = next(iter(weights.values())).dtype
    return json.dumps(config | {"dtype": str(dtype).removeprefix("torch.")}, indent=2)


def _write_file(path: Path, write: Callable[[Path], object]) -> None:
    write(path)
    _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
