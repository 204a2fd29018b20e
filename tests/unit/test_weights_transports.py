"""Weights between cells: what is pulled is what is exposed, or an error that has a name.

One suite for every transport; what a network does to them is done at the place where each can be
reached: on the connection, in what the reading engine finds, or in what the source sends.
"""

from __future__ import annotations

import ctypes
import hashlib
import socket
import threading
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs

from gyre.cell_agent.weights import mooncake, nccl
from gyre.cell_agent.weights.base import Pulled, Transport, WeightSink, WeightSource
from gyre.cell_agent.weights.errors import (
    CutOff,
    Damaged,
    NobodyServes,
    NotTheJob,
    TransportMissing,
    WrongVersion,
)
from gyre.cell_agent.weights.manifest import CHUNK_BYTES
from gyre.cell_agent.weights.memory import own_memory
from gyre.cell_agent.weights.opening import Opening
from gyre.cell_agent.weights.pair import Pair
from gyre.cell_agent.weights.tcp import TcpWeightSink, TcpWeightSource
from gyre.cell_agent.weights.transports import ATTEMPTS, open_sink, open_source, pull
from gyre.testkit.weight_relay import Relay, relaying

KEY = "of the job"
HOST = "127.0.0.1"
# Three chunks, the last one shorter.
SIZE = 2 * CHUNK_BYTES + 12_345

Fault = Callable[[], None]


@cache
def content(version: int, size: int = SIZE) -> bytes:
    block = hashlib.sha256(str(version).encode()).digest() * 1024
    return (block * (size // len(block) + 1))[:size]


def expose(source: WeightSource, version: int, lineage: int = 2, size: int = SIZE) -> None:
    buffer = source.buffer(size)
    buffer.view[:] = content(version, size)
    source.expose(buffer, version=version, lineage=lineage)


def is_version(pulled: Pulled, version: int, lineage: int = 2, size: int = SIZE) -> bool:
    named = (pulled.manifest.version, pulled.manifest.lineage) == (version, lineage)
    return named and bytes(pulled.payload) == content(version, size)


@pytest.fixture(params=["tcp", "mooncake", "nccl"])
def transport(request: pytest.FixtureRequest) -> Transport:
    """On a CPU `nccl` is by gloo."""
    chosen: Transport = request.param
    if chosen == "mooncake":
        try:
            mooncake.MooncakeEngine(HOST, allow_public=True)
        except TransportMissing as missing:
            pytest.skip(str(missing))
    return chosen


@pytest.fixture
def source(transport: Transport) -> Iterator[WeightSource]:
    opened = open_source(transport, HOST, key=KEY, allow_public=transport != "tcp")
    yield opened
    opened.close()


@pytest.fixture
def sink(transport: Transport) -> WeightSink:
    return open_sink(transport, HOST, key=KEY, allow_public=transport != "tcp")


def test_a_pull_returns_what_is_exposed(source: WeightSource, sink: WeightSink) -> None:
    expose(source, 5)
    pulled = sink.pull(*source.address, version=5, lineage=2)
    assert is_version(pulled, 5)
    assert pulled.manifest == source.manifest()


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES, 2 * CHUNK_BYTES])
def test_a_payload_of_any_size_comes_whole(transport: Transport, size: int) -> None:
    if transport == "mooncake" and size == 0:
        pytest.skip("there is no memory to register, and no model without weights")
    opened = open_source(transport, HOST, key=KEY, allow_public=True)
    expose(opened, 1, size=size)
    reader = open_sink(transport, HOST, key=KEY, allow_public=True)
    assert is_version(reader.pull(*opened.address, version=1, lineage=2), 1, size=size)
    opened.close()


def test_after_an_update_the_new_version_alone_is_had(
    source: WeightSource, sink: WeightSink
) -> None:
    expose(source, 5)
    expose(source, 6)
    assert is_version(sink.pull(*source.address, version=6, lineage=2), 6)
    with pytest.raises(WrongVersion, match=r"\(5, 2\).*\(6, 2\)"):
        pull(sink, *source.address, version=5, lineage=2)
    with pytest.raises(WrongVersion):
        pull(sink, *source.address, version=6, lineage=1)


