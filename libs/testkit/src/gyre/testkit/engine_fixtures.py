"""Pytest's fixtures of engines; tests/conftest.py names this module as a plugin.

`engine` is what the contract suite runs against: `local` always, the real SGLang where it is
installed (`make sglang`), in tests marked `sglang`. A boot takes seconds of a core, SGLang's half a
minute, so the tests of a directory share the processes, which end with it: SGLang has 2 GB.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gyre.cell_agent.engine.base import EngineClient
from gyre.cell_agent.engine.launch import EngineKind
from gyre.cell_agent.engine.sglang.launch import installed_python
from gyre.testkit.engine_cases import Record, play
from gyre.testkit.engine_server import BOOT_LIMIT_S, RunningEngine, running_engine
from gyre.testkit.engine_use import serve_weights
from gyre.testkit.tiny_model import make_two_tiny_models

# An aborted request may still have a step under way.
IDLE_S = 30.0
# What a test itself may take, beside the boots that it may have to wait for.
TEST_S = 120.0


class SharedEngines:
    """As many of each kind as were asked for, started when they are asked for and not alive. A kind
    that did not start is not tried again: each try may take BOOT_LIMIT_S."""

    def __init__(self, root: Path) -> None:
        self.models = make_two_tiny_models(root)
        self._root = root
        self._processes = ExitStack()
        self._running: dict[tuple[EngineKind, int], RunningEngine] = {}
        self._failed: dict[EngineKind, AssertionError] = {}

    def alive(self, kind: EngineKind, index: int = 0) -> RunningEngine:
        """As its last user left it. Raises AssertionError, with its log: it does not start."""
        running = self._running.get((kind, index))
        if running is None or running.process.poll() is not None:
            running = self._running[kind, index] = self._start(kind, index)
        return running

    def _start(self, kind: EngineKind, index: int) -> RunningEngine:
        if kind in self._failed:
            raise self._failed[kind]
        started = running_engine(kind, self.models, self._root / f"{kind}-{index}.log")
        try:
            return self._processes.enter_context(started)
        except AssertionError as error:
            self._failed[kind] = error
            raise

    def end(self) -> None:
        """All of them; whoever asks for one afterwards gets a new one."""
        self._running.clear()
        self._processes.close()

    async def cleared(self, kind: EngineKind, index: int = 0, version: str = "w0") -> EngineClient:
        """A client of it, idle, with an empty cache and `models[0]` under this name."""
        client = self.alive(kind, index).client()
        await client.resume()
        await client.abort()
        await client.flush_cache(IDLE_S)
        await serve_weights(client, self.models[0], version)
        return client

    async def play(self, kind: EngineKind) -> dict[str, Record]:
        """What one of the kind answers in every case of the recordings."""
        async with await self.cleared(kind) as client:
            return await play(client.base_url, self.models)


_ENGINES = pytest.StashKey[SharedEngines]()


@pytest.fixture(scope="session")
def shared_engines(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[SharedEngines]:
    """Whoever wants one clears it first."""
    engines = SharedEngines(tmp_path_factory.mktemp("engines"))
    pytestconfig.stash[_ENGINES] = engines
    yield engines
    engines.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, None, None]:
    """Behind a directory's last test its engines end, or they would idle through all others."""
    try:
        return (yield)
    finally:
        engines = item.config.stash.get(_ENGINES, None)
        if engines and nextitem and nextitem.path.parent != item.path.parent:
            engines.end()


def engine_kinds() -> list[Any]:
    """Which engines this machine can run, as a fixture's parameters."""
    if installed_python() is None:
        return ["local"]
    limit = pytest.mark.timeout(BOOT_LIMIT_S["sglang"] + TEST_S)
    return ["local", pytest.param("sglang", marks=(pytest.mark.sglang, pytest.mark.slow, limit))]


@pytest.fixture(scope="module", params=engine_kinds())
def engine(request: pytest.FixtureRequest, shared_engines: SharedEngines) -> RunningEngine:
    """One engine for the tests of a module, which serves `models[0]` as `w0` at first."""
    asyncio.run(_clear(shared_engines, request.param))
    return shared_engines.alive(request.param)


async def _clear(engines: SharedEngines, kind: EngineKind) -> None:
    async with await engines.cleared(kind):
        pass
