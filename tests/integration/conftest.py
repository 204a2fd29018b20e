"""What the tests of services and processes share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from gyre.adapters.eventlog.streams import ensure_streams
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
