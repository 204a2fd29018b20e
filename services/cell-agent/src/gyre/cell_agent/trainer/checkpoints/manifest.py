"""What a checkpoint says of itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gyre.cell_agent.trainer.errors import CheckpointError
from gyre.contracts.training_job import LayoutSection

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """sha256: the weights' checksum, as the engines report it once they serve them. num_ranks: of
    the cell, whose state there is; layout: those fields of its layout that are not their defaults.
    file_sha256: of model.safetensors as it lies there, for who has no tensors to check.
    state_sha256: of the files of the trainer's state, by name: torch checks none of them, and
    unpickles one."""

    version: int
    lineage: int
    sha256: str
    num_updates: int
    num_ranks: int
    file_sha256: str = ""
    state_sha256: dict[str, str] = field(default_factory=dict)
    layout: dict[str, int] = field(default_factory=dict)

    def names_the_same(self, other: Manifest) -> bool:
        """The same weights, after as many updates."""
        return _unwritten(self) == _unwritten(other)


def _unwritten(manifest: Manifest) -> Manifest:
    return replace(manifest, file_sha256="", state_sha256={}, layout={})


def read_manifest(directory: Path) -> Manifest:
    try:
        return Manifest(**json.loads((directory / MANIFEST).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{directory}: no readable {MANIFEST}: {error}") from error


def check_layout(directory: Path, manifest: Manifest, layout: LayoutSection) -> None:
    """layout: of the cell that is to go on from there. Raises CheckpointError: another saved it."""
    saved, own = manifest.layout, fields_of(layout)
    # Of several ranks, an older manifest has their number alone.
    if manifest.num_ranks != layout.num_ranks or (saved and saved != own):
        raise CheckpointError(
            f"{directory}: saved by cells of {manifest.num_ranks} ranks{_listed(saved)}, this one "
            f"has {layout.num_ranks}{_listed(own)}: a job keeps its training.layout"
        )


def fields_of(layout: LayoutSection) -> dict[str, int]:
    """As a manifest has them."""
    return layout.model_dump(exclude_defaults=True)


def _listed(fields: Mapping[str, int]) -> str:
    names = ", ".join(f"{name}: {size}" for name, size in fields.items())
    return f" ({names})" if names else ""
