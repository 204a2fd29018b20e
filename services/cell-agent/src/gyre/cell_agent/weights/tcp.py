"""Weights over plain TCP: both sides prove the job's key, then the payload's bytes.

Asked: {"version", "lineage", "transport"}; answered: {"manifest": ...}, followed by the payload for
"tcp" and, for a transport that moves the bytes by itself, by nothing, with "place" beside the
manifest; or {"error"}. The server's threads touch no tensor of the trainer's: they send memory that
its thread wrote between two commands.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, ClassVar

from gyre.adapters.logging import get_logger
from gyre.cell_agent.weights.base import Pulled, Transport
from gyre.cell_agent.weights.door import MAX_UNPROVEN, Door
from gyre.cell_agent.weights.errors import (
    CutOff,
    NotTheJob,
    WeightTransportError,
    WrongVersion,
)
from gyre.cell_agent.weights.handshake import Asked
from gyre.cell_agent.weights.manifest import CHUNK_BYTES, Manifest, Verifier
from gyre.cell_agent.weights.memory import Memory, own_memory
from gyre.cell_agent.weights.opening import DIGESTS_TIMEOUT_S, STALL_TIMEOUT_S, Opening
from gyre.cell_agent.weights.shelf import Buffer, Exposed, Shelf

# A puller says two short messages until it is believed; whoever takes longer is a stranger.
HANDSHAKE_S = 10.0
# A job has a few hundred cells; beyond that somebody holds connections that pull nothing.
MAX_PULLS = 1024
# How long a puller that reads by itself keeps a buffer from being written again; its digests find
# out one that reads for longer.
LEASE_S = 300.0
# How often the listening thread looks whether it shall stop.
_POLL_S = 0.05
_RECEIVE_BYTES = 1024 * 1024

Answer = Callable[[dict[str, Any]], None]
"""Tells the puller, once, the place."""

HandOver = Callable[[Buffer, socket.socket, Answer], None]
"""How a transport that moves the bytes by itself does it for one puller; returns when that has
them. Raises WeightTransportError, OSError."""


class TcpWeightSource:
    """Listens from construction on; port 0 lets the system choose one. key: the job's. shelf,
    hand_over: of a transport built on this one. stall_timeout_s, handshake_s: as STALL_TIMEOUT_S,
    HANDSHAKE_S."""

    transport: ClassVar[Transport] = "tcp"

    def __init__(
        self,
        host: str,
        port: int = 0,
        *,
        key: str,
        shelf: Shelf | None = None,
        hand_over: HandOver | None = None,
        stall_timeout_s: float = STALL_TIMEOUT_S,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        self._shelf = shelf or Shelf()
        self._server = _Server((host, port), _Handler)
        self._server.shelf, self._server.key = self._shelf, key
        self._server.hand_over = hand_over
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
        self._opening = Opening(transport=self.transport, key=key, stall_timeout_s=stall_timeout_s)

    def pull(
        self, host: str, port: int, *, version: int, lineage: int, memory: Memory = own_memory
    ) -> Pulled:
        """Raises WeightTransportError."""
        with self._opening.of(
            host, port, version=version, lineage=lineage, memory=memory
        ) as opened:
            _receive(opened.connection, opened.pulled.manifest, opened.pulled.payload)
            return opened.pulled


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


def until_closed(connection: socket.socket) -> None:
    """The puller has what it came for, or is gone, when its connection ends. Raises OSError."""
    connection.settimeout(LEASE_S)
    connection.recv(1)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    shelf: Shelf
    key: str
    hand_over: HandOver | None = None
    stall_timeout_s: float = STALL_TIMEOUT_S
    handshake_s: float = HANDSHAKE_S

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.door = Door(MAX_UNPROVEN)
        self.pulls = threading.Semaphore(MAX_PULLS)
        self._strangers: set[str] = set()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Called as each connection is accepted, before it has a thread."""
        self.door.come(request, str(client_address[0]))
        return True

    def shutdown_request(self, request: Any) -> None:
        """Called at each connection's end."""
        self.door.go(request)
        super().shutdown_request(request)

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
            self.server.door.go(self.request)
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
        is_sent, hand_over = transport == TcpWeightSource.transport, self.server.hand_over
        if not is_sent and hand_over is None:
            raise WrongVersion(f"asked for by {transport}, served by tcp alone")
        try:
            manifest = exposed.manifest.result(DIGESTS_TIMEOUT_S)
        except TimeoutError:
            raise WrongVersion("the digests of these weights are not made yet") from None
        answer: dict[str, Any] = {"manifest": manifest.as_json()}
        if is_sent or hand_over is None:
            asked.answer(answer)
            payload = exposed.buffer.view
            # A time-out is of all that one call sends.
            for start in range(0, len(payload), CHUNK_BYTES):
                self.request.sendall(payload[start : start + CHUNK_BYTES])
            return

        def tell(place: dict[str, Any]) -> None:
            asked.answer(answer | {"place": place})

        hand_over(exposed.buffer, self.request, tell)
