"""A whole job whose engines are sent each version over the network: they serve it, and what is
learnt is what a job learns that publishes by the disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from gyre.adapters.journal import Fact
from gyre.contracts.events import cells as cell_events
from gyre.core.routing import weight_version_name
from gyre.testkit.cells_job import Life, cells_spec, make_batches
from gyre.testkit.real_cells import RealCells

pytestmark = pytest.mark.timeout(240)

CORE, POOL = 0, 2
NUM_STEPS = 2
BATCHES = NUM_STEPS * make_batches(num_batches=1, num_micro_steps=4, normalizer=8)
# Sums of other orders: floats of 32 bits, a step of Adam.
TOLERANCE = 1e-5
PROMPT = {
    "input_ids": [5, 6, 7],
    "sampling_params": {"temperature": 0, "max_new_tokens": 2, "ignore_eos": True},
}


@dataclass(kw_only=True)
class Asked:
    """What the pool's engine says whenever a version is published. said: by version, the name that
    its tokens are sampled under and its checksum. saved: the checksum of each checkpoint."""

    url: str = ""
    said: dict[int, tuple[str, str]] = field(default_factory=dict)
    saved: dict[int, str] = field(default_factory=dict)

    def on_fact(self, fact: Fact) -> None:
        match fact.body:
            case cell_events.RoleChanged(cell=cell, engine_url=str(url)) if cell == POOL:
                self.url = url
            case cell_events.CheckpointSaved(version=version, checksum=checksum):
                self.saved[version] = checksum
            case cell_events.WeightsPublished(version=version):
                sampled = self._post("/generate", PROMPT)["meta_info"]["weight_version"]
                checked = self._post("/weights_checker", {"action": "checksum"})
                self.said[version] = (sampled, checked["per_engine_checksum"])

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        return httpx.post(f"{self.url}{path}", json=body, timeout=60.0).raise_for_status().json()


def run(home: Path, publication: str) -> tuple[Life, Asked]:
    # A publication after each step.
    spec = cells_spec(home, pool=1, mu=1, num_steps=NUM_STEPS, publication=publication)
    asked = Asked()
    cells = RealCells(spec=spec, home=home, batches=BATCHES, on_fact=asked.on_fact)
    return cells.live(), asked


def test_a_job_publishes_over_tcp_as_it_does_by_the_disk(tmp_path: Path) -> None:
    by_disk, _ = run(tmp_path / "disk", "disk")
    by_wire, asked = run(tmp_path / "tcp", "tcp")
    for life in (by_disk, by_wire):
        assert (life.end.status, life.end.reason) == ("succeeded", "all steps done")
    assert by_wire.losses == pytest.approx(by_disk.losses, rel=TOLERANCE)
    loaded = [one for one in by_wire.of(cell_events.WeightsLoaded) if one.cell == POOL]
    versions = range(1, NUM_STEPS + 1)
    assert [(one.version, one.transport) for one in loaded] == [(v, "tcp") for v in versions]
    assert all(one.checksum == asked.saved[one.version] for one in loaded)
    (lineage,) = {one.lineage for one in loaded}
    assert asked.said == {
        version: (weight_version_name(lineage, version), asked.saved[version])
        for version in versions
    }
    published = by_wire.of(cell_events.WeightsPublished)
    assert all(POOL in one.confirmed_by for one in published)
    offered = [one for one in by_wire.of(cell_events.WeightsExposed) if one.source == "checkpoint"]
    assert [(one.cell, one.version) for one in offered] == [(CORE, v) for v in versions]
