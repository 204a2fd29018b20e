"""The port: the core exposes its weights, a joiner or an engine's agent pulls and verifies them.

A pull is asked for by (version, lineage) and answered with a `Manifest`, authenticated by the job's
key: it carries the digest of every chunk of the payload, so that whoever moved the bytes, and
however, what a sink returns is what the core exposed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from gyre.cell_agent.weights.manifest import Manifest
from gyre.cell_agent.weights.memory import Memory, own_memory
from gyre.cell_agent.weights.shelf import Buffer

Transport = Literal["tcp", "mooncake", "nccl"]

WEIGHTS_KEY = "GYRE_WEIGHTS_KEY"
"""Where a trainer finds its job's key (`gyre.adapters.keys.make_weights_key`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """payload: the safetensors document, as long as the manifest says, every chunk verified."""

    manifest: Manifest
    payload: memoryview


class WeightSource(Protocol):
    """The core's side. Its methods are for one thread; pulls are served on others."""

    transport: ClassVar[Transport]

    @property
    def address(self) -> tuple[str, int]:
        """Host and port where pulls are asked for."""
        ...

    @property
    def session(self) -> str:
        """What the transport moves the bytes by; empty if by the address."""
        ...

    def buffer(self, num_bytes: int) -> Buffer:
        """Memory to write the next weights to, before `expose`."""
        ...

    def expose(self, buffer: Buffer, *, version: int, lineage: int) -> None:
        """From now on these are the newest weights; returns before their digests are made. Pulls
        under way finish with what they began."""
        ...

    def keep(self) -> None:
        """The newest weights stay served beside newer ones, until others are kept."""
        ...

    def manifest(self) -> Manifest:
        """Of the newest weights; waits for their digests."""
        ...

    def forget(self) -> None:
        """Gives back the memory of all but the kept weights."""
        ...

    def close(self) -> None: ...


class WeightSink(Protocol):
    """A puller's side."""

    transport: ClassVar[Transport]

    def pull(
        self, host: str, port: int, *, version: int, lineage: int, memory: Memory = own_memory
    ) -> Pulled:
        """memory: what the payload is to lie in, made once its size is told. Raises
        WeightTransportError."""
        ...
