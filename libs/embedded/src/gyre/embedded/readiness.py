"""Ready checks: each returns at once, or within `CONNECT_TIMEOUT_S`, on the loopback interface."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Mapping
from pathlib import Path

from gyre.embedded.process import ReadyCheck

CONNECT_TIMEOUT_S = 0.5
LOOPBACK = "127.0.0.1"


def file_ready(path: Path) -> ReadyCheck:
    """Ready when the process has written `path`. The supervisor removes it before each start."""
    return path.exists


def tcp_ready(port: int, host: str = LOOPBACK) -> ReadyCheck:
    """Ready when something accepts connections on `port`."""

    def check() -> bool:
        try:
            with socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S):
                return True
        except OSError:
            return False

    return check


def nats_ready(port: int, host: str = LOOPBACK) -> ReadyCheck:
    """Ready when the server's greeting says that JetStream is on."""

    def check() -> bool:
        try:
            with socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S) as connection:
                connection.settimeout(CONNECT_TIMEOUT_S)
                greeting = connection.makefile("rb").readline()
        except OSError:
            return False
        return greeting.startswith(b"INFO ") and json.loads(greeting[5:]).get("jetstream") is True

    return check


def postgres_ready(socket_dir: Path) -> ReadyCheck:
    """Ready when the server on the socket in `socket_dir` takes a connection."""

    def check() -> bool:
        import psycopg

        try:
            psycopg.connect(
                host=str(socket_dir),
                user="postgres",
                dbname="postgres",
                connect_timeout=2,
            ).close()
        except psycopg.OperationalError:
            return False
        return True

    return check


def free_ports(preferred: Mapping[str, int | None]) -> dict[str, int]:
    """A loopback port for each name that nobody listens on now: the preferred one where it is free.

    All are held until the last is chosen, so that no two are the same.
    """
    ports = {}
    with contextlib.ExitStack() as held:
        for name, port in preferred.items():
            probe = held.enter_context(_bound(port))
            ports[name] = probe.getsockname()[1]
    return ports


def listen(preferred: int | None = None, backlog: int = 1024) -> socket.socket:
    """A listening loopback socket on `preferred` if that port is free, else on any.

    Its owner passes it to the process that serves it. As long as the owner holds it, the kernel
    keeps connections waiting in the backlog while that process is away.
    """
    listener = _bound(preferred)
    listener.listen(backlog)
    return listener


def _bound(preferred: int | None) -> socket.socket:
    """A loopback socket bound to `preferred` if that port is free, else to any."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((LOOPBACK, preferred or 0))
    except OSError:
        bound.bind((LOOPBACK, 0))
    return bound
