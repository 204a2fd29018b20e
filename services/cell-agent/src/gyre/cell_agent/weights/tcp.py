"""Weights over plain TCP: both sides prove the job's key, then the payload's bytes.

Asked: {"version", "lineage", "transport"}; answered: {"manifest": ...}, followed by the payload for
"tcp" and, for a transport that reads the memory itself, by nothing, with "place" beside the
manifest; or {"error"}. The server's threads touch no tensor: they send memory that the trainer's
thread wrote between two commands.
"""

from __future__ import annotations

import mmap
import socket
import socketserver
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, ClassVar

from gyre.adapters.logging import get_logger
from gyre.cell_agent.weights.base import Pulled, Transport
from gyre.cell_agent.weights.errors import (
    CutOff,
    NobodyServes,
    NotTheJob,
    WeightTransportError,
    WrongVersion,
)
from gyre.cell_agent.weights.handshake import Asked, ask
from gyre.cell_agent.weights.manifest import CHUNK_BYTES, Manifest, Verifier
from gyre.cell_agent.weights.shelf import Buffer, Exposed, Shelf

# Between two sends or receives, not for the whole transfer, so it does not grow with the model.
STALL_TIMEOUT_S = 20.0
# A puller may come before the digests of what it asks for are made: at 1 GB/s, 200 GB. With the
# time-out of a silent source it stays below the deadline of the trainer's command that pulls.
DIGESTS_TIMEOUT_S = 200.0
# A puller says two short messages until it is believed; whoever takes longer is a stranger.
HANDSHAKE_S = 10.0
# A host that is gone says nothing: it is asked after so many seconds of silence, and so often.
_KEEPALIVE_S, _KEEPALIVES = 5, 4
# A job has a few hundred cells; beyond that somebody holds connections that pull nothing.
MAX_PULLS = 1024
# How long a puller that reads by itself keeps a buffer from being written again; its digests find
# out one that reads for longer.
LEASE_S = 300.0
# How often the listening thread looks whether it shall stop.
_POLL_S = 0.05
_RECEIVE_BYTES = 1024 * 1024

Place = Callable[[Buffer], dict[str, Any]]
"""Where a transport that reads memory by itself finds a buffer."""


class TcpWeightSource:
    """Listens from construction on; port 0 lets the system choose one. key: the job's. shelf,
    place: of a transport built on this one. stall_timeout_s, handshake_s: as STALL_TIMEOUT_S,
    HANDSHAKE_S."""

    transport: ClassVar[Transport] = "tcp"

    def __init__(
        self,
        host: str,
        port: int = 0,
        *,
        key: str,
        shelf: Shelf | None = None,
        place: Place | None = None,
        stall_timeout_s: float = STALL_TIMEOUT_S,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        self._shelf = shelf or Shelf()
        self._server = _Server((host, port), _Handler)
        self._server.shelf, self._server.key, self._server.place = self._shelf, key, place
        self._server.stall_timeout_s, self._server.handshake_s = stall_timeout_s, handshake_s
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="weights-tcp", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    @property
    def session(self) -> str:
        return ""

    def buffer(self, num_bytes: int) -> Buffer:
        return self._shelf.buffer(num_bytes)

    def expose(self, buffer: Buffer, *, version: int, lineage: int) -> None:
        self._shelf.expose(buffer, version=version, lineage=lineage)

    def keep(self) -> None:
        self._shelf.keep()

    def is_newest(self, version: int, lineage: int) -> bool:
        newest = self._shelf.newest()
        return newest is not None and (newest.version, newest.lineage) == (version, lineage)

    def manifest(self) -> Manifest:
        newest = self._shelf.newest()
        if newest is None:
            raise WrongVersion("no weights are exposed")
        return newest.manifest.result(DIGESTS_TIMEOUT_S)

    def forget(self) -> None:
        self._shelf.forget()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._shelf.close()


class TcpWeightSink:
    """key: the job's. stall_timeout_s: as STALL_TIMEOUT_S."""

    transport: ClassVar[Transport] = "tcp"

    def __init__(self, *, key: str, stall_timeout_s: float = STALL_TIMEOUT_S) -> None:
        self._key = key
        self._stall_timeout_s = stall_timeout_s

    def pull(self, host: str, port: int, *, version: int, lineage: int) -> Pulled:
        """Into memory of its own. Raises WeightTransportError."""
        try:
            with connected(host, port, self._stall_timeout_s) as connection:
                answer = request(connection, self._key, version, lineage, self.transport)
                manifest = Manifest.from_json(answer["manifest"])
                payload = memoryview(mmap.mmap(-1, max(1, manifest.num_bytes)))
                payload = payload[: manifest.num_bytes]
                _receive(connection, manifest, payload)
                return Pulled(manifest=manifest, payload=payload)
        except OSError as error:
            raise CutOff(f"weights from {host}:{port}: {error or type(error).__name__}") from error


def connected(host: str, port: int, timeout_s: float) -> socket.socket:
    """Raises NobodyServes. timeout_s: to connect, and then of each send and receive."""
    try:
        connection = socket.create_connection((host, port), timeout=timeout_s)
    except OSError as error:
        raise NobodyServes(f"weights from {host}:{port}: {error}") from error
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, _KEEPALIVE_S),
        (socket.TCP_KEEPINTVL, _KEEPALIVE_S),
        (socket.TCP_KEEPCNT, _KEEPALIVES),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    return connection


