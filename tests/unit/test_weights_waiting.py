"""Who waits for whom when weights are pulled: pullers for digests, and nobody for strangers."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import Future
from contextlib import ExitStack

import pytest

from gyre.cell_agent.weights import tcp
from gyre.cell_agent.weights.door import MAX_UNPROVEN, Door
from gyre.cell_agent.weights.errors import WrongVersion
from gyre.cell_agent.weights.manifest import Manifest
from gyre.cell_agent.weights.shelf import Shelf
from gyre.cell_agent.weights.tcp import TcpWeightSink, TcpWeightSource

KEY, HOST, CONTENT = "of the job", "127.0.0.1", b"weights" * 1000


def exposed(shelf: Shelf | None = None, *, handshake_s: float = 0.5) -> TcpWeightSource:
    source = TcpWeightSource(HOST, key=KEY, shelf=shelf, handshake_s=handshake_s)
    buffer = source.buffer(len(CONTENT))
    buffer.view[:] = CONTENT
    source.expose(buffer, version=1, lineage=0)
    return source


def without_digests(shelf: Shelf) -> tuple[Future[Manifest], Manifest]:
    """Of the newest weights, as if they took long to make: the future that is waited for, and what
    it is to become."""
    newest = shelf.newest()
    assert newest is not None
    made = newest.manifest.result(10.0)
    newest.manifest = Future()
    return newest.manifest, made


def test_a_puller_waits_for_digests_longer_than_for_bytes() -> None:
    shelf = Shelf()
    source = exposed(shelf)
    future, made = without_digests(shelf)
    later = threading.Timer(0.6, future.set_result, (made,))
    later.start()
    pulled = TcpWeightSink(key=KEY, stall_timeout_s=0.2).pull(*source.address, version=1, lineage=0)
    assert bytes(pulled.payload) == CONTENT
    later.join()
    source.close()


def test_digests_that_are_never_made_are_said_and_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tcp, "DIGESTS_TIMEOUT_S", 0.1)
    shelf = Shelf()
    source = exposed(shelf)
    without_digests(shelf)
    with pytest.raises(WrongVersion, match="not made yet") as told:
        TcpWeightSink(key=KEY).pull(*source.address, version=1, lineage=0)
    assert not told.value.again
    source.close()


def test_a_stranger_that_sends_a_byte_now_and_then_is_hung_up_on() -> None:
    source = exposed()
    started = time.monotonic()
    with socket.create_connection(source.address) as stranger:
        stranger.settimeout(0.05)
        stranger.sendall((1000).to_bytes(4, "big"))
        while time.monotonic() - started < 5.0:
            try:
                stranger.sendall(b"\0")
                if stranger.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            raise AssertionError("it was listened to for ten times the handshake's time")
    source.close()


def test_strangers_take_no_pullers_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "MAX_PULLS", 1)
    source = exposed()
    with socket.create_connection(source.address), socket.create_connection(source.address):
        pulled = TcpWeightSink(key=KEY).pull(*source.address, version=1, lineage=0)
    assert bytes(pulled.payload) == CONTENT
    source.close()


def is_open(connection: socket.socket) -> bool:
    connection.settimeout(0.05)
    try:
        return connection.recv(1) != b""
    except TimeoutError:
        return True


def test_two_hundred_silent_strangers_starve_no_puller_and_do_not_all_stay() -> None:
    num_strangers, num_sent_away = 200, 200 - MAX_UNPROVEN
    assert num_sent_away > 0
    source = exposed(handshake_s=60.0)
    with ExitStack() as stack:
        strangers = [
            stack.enter_context(socket.create_connection(source.address))
            for _ in range(num_strangers)
        ]
        pulled = TcpWeightSink(key=KEY).pull(*source.address, version=1, lineage=0)
        assert bytes(pulled.payload) == CONTENT
        # The puller too stood at the door for a moment.
        assert not any(is_open(stranger) for stranger in strangers[: num_sent_away + 1])
        assert is_open(strangers[num_sent_away + 1])
        assert is_open(strangers[-1])
        source.close()


def test_whoever_crowds_the_door_loses_its_own_connections() -> None:
    door = Door(3)
    with ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(5)]
        for ours, theirs in pairs:
            stack.enter_context(ours)
            stack.enter_context(theirs)
        hosts = ("puller", "crowd", "crowd", "crowd", "crowd")
        for (ours, _), host in zip(pairs, hosts, strict=True):
            door.come(ours, host)
        assert [is_open(theirs) for _, theirs in pairs] == [True, False, False, True, True]
        door.go(pairs[0][0])