def test_kept_weights_stay_until_others_are_kept(source: WeightSource, sink: WeightSink) -> None:
    expose(source, 1)
    source.keep()
    for version in (2, 3, 4):
        expose(source, version)
    assert is_version(sink.pull(*source.address, version=1, lineage=2), 1)
    source.keep()
    expose(source, 5)
    assert is_version(sink.pull(*source.address, version=4, lineage=2), 4)
    with pytest.raises(WrongVersion):
        sink.pull(*source.address, version=1, lineage=2)


def test_what_is_forgotten_is_not_served_and_what_is_kept_is(
    source: WeightSource, sink: WeightSink
) -> None:
    expose(source, 1)
    source.keep()
    expose(source, 2)
    source.forget()
    with pytest.raises(WrongVersion):
        sink.pull(*source.address, version=2, lineage=2)
    assert is_version(sink.pull(*source.address, version=1, lineage=2), 1)
    expose(source, 3)
    assert is_version(sink.pull(*source.address, version=3, lineage=2), 3)


def test_nothing_exposed_is_said(source: WeightSource, sink: WeightSink) -> None:
    with pytest.raises(WrongVersion, match="no weights are exposed"):
        sink.pull(*source.address, version=0, lineage=0)


def test_nobody_there_is_an_error(sink: WeightSink) -> None:
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    with pytest.raises(NobodyServes, match=str(port)):
        sink.pull(HOST, port, version=0, lineage=0)


def test_another_jobs_key_is_refused_and_said_once(
    source: WeightSource, transport: Transport
) -> None:
    expose(source, 1)
    stranger = open_sink(transport, HOST, key="of another job", allow_public=True)
    with capture_logs() as logs:
        for _ in range(3):
            with pytest.raises(NotTheJob):
                pull(stranger, *source.address, version=1, lineage=2)
    assert [log["event"] for log in logs] == ["weights_refused"]
    assert KEY not in str(logs)


def test_a_source_without_the_jobs_key_is_not_believed(
    transport: Transport, sink: WeightSink
) -> None:
    impostor = open_source(transport, HOST, key="of another job", allow_public=True)
    expose(impostor, 1)
    with pytest.raises(NotTheJob):
        pull(sink, *impostor.address, version=1, lineage=2)
    impostor.close()


def test_what_a_puller_said_opens_nothing_again(source: WeightSource, sink: WeightSink) -> None:
    expose(source, 1)
    with relaying(source.address) as relay:
        assert is_version(sink.pull(*relay.address, version=1, lineage=2), 1)
    with socket.create_connection(source.address) as thief:
        thief.sendall(relay.said[0])
        thief.settimeout(10.0)
        answer = b""
        while data := thief.recv(65536):
            answer += data
    assert b"does not hold this job's key" in answer
    assert b"manifest" not in answer


def test_what_a_stranger_sends_does_not_disturb_the_next_pull(
    source: WeightSource, sink: WeightSink
) -> None:
    expose(source, 1)
    for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x02{}", b"\x00\x00\x00\x02[]", b""):
        with socket.create_connection(source.address) as stranger:
            stranger.sendall(noise)
    assert is_version(sink.pull(*source.address, version=1, lineage=2), 1)


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [("flip", Damaged, "bytes 4194304 to 8388608"), ("cut", CutOff, None)],
)
def test_what_a_network_damages_or_cuts_is_said_by_name_and_pulled_again(
    source: WeightSource,
    transport: Transport,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    error: type[Exception],
    words: str | None,
) -> None:
    expose(source, 1)
    with faulty(source, transport, monkeypatch, times=1, fault=fault) as (address, sink):
        with capture_logs() as logs:
            assert is_version(pull(sink, *address, version=1, lineage=2), 1)
        assert error.__name__ in logs[0]["reason"]
    with (
        faulty(source, transport, monkeypatch, times=ATTEMPTS, fault=fault) as (address, sink),
        pytest.raises(error, match=words),
    ):
        pull(sink, *address, version=1, lineage=2)


