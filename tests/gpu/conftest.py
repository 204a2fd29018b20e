"""What the tests that need a GPU share. `make test-gpu` runs them; elsewhere they are skipped.

None of them was ever run: no machine with a GPU was at hand when they were written.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from gyre.cell_agent.engine.launch import EngineLaunch, visible_device
from gyre.cell_agent.engine.process import EngineProcess
from gyre.cell_agent.engine.sglang.launch import installed_python
from gyre.testkit.tiny_model import make_tiny_model

# One SGLang on a GPU compiles and captures graphs when it starts.
TIMEOUT_S = 300
CONTEXT_TOKENS = 1024


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(item.fspath).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.gpu)
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session", autouse=True)
def _gpu() -> None:
    if visible_device(os.environ) != "cuda":
        pytest.skip("no GPU is visible here")


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The GPU, for this environment's own torch."""
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} of this environment cannot use the GPU")
    return torch.device("cuda", 0)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("models")
    one, other = (
        make_tiny_model(
            root / f"m{seed}",
            seed=seed,
            hidden_size=1024,
            num_layers=8,
            head_dim=64,
            intermediate_size=2048,
            max_position_embeddings=4096,
        )
        for seed in (0, 1)
    )
    return one, other


@pytest.fixture
async def engine(models: tuple[Path, Path], tmp_path: Path) -> AsyncIterator[EngineProcess]:
    """A plain SGLang, as an agent starts it on a GPU, with models[0] as version 1.0."""
    python = installed_python()
    if python is None:
        pytest.skip("SGLang is not installed: gyre engines install sglang")
    process = EngineProcess(log_path=tmp_path / "sglang.log")
    launch = EngineLaunch(
        kind="sglang",
        model_path=str(models[0]),
        weight_version="1.0",
        context_tokens=CONTEXT_TOKENS,
        max_running_requests=8,
        seed=0,
        host="127.0.0.1",
        threads=1,
        memory_fraction=0.2,
        python=python,
        device="cuda",
    )
    try:
        await process.start(launch)
        yield process
    finally:
        await process.stop()
