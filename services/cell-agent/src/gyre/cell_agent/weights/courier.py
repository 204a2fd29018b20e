"""The agents' part of a publication over the network: the core's serves its newest checkpoint, the
others pull it for their engines.

Served is the file that was just made durable, mapped: it lies in the page cache, takes none of the
trainer's memory, and is there while the trainer trains on, is offloaded, or has ended. Digests are
made on threads. Nothing here runs in the agent's loop but `offer`, which only opens the file.
"""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gyre.adapters.keys import make_weights_key
from gyre.cell_agent.engine.errors import EngineError, EngineRefusedError
from gyre.cell_agent.engine.tensors import SINGLE_FILE, TensorView, read_document
from gyre.cell_agent.weights.base import WeightSource
from gyre.cell_agent.weights.errors import PublicAddress, WeightTransportError
from gyre.cell_agent.weights.shelf import Buffer
from gyre.cell_agent.weights.tcp import TcpWeightSink
from gyre.cell_agent.weights.transports import open_source, pull
from gyre.core.cell.state import Exposure, Version


class WeightsNotHad(EngineRefusedError):
    """The core could not be asked, or what came was not what it exposed. Nothing was changed."""

    def __init__(self, message: str) -> None:
        super().__init__("weights of the core", 503, message)


class WeightsNotServable(EngineError):
    """Not where this cell listens, and asking again changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """Where a checkpoint is served."""

    host: str
    port: int
    num_bytes: int


class Courier:
    """One agent's; it serves one job until `close`. secret: of the stack, from which the job's key
    is made. host: where it serves."""

    def __init__(self, secret: str, host: str) -> None:
        self._secret, self._host = secret, host
        self._source: WeightSource | None = None

    def offer(self, job: str, directory: str, version: Version, *, allow_public: bool) -> Offered:
        """Serve this checkpoint instead of the one before. Raises WeightsNotHad: it cannot be read
        or served now; WeightsNotServable: never at this address."""
        try:
            buffer = _mapped(Path(directory) / SINGLE_FILE)
            source = self._source_of(job, allow_public)
        except PublicAddress as error:
            raise WeightsNotServable(str(error)) from error
        except (OSError, ValueError, WeightTransportError) as error:
            raise WeightsNotHad(f"{directory}: {error}") from error
        lineage, number = version
        source.expose(buffer, version=number, lineage=lineage)
        host, port = source.address
        return Offered(host=host, port=port, num_bytes=len(buffer.view))

    async def fetch(self, job: str, offered: Exposure) -> Mapping[str, TensorView]:
        """What another agent offers, verified. Raises WeightsNotHad, BadWeightsError."""
        sink = TcpWeightSink(key=make_weights_key(self._secret, job))
        lineage, version = offered.version
        try:
            pulled = await asyncio.to_thread(
                pull, sink, offered.host, offered.port, version=version, lineage=lineage
            )
        except WeightTransportError as error:
            raise WeightsNotHad(f"{type(error).__name__}: {error}") from error
        return read_document(pulled.payload)

    async def close(self) -> None:
        """The job is over. No error if nothing is offered."""
        source, self._source = self._source, None
        if source is not None:
            await asyncio.to_thread(source.close)

    def _source_of(self, job: str, allow_public: bool) -> WeightSource:
        if self._source is None:
            key = make_weights_key(self._secret, job)
            self._source = open_source("tcp", self._host, key=key, allow_public=allow_public)
        return self._source


def _mapped(path: Path) -> Buffer:
    with path.open("rb") as stream:
        return Buffer(memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)))
