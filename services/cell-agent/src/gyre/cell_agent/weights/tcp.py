"""Weights over plain TCP: a JSON line each way, then the payload.

Request {"version", "lineage"}; answer {"version", "lineage", "checksum", "digest", "num_bytes"}
followed by the bytes, or {"error"}. The server has threads of its own and touches no tensor: it
serves bytes that the trainer's main thread made between two commands.
"""

from __future__ import annotations

import io
import json
import socket
import socketserver
import threading
from collections.abc import Mapping
from typing import Any

from gyre.cell_agent.weights.base import WeightSnapshot, WeightTransportError

# Between two sends or receives, not for the whole transfer, so it does not grow with the model.
STALL_TIMEOUT_S = 20.0
# A request is two integers; a longer line is no client of ours.
_MAX_LINE_BYTES = 4096
# How often the listening thread looks whether it shall stop.
_POLL_S = 0.05


class TcpWeightSource:
    """Listens from construction on; port 0 lets the system choose one."""

    def __init__(self, host: str, port: int = 0) -> None:
        self._server = _Server((host, port), _Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="weights-tcp", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def expose(self, snapshot: WeightSnapshot) -> None:
        self._server.snapshot = snapshot

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class TcpWeightSink:
    """Pulls with a stall time-out; raises WeightTransportError only."""

    def pull(self, host: str, port: int, *, version: int, lineage: int) -> WeightSnapshot:
        try:
            with socket.create_connection((host, port), timeout=STALL_TIMEOUT_S) as connection:
                request = {"version": version, "lineage": lineage}
                connection.sendall(json.dumps(request).encode() + b"\n")
                with connection.makefile("rb") as stream:
                    return _read_answer(stream, version, lineage)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WeightTransportError(f"weights from {host}:{port}: {error}") from error


class _Server(socketserver.ThreadingTCPServer):
    """snapshot: replaced by one assignment, read once per request."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    snapshot: WeightSnapshot | None = None


class _Handler(socketserver.StreamRequestHandler):
    timeout = STALL_TIMEOUT_S
    server: _Server

    def handle(self) -> None:
        try:
            line = self.rfile.readline(_MAX_LINE_BYTES)
            request = json.loads(line)
        except (OSError, ValueError):
            return  # no request, no answer: the peer went away or is no client of ours
        snapshot = self.server.snapshot
        refusal = _refusal(request, snapshot)
        try:
            if refusal is not None or snapshot is None:
                self._send({"error": refusal})
                return
            self._send(_header(snapshot))
            self.connection.sendall(snapshot.payload)
        except OSError:
            return  # the puller died; whether it joins is its agent's business

    def _send(self, answer: Mapping[str, Any]) -> None:
        self.connection.sendall(json.dumps(answer).encode() + b"\n")


def _refusal(request: Any, snapshot: WeightSnapshot | None) -> str | None:
    if not isinstance(request, dict):
        return "a request is a JSON object"
    if snapshot is None:
        return "no weights are exposed"
    wanted = (request.get("version"), request.get("lineage"))
    held = (snapshot.version, snapshot.lineage)
    if wanted != held:
        return f"asked for (version, lineage) {wanted}, exposed is {held}"
    return None


def _header(snapshot: WeightSnapshot) -> dict[str, Any]:
    return {
        "version": snapshot.version,
        "lineage": snapshot.lineage,
        "checksum": snapshot.checksum,
        "digest": snapshot.digest,
        "num_bytes": len(snapshot.payload),
    }


def _read_answer(stream: io.BufferedIOBase, version: int, lineage: int) -> WeightSnapshot:
    header = json.loads(stream.readline(_MAX_LINE_BYTES))
    if "error" in header:
        raise WeightTransportError(str(header["error"]))
    payload = stream.read(header["num_bytes"])
    if len(payload) != header["num_bytes"]:
        raise WeightTransportError(f"cut off after {len(payload)} of {header['num_bytes']} bytes")
    snapshot = WeightSnapshot.of(
        payload, version=version, lineage=lineage, checksum=header["checksum"]
    )
    if snapshot.digest != header["digest"]:
        raise WeightTransportError("the bytes do not match their digest")
    return snapshot
