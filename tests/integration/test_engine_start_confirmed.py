"""An engine that is started from a checkpoint serves it only as what its manifest says it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from gyre.cell_agent.engine.base import WeightsDiffer
from gyre.cell_agent.engine.launch import EngineStartError
from gyre.cell_agent.engine.tensors import named_checksum, read_directory
from gyre.cell_agent.processes import CellProcesses
from gyre.cell_agent.settings import CellAgentSettings
from gyre.core.cell import CellState
from gyre.core.cell.state import Checkpoint
from gyre.testkit.specs import job_spec
from gyre.testkit.tiny_model import make_tiny_model

VERSION = (1, 2)


def settings(home: Path, **changes: str) -> CellAgentSettings:
    return CellAgentSettings.model_validate(
        {
            "nats_url": "nats://nowhere",
            "database_url": "postgresql://nowhere",
            "key_secret": "s",
            "home": home,
            "cell": 0,
            "store_port": 1,
            **changes,
        }
    )


@pytest.mark.parametrize("is_whole", [True, False])
async def test_a_checkpoint_is_confirmed_before_it_is_served(
    tmp_path: Path, is_whole: bool
) -> None:
    model, saved = (
        make_tiny_model(tmp_path / "m0", seed=0),
        make_tiny_model(tmp_path / "m1", seed=1),
    )
    written = named_checksum(read_directory(saved if is_whole else model))
    section = {"path": str(model), "context_tokens": 512}
    spec = job_spec(cells=1, phi=0.0, heldout=False, sections={"model": section})
    state = CellState(cell=0, job="j", spec=spec, order=(0,), role="rollout")
    state.checkpoint = Checkpoint(version=VERSION, path=str(saved), checksum=written)
    processes = CellProcesses(settings(tmp_path))
    try:
        if is_whole:
            await processes.start_engine(state, str(saved), VERSION)
            assert await processes.live_engine.client.weight_version() == "1.2"
        else:
            with pytest.raises(WeightsDiffer, match="m1"):
                await processes.start_engine(state, str(saved), VERSION)
    finally:
        await processes.stop()


@pytest.mark.parametrize("host", ["0.0.0.0", "8.8.8.8"])
async def test_no_engine_listens_where_anybody_may_connect(tmp_path: Path, host: str) -> None:
    state = CellState(cell=0, job="j", spec=job_spec(cells=2, heldout=False), order=(0,))
    processes = CellProcesses(settings(tmp_path, cell_host=host))
    with pytest.raises(EngineStartError, match=r"weights\.allow_public"):
        await processes.start_engine(state, None, VERSION)
    assert processes.engine is None
