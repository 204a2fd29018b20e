"""What the tests of the real SGLang share: two servers at most, started once a session.

Both begin with models[0]. A test gets them idle, with an empty cache, under a version name that is
told them anew; one that was killed is started again for whoever asks next.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gyre.cell_agent.engine.base import EngineClient
from gyre.cell_agent.engine.sglang.launch import installed_python
from gyre.testkit.engine_server import RunningEngine, running_engine
from gyre.testkit.engine_use import serve_weights
from gyre.testkit.sglang_reference import Reference
from gyre.testkit.tiny_model import make_tiny_model

VERSION = "0.0"
# An aborted request may still have a step under way.
IDLE_S = 30.0
# Two servers may have to start for one test.
TIMEOUT_S = 600


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
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("sglang_models")
    return make_tiny_model(root / "m0", seed=0), make_tiny_model(root / "m1", seed=1)


@pytest.fixture(scope="session")
def references(models: tuple[Path, Path]) -> tuple[Reference, Reference]:
    return Reference(models[0]), Reference(models[1])


class Server:
    """One SGLang, started when it is asked for and not alive."""

    def __init__(self, models: tuple[Path, Path], log: Path, stack: ExitStack) -> None:
        self._models = models
        self._log = log
        self._stack = stack
        self._running: RunningEngine | None = None

    def engine(self) -> RunningEngine:
        if self._running is None or self._running.process.poll() is not None:
            started = running_engine("sglang", self._models, self._log)
            self._running = self._stack.enter_context(started)
        return self._running


@pytest.fixture(scope="session")
def server(
    models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[int], RunningEngine]]:
    """The first or the second server, alive."""
    logs = tmp_path_factory.mktemp("sglang_logs")
    with ExitStack() as stack:
        servers = [Server(models, logs / f"{index}.log", stack) for index in (0, 1)]
        yield lambda index: servers[index].engine()


async def cleared(engine: RunningEngine) -> EngineClient:
    """A client of the engine, idle and with models[0] as VERSION."""
    client = engine.client()
    await client.resume()
    await client.abort()
    await client.flush_cache(IDLE_S)
    await serve_weights(client, engine.models[0], VERSION)
    return client


@pytest.fixture
async def first(server: Callable[[int], RunningEngine]) -> AsyncIterator[EngineClient]:
    async with await cleared(server(0)) as client:
        yield client


@pytest.fixture
async def second(server: Callable[[int], RunningEngine]) -> AsyncIterator[EngineClient]:
    async with await cleared(server(1)) as client:
        yield client
