"""The calls of an engine that give it weights, and those that tell which ones it serves.

An update goes to a paused engine only. Unpaused, an SGLang that is still busy with the last step of
a request takes the weights, keeps the old name and the old cache, and answers that it failed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

import httpx

from gyre.cell_agent.engine.connection import EngineConnection, json_object
from gyre.cell_agent.engine.errors import (
    BadWeightsError,
    EngineError,
    EngineProtocolError,
    EngineRefusedError,
    WeightsDiffer,
)
from gyre.cell_agent.engine.tensors import (
    TORCH_NAMES,
    ModelShapes,
    TensorView,
    in_buckets,
    write_document,
)

UPDATE_TIMEOUT_S = 600.0

BUCKET_BYTES = 256 * 2**20
"""Of weights in one request: each is held several times over, encoded and decoded, at both ends."""


class WeightCalls(EngineConnection):
    """What `local` and SGLang agree on; where they do not, `sglang.client` says it anew.

    shapes: of the model in service, which tensors are checked against; None refuses them.
    released: memory that this client gave back and has not taken again.
    """

    def __init__(
        self,
        base_url: str,
        *,
        http: httpx.AsyncClient | None = None,
        shapes: ModelShapes | None = None,
    ) -> None:
        super().__init__(base_url, http=http)
        self.shapes = shapes
        self.released: frozenset[str] = frozenset()

    async def ready(self) -> bool:
        """Whether a request sent now would be served (not paused)."""
        return await self.ok("/ready")

    async def require_paused(self, path: str) -> None:
        """Raises EngineRefusedError: requests may come in while `path` is at work."""
        if await self.ready():
            raise EngineRefusedError(path, 409, "the engine is not paused")

    async def update_weights_from_disk(
        self, model_path: str, *, weight_version: str, flush_cache: bool = True
    ) -> None:
        """Load a checkpoint, between two tokens of what the pause holds. Raises EngineError."""
        path = "/update_weights_from_disk"
        await self.require_paused(path)
        body = {
            "model_path": model_path,
            "weight_version": weight_version,
            "flush_cache": flush_cache,
        }
        await self.post(path, body, UPDATE_TIMEOUT_S)

    async def update_weights_from_tensors(
        self,
        weights: Mapping[str, TensorView],
        *,
        weight_version: str,
        flush_cache: bool = True,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        """Send all of the model's parameters, `bucket_bytes` at a time; the last part brings the
        version's name. Raises BadWeightsError before anything is sent; after any other EngineError
        the engine may hold parts of both versions: it is sent all anew, or must end."""
        path = "/update_weights_from_tensor"
        await self.require_paused(path)
        self._check(weights.values())
        buckets = list(in_buckets(weights.values(), bucket_bytes))
        async with self._update_session():
            for place, bucket in enumerate(buckets, start=1):
                payload = await asyncio.to_thread(self._encoded, bucket)
                body: dict[str, Any] = {"serialized_named_tensors": [payload], "flush_cache": False}
                if place == len(buckets):
                    body |= {"weight_version": weight_version, "flush_cache": flush_cache}
                await self.post(path, body, UPDATE_TIMEOUT_S)

    async def join_update_group(
        self,
        host: str,
        port: int,
        *,
        rank: int,
        size: int,
        name: str,
        backend: str = "gloo",
        timeout_s: float = UPDATE_TIMEOUT_S,
    ) -> None:
        """Meet the others of a group in which rank 0, whose store is at host:port, will broadcast
        weights; returns when all have come. rank: of this engine's first rank."""
        body = {
            "master_address": host,
            "master_port": port,
            "rank_offset": rank,
            "world_size": size,
            "group_name": name,
            "backend": backend,
        }
        await self.post("/init_weights_update_group", body, timeout_s)

    async def update_weights_from_group(
        self,
        weights: Sequence[TensorView],
        *,
        group: str,
        weight_version: str,
        flush_cache: bool = True,
    ) -> None:
        """Receive all of the model's parameters, which the group's rank 0 broadcasts meanwhile in
        this order. Only names, types and shapes of `weights` go with the request, checked as those
        of tensors are. After any EngineError but BadWeightsError the engine must end."""
        path = "/update_weights_from_distributed"
        await self.require_paused(path)
        self._check(weights)
        body = {
            "names": [view.name for view in weights],
            "dtypes": [TORCH_NAMES[view.dtype] for view in weights],
            "shapes": [list(view.shape) for view in weights],
            "group_name": group,
            "weight_version": weight_version,
            "flush_cache": flush_cache,
        }
        async with self._update_session():
            await self.post(path, body, UPDATE_TIMEOUT_S)

    async def leave_update_group(self, name: str) -> None:
        """Refused (EngineRefusedError) where the engine is in no such group."""
        await self.post("/destroy_weights_update_group", {"group_name": name})

    @contextlib.asynccontextmanager
    async def _update_session(self) -> AsyncIterator[None]:
        """What tensor updates need. A refusal closes it too, or the next update would be refused;
        whoever does not answer ends, and its session with it."""
        await self.post("/begin_weight_update", {}, UPDATE_TIMEOUT_S)
        try:
            yield
        except EngineRefusedError:
            with contextlib.suppress(EngineError):
                await self.post("/end_weight_update", {})
            raise
        await self.post("/end_weight_update", {}, UPDATE_TIMEOUT_S)

    def _check(self, weights: Iterable[TensorView]) -> None:
        if self.shapes is None:
            raise BadWeightsError("the model's shapes are not known: nothing to check against")
        self.shapes.check(weights)

    def payload(self, bucket: Sequence[TensorView]) -> bytes:
        """Tensors as the engine's tensor update takes them."""
        return write_document(bucket)

    def _encoded(self, bucket: Sequence[TensorView]) -> str:
        return base64.b64encode(self.payload(bucket)).decode()

    async def update_weight_version(self, version: str, *, abort_all: bool = False) -> None:
        """Rename the version of the weights in service."""
        body = {"new_version": version, "abort_all_requests": abort_all}
        await self.post("/update_weight_version", body)

    async def checksum(self) -> str:
        """Digest of the weights in service, comparable between engines of one kind."""
        answer = json_object(
            await self.post("/weights_checker", {"action": "checksum"}, UPDATE_TIMEOUT_S)
        )
        digest = answer.get("per_engine_checksum")
        if not isinstance(digest, str):
            raise EngineProtocolError(f"no per_engine_checksum in {answer!r:.300}")
        return digest

    async def confirm_directory(self, directory: str, checksum: str) -> None:
        """The engine serves the weights of this directory, whose checksum by Hugging Face names
        (`tensors.named_checksum`) this is. Raises WeightsDiffer."""
        await self._confirm(checksum, directory)

    async def confirm_tensors(self, weights: Mapping[str, TensorView], checksum: str) -> None:
        """The engine serves these weights, whose checksum by Hugging Face names this is. Raises
        WeightsDiffer."""
        await self._confirm(checksum, "tensors")

    async def _confirm(self, expected: str, source: str) -> None:
        found = await self.checksum()
        if found != expected:
            raise WeightsDiffer(
                f"checksum {found[:12]} after loading {source}, it must be {expected[:12]}"
            )

    async def model_info(self) -> dict[str, Any]:
        """`model_path`, `weight_version`, ..."""
        return json_object(await self.get("/model_info"))

    async def weight_version(self) -> str:
        """Version of the weights in service."""
        return str((await self.model_info())["weight_version"])
