"""What the contract's tests of an engine's weights share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gyre.cell_agent.engine.base import EngineClient
from gyre.testkit.engine_server import RunningEngine
from gyre.testkit.engine_use import serving


@pytest.fixture
async def client(engine: RunningEngine) -> AsyncIterator[EngineClient]:
    """Starts every test with `models[0]` as `w0`."""
    async with serving(engine, "w0") as made:
        yield made
