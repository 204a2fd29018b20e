"""Weights over TCP: what is pulled is what is exposed, or an error."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from gyre.cell_agent.weights.base import WeightSnapshot, WeightTransportError
from gyre.cell_agent.weights.tcp import TcpWeightSink, TcpWeightSource


@pytest.fixture
def source() -> Iterator[TcpWeightSource]:
    opened = TcpWeightSource("127.0.0.1")
    yield opened
    opened.close()


def snapshot(version: int, size: int = 100_000) -> WeightSnapshot:
    payload = bytes([version]) * size
    return WeightSnapshot.of(payload, version=version, lineage=2, checksum=f"c{version}")


def test_a_pull_returns_the_exposed_snapshot(source: TcpWeightSource) -> None:
    source.expose(snapshot(5, size=3_000_000))
    pulled = TcpWeightSink().pull(*source.address, version=5, lineage=2)
    assert pulled == snapshot(5, size=3_000_000)


def test_a_pull_after_an_update_gets_the_new_version_only(source: TcpWeightSource) -> None:
    source.expose(snapshot(5))
    source.expose(snapshot(6))
    assert TcpWeightSink().pull(*source.address, version=6, lineage=2) == snapshot(6)
    with pytest.raises(WeightTransportError, match=r"\(5, 2\).*\(6, 2\)"):
        TcpWeightSink().pull(*source.address, version=5, lineage=2)
    with pytest.raises(WeightTransportError):
        TcpWeightSink().pull(*source.address, version=6, lineage=1)


def test_nothing_exposed_is_said(source: TcpWeightSource) -> None:
    with pytest.raises(WeightTransportError, match="no weights are exposed"):
        TcpWeightSink().pull(*source.address, version=0, lineage=0)


def test_nobody_there_is_an_error() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(WeightTransportError, match=str(port)):
        TcpWeightSink().pull("127.0.0.1", port, version=0, lineage=0)


def test_a_stranger_on_the_port_does_not_disturb_the_next_pull(source: TcpWeightSource) -> None:
    source.expose(snapshot(1))
    with socket.create_connection(source.address) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert TcpWeightSink().pull(*source.address, version=1, lineage=2) == snapshot(1)


@pytest.mark.parametrize(
    "answer",
    [b"", b"{}\n", b'{"num_bytes": 4, "digest": "x", "checksum": "y"}\nab', b"not json\n"],
)
def test_a_broken_answer_is_an_error(answer: bytes) -> None:
    import threading

    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(WeightTransportError):
            TcpWeightSink().pull(*server.getsockname(), version=0, lineage=0)
        thread.join(timeout=10)
