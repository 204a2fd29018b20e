"""Commands that bring weights in, hand them to other cells, and name them."""

from __future__ import annotations

from pathlib import Path

from gyre.cell_agent.trainer.carriers import WeightsName
from gyre.cell_agent.trainer.commands.base import Answer, CommandFamily
from gyre.cell_agent.trainer.errors import WeightsUnavailable
from gyre.cell_agent.trainer.weights_io import checksum, from_bytes, read_weights
from gyre.cell_agent.weights.base import WeightTransportError
from gyre.cell_agent.weights.tcp import TcpWeightSink, TcpWeightSource

NAMES = ("load_weights", "serve_weights", "pull_weights", "checksum")


class WeightCommands(CommandFamily):
    def load_weights(self, *, path: Path, version: int, lineage: int) -> Answer:
        """From a Hugging Face directory. The optimizer starts afresh."""
        self.trainer.set_weights(read_weights(path), WeightsName(version=version, lineage=lineage))
        self.trainer.set_optimizer_state(None)
        return self.weights_changed()

    def serve_weights(self, *, host: str = "127.0.0.1", port: int = 0) -> Answer:
        """Exposes what is held, and after each later change what is held then."""
        self.trainer.require_held()
        if self.source is None:
            try:
                self.source = TcpWeightSource(host, port)
            except OSError as error:
                raise WeightsUnavailable(f"{host}:{port}: {error}") from error
        host, port = self.source.address
        return {"host": host, "port": port, **self.weights_changed()}

    def pull_weights(self, *, host: str, port: int, version: int, lineage: int) -> Answer:
        """From the core's serve_weights; verified before anything is replaced."""
        try:
            snapshot = TcpWeightSink().pull(host, port, version=version, lineage=lineage)
        except WeightTransportError as error:
            raise WeightsUnavailable(str(error)) from error
        weights = from_bytes(snapshot.payload)
        if checksum(weights) != snapshot.checksum:
            raise WeightsUnavailable("the pulled tensors do not match their checksum")
        self.trainer.set_weights(weights, WeightsName(version=version, lineage=lineage))
        return self.weights_changed()

    def checksum(self) -> Answer:
        """Equals what the engine's /weights_checker says once it serves these weights."""
        held = self.trainer.require_held()
        return {
            "checksum": checksum(self.trainer.weights()),
            "version": held.version,
            "lineage": held.lineage,
        }
