"""What a cell finds in a checkpoint's manifest before it goes on from there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gyre.cell_agent.trainer.checkpoints.manifest import (
    MANIFEST,
    check_layout,
    fields_of,
    read_manifest,
)
from gyre.cell_agent.trainer.errors import CheckpointError
from gyre.contracts.training_job import LayoutSection

TENSOR, DATA = LayoutSection(tensor=2), LayoutSection(data=2)


def check(directory: Path, own: LayoutSection, **saved: Any) -> None:
    named = {"version": 1, "lineage": 0, "sha256": "0", "num_updates": 1}
    (directory / MANIFEST).write_text(json.dumps(named | saved))
    check_layout(directory, read_manifest(directory), own)


@pytest.mark.parametrize("layout", [LayoutSection(), TENSOR, DATA], ids=str)
def test_the_layout_that_saved_a_checkpoint_goes_on_from_it(
    tmp_path: Path, layout: LayoutSection
) -> None:
    check(tmp_path, layout, num_ranks=layout.num_ranks, layout=fields_of(layout))


def test_another_layout_is_refused_although_it_has_as_many_ranks(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"2 ranks \(tensor: 2\), this one has 2 \(data: 2\)"):
        check(tmp_path, DATA, num_ranks=2, layout=fields_of(TENSOR))


def test_an_older_manifest_is_compared_by_its_number_of_ranks(tmp_path: Path) -> None:
    check(tmp_path, DATA, num_ranks=2)
    with pytest.raises(CheckpointError, match=r"1 ranks, this one has 2 \(data: 2\)"):
        check(tmp_path, DATA, num_ranks=1)
