"""What the tests of the real SGLang share: two servers.

Both begin with models[0]. A test gets them idle, with an empty cache, under a version name that is
told them anew.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gyre.cell_agent.engine.base import EngineClient
from gyre.cell_agent.engine.sglang.launch import installed_python
from gyre.testkit.engine_fixtures import TEST_S, SharedEngines
from gyre.testkit.engine_server import BOOT_LIMIT_S
from gyre.testkit.sglang_reference import Reference

VERSION = "0.0"
# Two servers may have to start for one test.
TIMEOUT_S = 2 * BOOT_LIMIT_S["sglang"] + TEST_S


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(item.fspath).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.sglang)
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session", autouse=True)
def _installed() -> None:
    if installed_python() is None:
        pytest.skip("SGLang is not installed: make sglang")


@pytest.fixture(scope="session")
def models(shared_engines: SharedEngines) -> tuple[Path, Path]:
    return shared_engines.models


@pytest.fixture(scope="session")
def references(models: tuple[Path, Path]) -> tuple[Reference, Reference]:
    return Reference(models[0]), Reference(models[1])


@pytest.fixture
async def first(shared_engines: SharedEngines) -> AsyncIterator[EngineClient]:
    async with await shared_engines.cleared("sglang", 0, VERSION) as client:
        yield client


@pytest.fixture
async def second(shared_engines: SharedEngines) -> AsyncIterator[EngineClient]:
    async with await shared_engines.cleared("sglang", 1, VERSION) as client:
        yield client