def test_weights_swapped_under_a_pull_do_not_show_in_it(
    source: WeightSource, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    expose(source, 1)

    def swap() -> None:
        for version in (2, 3, 4):
            expose(source, version)

    with faulty(source, transport, monkeypatch, times=1, fault=swap) as (address, sink):
        assert is_version(sink.pull(*address, version=1, lineage=2), 1)
    assert is_version(sink.pull(*source.address, version=4, lineage=2), 4)


@pytest.mark.parametrize(
    "answer",
    [b"", b"\x00\x00\x00\x02{}", b"\x00\x00\x00\x08not json", b"\xff\xff\xff\xff", b"\x00\x00"],
)
def test_a_broken_answer_is_an_error(answer: bytes) -> None:
    with socket.create_server((HOST, 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises((CutOff, Damaged)):
            TcpWeightSink(key=KEY).pull(*server.getsockname(), version=0, lineage=0)
        thread.join(timeout=10)


def test_a_silent_source_is_given_up() -> None:
    sink = TcpWeightSink(key=KEY, stall_timeout_s=0.2)
    with socket.create_server((HOST, 0)) as server, pytest.raises(CutOff, match="timed out"):
        sink.pull(*server.getsockname(), version=0, lineage=0)


def test_a_tcp_source_is_not_read_from_outside() -> None:
    plain = TcpWeightSource(HOST, key=KEY)
    expose(plain, 1)
    opening = Opening(transport="mooncake", key=KEY)
    with (
        pytest.raises(WrongVersion, match="served by tcp alone"),
        opening.of(*plain.address, version=1, lineage=2, memory=own_memory),
    ):
        pass
    plain.close()


class faulty:  # noqa: N801 - reads as what it is
    """The source's address and a sink, with a fault in the second chunk of the first `times` pulls:
    a flipped bit, a cut, or something that happens meanwhile."""

    def __init__(
        self,
        source: WeightSource,
        transport: Transport,
        monkeypatch: pytest.MonkeyPatch,
        *,
        times: int,
        fault: str | Fault,
    ) -> None:
        self._source, self._transport, self._patch = source, transport, monkeypatch
        self._left, self._fault = times, fault
        self._relay: Any = None

    def __enter__(self) -> tuple[tuple[str, int], WeightSink]:
        sink = open_sink(self._transport, HOST, key=KEY, allow_public=True)
        if self._transport == "mooncake":
            self._patch.setattr(mooncake, "READ_BYTES", CHUNK_BYTES)
            self._patch.setattr(sink._engine, "read", self._reading(sink._engine))  # type: ignore[attr-defined]
            return self._source.address, sink
        if self._transport == "nccl":
            self._patch.setattr(nccl, "PIECE_BYTES", CHUNK_BYTES)
            self._patch.setattr(Pair, "load", self._loading())
            return self._source.address, sink
        self._relay = relaying(self._source.address, self._alter)
        relay: Relay = self._relay.__enter__()
        return relay.address, sink

    def __exit__(self, *error: Any) -> None:
        if self._relay is not None:
            self._relay.__exit__(*error)

    def _due(self, offset: int, size: int) -> bool:
        if self._left == 0 or not offset <= CHUNK_BYTES < offset + size:
            return False
        self._left -= 1
        if callable(self._fault):
            self._fault()
            return False
        return True

    def _alter(self, offset: int, data: bytes) -> bytes | None:
        if not self._due(offset, len(data)):
            return data
        if self._fault == "cut":
            return None
        place = CHUNK_BYTES - offset
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]

    def _reading(self, engine: mooncake.MooncakeEngine) -> Callable[[str, int, int, int], None]:
        read = engine.read
        first: list[int] = []

        def faulty_read(session: str, into: int, source: int, size: int) -> None:
            # Each pull reads in order, from its source's first byte on.
            if not first or source <= first[0]:
                first[:] = [source]
            due = self._due(source - first[0], size)
            if due and self._fault == "cut":
                raise CutOff("mooncake: the peer is gone")
            read(session, into, source, size)
            if due:
                ctypes.c_ubyte.from_address(into).value ^= 1

        return faulty_read

    def _loading(self) -> Callable[[Pair, torch.Tensor, memoryview, int], None]:
        load = Pair.load

        def faulty_load(pair: Pair, stage: torch.Tensor, piece: memoryview, start: int) -> None:
            due = self._due(start, len(piece))
            if due and self._fault == "cut":
                raise CutOff("the source dies")
            load(pair, stage, piece, start)
            if due:
                stage[0] ^= 1

        return faulty_load
