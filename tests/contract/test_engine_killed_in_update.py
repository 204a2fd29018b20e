"""The local engine can be killed inside an update: some weights new, the name not yet said."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from gyre.cell_agent.engine.base import EngineUnreachableError
from gyre.cell_agent.engine.tensors import read_directory
from gyre.testkit.engine_server import running_engine
from gyre.testkit.tiny_model import make_tiny_model

# The tiny model has 0.5 MB.
BUCKET_BYTES = 50_000


@pytest.mark.parametrize("place", ["engine.mid_update", "engine.between_buckets"])
async def test_an_engine_dies_between_two_parameters_or_two_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """And not where it starts, though it loads weights there too."""
    monkeypatch.setenv("GYRE_FAILPOINT", place)
    monkeypatch.setenv("GYRE_HOME", str(tmp_path))
    models = make_tiny_model(tmp_path / "m0", seed=0), make_tiny_model(tmp_path / "m1", seed=1)
    with running_engine("local", models, tmp_path / "engine.log") as engine:
        async with engine.client() as client:
            assert await client.weight_version() == "w0"
            await client.pause("retract")
            with pytest.raises(EngineUnreachableError):
                await client.update_weights_from_tensors(
                    read_directory(models[1]), weight_version="w1", bucket_bytes=BUCKET_BYTES
                )
        assert engine.process.wait(timeout=10) == -signal.SIGKILL
    assert (tmp_path / "run" / f"failpoint.{place}").exists()
