"""What a cell's two processes are given by their agent, and what they are not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gyre.cell_agent.processes import CellProcesses
from gyre.cell_agent.settings import CellAgentSettings
from gyre.core.cell import CellState
from gyre.testkit.specs import job_spec
from gyre.testkit.tiny_model import make_tiny_model

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

VERSION = (1, 0)
JOB = "j"
AGENTS = {
    "GYRE_KEY_SECRET": "the-key-secret",
    "GYRE_DATABASE_URL": "postgresql://gyre:the-password@db/gyre",
    "GYRE_NATS_URL": "nats://gyre:the-password@nats:4222",
    "GYRE_API_TOKEN": "the-token",
    "PGPASSWORD": "the-password",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def processes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CellProcesses]:
    root = tmp_path_factory.mktemp("cell")
    model = {"path": str(make_tiny_model(root / "model")), "context_tokens": 512}
    spec = job_spec(cells=1, phi=0.0, heldout=False, sections={"model": model})
    state = CellState(cell=0, job=JOB, spec=spec, order=(0,), role="rollout")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**AGENTS, "GYRE_HOME": str(root), "GYRE_CELL": "0"}.items():
            patch.setenv(name, value)
        patch.setenv("GYRE_STORE_PORT", "1")
        started = CellProcesses(CellAgentSettings())  # type: ignore[call-arg]
        try:
            await asyncio.gather(
                started.start_engine(state, None, VERSION), started.start_trainer(state)
            )
            yield started
        finally:
            await started.stop()


def environment_of(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in filter(None, entries))


@pytest.mark.parametrize("which", ["engine", "trainer"])
async def test_a_child_is_started_without_its_agents_secrets(
    processes: CellProcesses, which: str
) -> None:
    child = processes.live_engine if which == "engine" else processes.live_trainer
    given = environment_of(child.pid)
    assert not given.keys() & AGENTS.keys()
    assert not [name for name, value in given.items() if value in AGENTS.values()]
    assert given["GYRE_HOME"] == str(processes.logs_dir.parent)
    assert given["OMP_NUM_THREADS"] == "1"


async def test_only_the_engine_is_told_whose_prefixes_may_be_copied(
    processes: CellProcesses,
) -> None:
    assert "GYRE_MIGRATION_KEY" in environment_of(processes.live_engine.pid)
    assert "GYRE_MIGRATION_KEY" not in environment_of(processes.live_trainer.pid)
