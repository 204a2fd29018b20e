"""How every pull begins: a connection, the job's key, the question, and memory for what comes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gyre.cell_agent.weights.base import Pulled, Transport
from gyre.cell_agent.weights.errors import CutOff, NobodyServes, WrongVersion
from gyre.cell_agent.weights.handshake import ask
from gyre.cell_agent.weights.manifest import Manifest
from gyre.cell_agent.weights.memory import Memory

# Between two sends or receives, not for the whole transfer, so it does not grow with the model.
STALL_TIMEOUT_S = 20.0
# A puller may come before the digests of what it asks for are made: at 1 GB/s, 200 GB. With the
# time-out of a silent source it stays below the deadline of the trainer's command that pulls.
DIGESTS_TIMEOUT_S = 200.0
# A host that is gone says nothing: it is asked after so many seconds of silence, and so often.
_KEEPALIVE_S, _KEEPALIVES = 5, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A pull that has begun. connection: the source keeps the memory as long as it is open. answer:
    all that the source said. pulled: its payload is to be filled, and verified."""

    connection: socket.socket
    answer: dict[str, Any]
    pulled: Pulled


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A sink's. key: the job's. stall_timeout_s: as STALL_TIMEOUT_S."""

    transport: Transport
    key: str
    stall_timeout_s: float = STALL_TIMEOUT_S

    @contextmanager
    def of(
        self, host: str, port: int, *, version: int, lineage: int, memory: Memory
    ) -> Iterator[Opened]:
        """Raises WeightTransportError, within the `with` too: an OSError there is CutOff."""
        try:
            with _connected(host, port, self.stall_timeout_s) as connection:
                answer = self._request(connection, version, lineage)
                manifest = Manifest.from_json(answer.get("manifest"))
                told = (manifest.version, manifest.lineage)
                if told != (version, lineage):
                    raise WrongVersion(f"asked for {(version, lineage)}, answered with {told}")
                pulled = Pulled(manifest=manifest, payload=memory(manifest.num_bytes))
                yield Opened(connection=connection, answer=answer, pulled=pulled)
        except OSError as error:
            raise CutOff(f"weights from {host}:{port}: {error or type(error).__name__}") from error

    def _request(self, connection: socket.socket, version: int, lineage: int) -> dict[str, Any]:
        """The source's answer, which comes once it has made the manifest."""
        asked = {"version": version, "lineage": lineage, "transport": self.transport}
        answer_s = DIGESTS_TIMEOUT_S + STALL_TIMEOUT_S
        answer = ask(connection, self.key, asked, answer_s=answer_s)
        if "error" in answer:
            raise WrongVersion(str(answer["error"]))
        return answer


def _connected(host: str, port: int, timeout_s: float) -> socket.socket:
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
