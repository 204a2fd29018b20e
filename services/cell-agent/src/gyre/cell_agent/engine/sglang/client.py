"""SGLang where it differs from `local`: what a tensor update takes, what a checksum is of.

On a GPU SGLang's digest of a tensor comes from a kernel that has no counterpart here. There only
what was sent is checked: that it is the checkpoint's. What the engine made of it is not; its own
digest goes to the log (`engine_weights_unchecked`), and engines of one kind that serve the same
version must say the same one. Nothing compares them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from gyre.adapters.logging import get_logger
from gyre.cell_agent.engine.base import EngineClient
from gyre.cell_agent.engine.errors import WeightsDiffer
from gyre.cell_agent.engine.sglang.checksum import cpu_checksum
from gyre.cell_agent.engine.sglang.pickles import pickled
from gyre.cell_agent.engine.tensors import (
    ModelShapes,
    TensorView,
    is_tied,
    named_checksum,
    read_directory,
)

Device = Literal["cpu", "cuda"]


class SglangClient(EngineClient):
    """device: where the engine computes."""

    def __init__(
        self, base_url: str, *, device: Device = "cpu", shapes: ModelShapes | None = None
    ) -> None:
        super().__init__(base_url, shapes=shapes)
        self._device: Device = device

    def payload(self, bucket: Sequence[TensorView]) -> bytes:
        """A pickle, which SGLang loads with a short list of what may be in it."""
        return pickled(bucket)

    async def confirm_directory(self, directory: str, checksum: str) -> None:
        expected = await asyncio.to_thread(self._of_directory, Path(directory), checksum)
        await self._confirm_if_known(expected, directory)

    async def confirm_tensors(self, weights: Mapping[str, TensorView], checksum: str) -> None:
        tied = self.shapes is not None and self.shapes.tied
        expected = await asyncio.to_thread(self._expected, weights, tied, checksum, "tensors")
        await self._confirm_if_known(expected, "tensors")

    async def _confirm_if_known(self, expected: str | None, source: str) -> None:
        if expected is not None:
            await self._confirm(expected, source)
            return
        digest, version = await self.checksum(), await self.weight_version()
        get_logger().warning(
            "engine_weights_unchecked", source=source, version=version, engine_digest=digest
        )

    def _of_directory(self, directory: Path, checksum: str) -> str | None:
        weights = read_directory(directory)
        return self._expected(weights, is_tied(directory), checksum, str(directory))

    def _expected(
        self, weights: Mapping[str, TensorView], tied: bool, checksum: str, source: str
    ) -> str | None:
        """What the engine must say; None where that is not known. Raises WeightsDiffer: the weights
        themselves are not those that were announced."""
        found = named_checksum(weights)
        if found != checksum:
            raise WeightsDiffer(f"{source}: checksum {found[:12]}, announced was {checksum[:12]}")
        return cpu_checksum(weights, tied=tied) if self._device == "cpu" else None