def request(
    connection: socket.socket, key: str, version: int, lineage: int, transport: Transport
) -> dict[str, Any]:
    """The source's answer: it has a manifest of these very weights, and comes once that is made.
    Raises WeightTransportError, OSError."""
    asked = {"version": version, "lineage": lineage, "transport": transport}
    answer_s = DIGESTS_TIMEOUT_S + STALL_TIMEOUT_S
    answer = ask(connection, key, asked, answer_s=answer_s)
    if "error" in answer:
        raise WrongVersion(str(answer["error"]))
    return answer


def _receive(connection: socket.socket, manifest: Manifest, payload: memoryview) -> None:
    with Verifier(manifest, payload) as verifier:
        filled = 0
        while filled < manifest.num_bytes:
            count = connection.recv_into(payload[filled : filled + _RECEIVE_BYTES])
            if count == 0:
                raise CutOff(f"cut off after {filled} of {manifest.num_bytes} bytes")
            filled += count
            verifier.arrived(filled)
        verifier.finish()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    shelf: Shelf
    key: str
    place: Place | None = None
    stall_timeout_s: float = STALL_TIMEOUT_S
    handshake_s: float = HANDSHAKE_S

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.pulls = threading.Semaphore(MAX_PULLS)
        self._strangers: set[str] = set()

    def say_stranger(self, host: str) -> None:
        """Once for each host: an attacker shall not fill the log."""
        if host not in self._strangers and len(self._strangers) < MAX_PULLS:
            self._strangers.add(host)
            get_logger().warning("weights_refused", host=host, reason="not the job's key")


class _Handler(socketserver.BaseRequestHandler):
    server: _Server

    def handle(self) -> None:
        try:
            self.request.settimeout(self.server.stall_timeout_s)
            asked = Asked(self.request, self.server.key)
            body = asked.body(self.server.handshake_s)
            self.request.settimeout(self.server.stall_timeout_s)
            # Only of those that are believed: strangers shall not take what pullers need.
            if not self.server.pulls.acquire(blocking=False):
                return
            try:
                self._serve(asked, body)
            finally:
                self.server.pulls.release()
        except NotTheJob:
            self.server.say_stranger(str(self.client_address[0]))
        except (WeightTransportError, OSError, CancelledError):
            return  # no request of a puller's, or it died; whether it joins is its agent's business

    def _serve(self, asked: Asked, body: dict[str, Any]) -> None:
        try:
            version, lineage = int(body["version"]), int(body["lineage"])
            with self.server.shelf.reading(version, lineage) as exposed:
                self._send(asked, exposed, str(body["transport"]))
        except (KeyError, TypeError, ValueError, WrongVersion) as error:
            asked.answer({"error": str(error)})

    def _send(self, asked: Asked, exposed: Exposed, transport: str) -> None:
        is_sent, place = transport == TcpWeightSource.transport, self.server.place
        if not is_sent and place is None:
            raise WrongVersion(f"asked for by {transport}, served by tcp alone")
        try:
            manifest = exposed.manifest.result(DIGESTS_TIMEOUT_S)
        except TimeoutError:
            raise WrongVersion("the digests of these weights are not made yet") from None
        answer: dict[str, Any] = {"manifest": manifest.as_json()}
        if is_sent or place is None:
            asked.answer(answer)
            payload = exposed.buffer.view
            # A time-out is of all that one call sends.
            for start in range(0, len(payload), CHUNK_BYTES):
                self.request.sendall(payload[start : start + CHUNK_BYTES])
            return
        asked.answer(answer | {"place": place(exposed.buffer)})
        # The puller reads the memory as long as it holds the connection.
        self.request.settimeout(LEASE_S)
        self.request.recv(1)
