"""The port: the core exposes its authoritative weights, a joiner pulls and verifies them.

A snapshot is immutable; the source replaces it whole, so a reader never sees half an update.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol


class WeightTransportError(Exception):
    """The weights could not be had: connection, version, or a digest that does not match."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSnapshot:
    """payload: safetensors bytes by Hugging Face names. checksum: of the tensors, as the engine's
    /weights_checker computes it. digest: SHA-256 of the payload."""

    version: int
    lineage: int
    checksum: str
    digest: str
    payload: bytes

    @classmethod
    def of(cls, payload: bytes, *, version: int, lineage: int, checksum: str) -> WeightSnapshot:
        digest = hashlib.sha256(payload).hexdigest()
        return cls(
            version=version, lineage=lineage, checksum=checksum, digest=digest, payload=payload
        )


class WeightSource(Protocol):
    """The core's side."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port where joiners pull."""
        ...

    def expose(self, snapshot: WeightSnapshot) -> None:
        """From now on `snapshot` is what is served; pulls under way finish with the one before."""
        ...

    def close(self) -> None: ...


class WeightSink(Protocol):
    """A joiner's side."""

    def pull(self, host: str, port: int, *, version: int, lineage: int) -> WeightSnapshot:
        """Raises WeightTransportError: nobody there, another version or lineage, damaged."""
        ...
