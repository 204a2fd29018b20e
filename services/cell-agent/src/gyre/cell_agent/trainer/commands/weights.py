"""Commands that bring weights in, hand them to other cells, and name them."""

from __future__ import annotations

import time
from pathlib import Path

from gyre.cell_agent.engine.errors import BadWeightsError
from gyre.cell_agent.engine.torch_checksum import checksum
from gyre.cell_agent.trainer.carriers import WeightsName
from gyre.cell_agent.trainer.commands.base import Answer, CommandFamily
from gyre.cell_agent.trainer.errors import BadModel, WeightsUnavailable
from gyre.cell_agent.trainer.model.weights_io import read_weights
from gyre.cell_agent.trainer.ranks.host_ranks import HostRanks
from gyre.cell_agent.weights.base import Pulled, Transport, WeightSink
from gyre.cell_agent.weights.errors import WeightTransportError
from gyre.cell_agent.weights.memory import Memory
from gyre.cell_agent.weights.payload import tensors
from gyre.cell_agent.weights.transports import open_sink, open_source, pull

NAMES = ("load_weights", "serve_weights", "pull_weights", "checksum")

# The digests of as much are made before the core would have noticed that it waits for them.
SMALL_BYTES = 64 * 1024 * 1024


class WeightCommands(CommandFamily):
    _sink: WeightSink | None = None
    _host_ranks: HostRanks | None = None

    def load_weights(self, *, path: Path, version: int, lineage: int) -> Answer:
        """From a Hugging Face directory. The optimizer starts afresh."""
        self.trainer.set_weights(read_weights(path), WeightsName(version=version, lineage=lineage))
        self.trainer.set_optimizer_state(None)
        return {**self.weights_changed(), "checksum": checksum(self.trainer.weights())}

    def serve_weights(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        transport: Transport = "tcp",
        keep: bool = False,
        allow_public: bool = False,
    ) -> Answer:
        """Exposes what is held, and after each later change what is held then. keep: this version
        stays served beside later ones, until another is kept. checksum: of the bytes, empty while
        it is being made; whoever pulls is told it with them."""
        held = self.trainer.require_held()
        if not self.is_serving and self.launch.rank == 0:
            try:
                self.source = open_source(
                    transport, host, port, key=self.weights_key(), allow_public=allow_public
                )
            except WeightTransportError as error:
                raise WeightsUnavailable(str(error)) from error
        self.is_serving = True
        if self.exposed != held:
            self.expose_held()
        if self.source is None:
            return {}
        if keep:
            self.source.keep()
        host, port = self.source.address
        is_small = self.num_exposed_bytes <= SMALL_BYTES
        return {
            "host": host,
            "port": port,
            "transport": self.source.transport,
            "session": self.source.session,
            "num_bytes": self.num_exposed_bytes,
            "version": held.version,
            "lineage": held.lineage,
            "checksum": self.source.manifest().checksum if is_small else "",
        }

    def pull_weights(
        self,
        *,
        host: str,
        port: int,
        version: int,
        lineage: int,
        transport: Transport = "tcp",
        allow_public: bool = False,
    ) -> Answer:
        """From the core's serve_weights, once for all the cell's ranks on a host; verified before
        anything is replaced."""
        started, key = time.perf_counter(), self.weights_key()
        if self._host_ranks is None:
            self._host_ranks = HostRanks()

        def pull_into(memory: Memory) -> Pulled:
            if self._sink is None or self._sink.transport != transport:
                self._sink = open_sink(transport, host, key=key, allow_public=allow_public)
            return pull(self._sink, host, port, version=version, lineage=lineage, memory=memory)

        try:
            pulled = self._host_ranks.pull(pull_into)
        except WeightTransportError as error:
            raise WeightsUnavailable(f"{type(error).__name__}: {error}") from error
        seconds = time.perf_counter() - started
        try:
            weights = tensors(pulled.payload)
        except BadWeightsError as error:
            raise BadModel(str(error)) from error
        self.trainer.set_weights(weights, WeightsName(version=version, lineage=lineage))
        self.trainer.pull_s = time.perf_counter() - started
        return {
            **self.weights_changed(),
            "checksum": pulled.manifest.checksum,
            "num_bytes": pulled.manifest.num_bytes,
            "seconds": seconds,
        }

    def checksum(self) -> Answer:
        """Equals what the engine's /weights_checker says once it serves these weights."""
        held = self.trainer.require_held()
        return {
            "checksum": checksum(self.trainer.weights()),
            "version": held.version,
            "lineage": held.lineage,
        }
