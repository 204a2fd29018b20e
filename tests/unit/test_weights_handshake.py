"""What a stranger says before it has proved anything ends its own connection, and nothing else."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from gyre.cell_agent.weights.errors import Damaged, NotTheJob
from gyre.cell_agent.weights.handshake import Asked
from gyre.cell_agent.weights.tcp import TcpWeightSink, TcpWeightSource

KEY, HOST = "of the job", "127.0.0.1"
NONCE = json.dumps({"nonce": "00" * 16}).encode()
STRANGE = {
    "half a character in the body": json.dumps({"body": "\ud800", "proof": ""}).encode(),
    "half a character in the proof": json.dumps({"body": "{}", "proof": "\ud800"}).encode(),
    "lists in lists": b"[" * 4000,
}
strange = pytest.mark.parametrize("said", STRANGE.values(), ids=STRANGE)


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(4, "big") + message


@strange
def test_a_source_that_cannot_read_a_puller_raises_what_it_says(said: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(framed(NONCE) + framed(said))
        with pytest.raises(Damaged):
            Asked(ours, KEY).body(within_s=10.0)


@strange
def test_a_stranger_leaves_no_traceback_in_a_sources_log(
    said: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    source = TcpWeightSource(HOST, key=KEY)
    with socket.create_connection(source.address, timeout=10.0) as stranger:
        stranger.sendall(framed(NONCE) + framed(said))
        while stranger.recv(4096):
            pass
    source.close()
    assert capfd.readouterr().err == ""


@strange
def test_a_puller_that_cannot_read_a_source_raises_what_it_says(said: bytes) -> None:
    with pytest.raises(Damaged):
        pulled_from(said)


def test_a_refusal_is_told_in_the_pullers_own_words() -> None:
    with pytest.raises(NotTheJob, match=r"^the puller does not hold this job's key$"):
        pulled_from(json.dumps({"refused": "\ud800 says who proved nothing"}).encode())


def pulled_from(said: bytes) -> None:
    """By a sink, from a source that says this to whoever asks."""
    with socket.create_server((HOST, 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(framed(NONCE))
                connection.recv(4096)
                connection.sendall(framed(said))
                connection.recv(4096)  # until it has hung up

        source = threading.Thread(target=answer)
        source.start()
        try:
            TcpWeightSink(key=KEY).pull(*listening.getsockname()[:2], version=1, lineage=0)
        finally:
            source.join(10.0)
