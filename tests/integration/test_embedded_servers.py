"""The real nats-server and Postgres, alone and under the supervisor."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import nats as nats_client
import psycopg
import pytest
from nats.js.api import StreamConfig
from sqlalchemy import create_engine, text

from gyre import embedded
from gyre.embedded import nats, postgres
from gyre.embedded.errors import PostgresUnusable

SUPPORT = Path(__file__).parent / "embedded_support"


@pytest.fixture
def home() -> Iterator[Path]:
    base = Path(tempfile.mkdtemp(prefix="gyre test "))
    yield base / ".gyre"
    embedded.down(base / ".gyre", purge=True)
    shutil.rmtree(base)


def start(home: Path, **more: str) -> embedded.StackInfo:
    environ = {**os.environ, "PYTHONPATH": str(SUPPORT), **more}
    stack = "dummy_stack:servers"
    return embedded.up(home, cells=1, environ=environ, owner=os.getpid(), stack=stack, timeout_s=60)


async def publish(url: str) -> int:
    """Append one message to a stream and return the stream's last sequence."""
    connection = await nats_client.connect(url, connect_timeout=5, max_reconnect_attempts=5)
    stream = connection.jetstream(timeout=5)
    await stream.add_stream(StreamConfig(name="S", subjects=["s.>"]))
    ack = await stream.publish("s.x", b"fact")
    await connection.close()
    return ack.seq


def count_rows(url: str) -> int:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("create table if not exists t (n int)"))
        connection.execute(text("insert into t values (1)"))
        rows: int = connection.execute(text("select count(*) from t")).scalar_one()
    engine.dispose()
    return rows


def test_nats_keeps_its_stream_and_asks_for_its_password(tmp_path: Path) -> None:
    directory = tmp_path / 'quo"te and space'
    for expected in (1, 2):
        with nats.running(directory, password="hidden") as server:
            assert asyncio.run(publish(server.url)) == expected
            assert "Authorization Violation" in greet_without_password(server.port)
    assert server.config_path.stat().st_mode & 0o077 == 0


def greet_without_password(port: int) -> str:
    """What the server says to a client that names no user."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(b"CONNECT {}\r\nPING\r\n")
        with connection.makefile() as answer:
            return answer.read()


def test_the_stack_of_real_servers_keeps_its_data_and_its_ports(home: Path) -> None:
    first = start(home)
    assert asyncio.run(publish(first.urls["nats"])) == 1
    assert count_rows(first.urls["database"]) == 1
    embedded.down(home)
    second = start(home)
    assert second.urls == first.urls
    assert asyncio.run(publish(second.urls["nats"])) == 2
    assert count_rows(second.urls["database"]) == 2


def test_servers_that_are_killed_come_back_with_their_data(home: Path) -> None:
    info = start(home)
    assert count_rows(info.urls["database"]) == 1
    assert asyncio.run(publish(info.urls["nats"])) == 1
    before = {s.name: s.pid for s in embedded.status(home)}
    for name in ("postgres", "nats"):
        os.kill(before[name] or 0, signal.SIGKILL)
    # `up` on a running stack returns at once; the clients below retry as services do.
    _await_restart(home, before)
    assert count_rows(info.urls["database"]) == 2
    assert asyncio.run(publish(info.urls["nats"])) == 2


def _await_restart(home: Path, before: dict[str, int | None]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        rows = [s for s in embedded.status(home) if s.name != "supervisor"]
        if all(s.state == "ready" and s.pid != before[s.name] for s in rows):
            return
        time.sleep(0.05)
    pytest.fail("the servers did not come back in 30 s")


def test_servers_named_by_the_environment_are_not_started(home: Path) -> None:
    info = start(home, GYRE_NATS_URL="nats://elsewhere:4222", GYRE_DATABASE_URL="postgresql://db/x")
    assert info.urls == {"nats": "nats://elsewhere:4222", "database": "postgresql://db/x"}
    assert [s.name for s in embedded.status(home)] == ["supervisor"]


def test_postgres_listens_on_its_private_socket_alone() -> None:
    with postgres.running() as server:
        with psycopg.connect(host=str(server.socket), user="postgres", dbname="postgres") as conn:
            row = conn.execute("show listen_addresses").fetchone()
        assert row == ("",)
        assert server.directory.stat().st_mode & 0o077 == 0
        assert " " not in str(server.socket)
    assert not server.directory.exists()


def test_a_socket_path_that_is_too_long_is_named_with_the_mend(tmp_path: Path) -> None:
    base = tmp_path / ("x" * 100)
    server = postgres.locate(tmp_path, {"GYRE_POSTGRES_DIR": str(base)})
    with pytest.raises(PostgresUnusable, match="set GYRE_POSTGRES_DIR to a short path"):
        postgres.prepare(server)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives Postgres a user of its own")
def test_a_place_that_the_server_user_cannot_enter_is_named_with_the_mend() -> None:
    closed = Path(tempfile.mkdtemp(prefix="gyre-closed-", dir="/tmp"))
    try:
        server = postgres.locate(closed, {"GYRE_POSTGRES_DIR": str(closed / "in")})
        with pytest.raises(PostgresUnusable, match=r"cannot reach .*GYRE_POSTGRES_DIR"):
            postgres.prepare(server)
    finally:
        shutil.rmtree(closed)
