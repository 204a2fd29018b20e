"""What the tests of services and processes share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from gyre.adapters.eventlog.streams import ensure_streams
from gyre.adapters.postgres import connect, migrate
from gyre.embedded import postgres
from gyre.testkit.nats_server import NatsServer


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    """A real server with Gyre's streams, for one test."""
    server = NatsServer(tmp_path / "nats").start()
    try:
        asyncio.run(ensure_streams(server.url))
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def database_url() -> Iterator[str]:
    """A real Postgres with Gyre's tables; they hold what the tests before left there."""
    with postgres.running() as server:
        migrate(server.url)
        yield server.url


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[AsyncEngine]:
    """Of empty projections of trees."""
    engine = connect(database_url)
    async with engine.begin() as connection:
        await connection.execute(text("TRUNCATE tree_nodes, trees, projection_checkpoints"))
    yield engine
    await engine.dispose()
