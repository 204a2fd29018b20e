"""An engine in virtual time: what its process and its client offer, without tensors."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from gyre.cell_agent.engine.base import (
    EngineClient,
    EngineRefusedError,
    EngineUnreachableError,
    WeightsDiffer,
)
from gyre.cell_agent.engine.launch import EngineLaunch
from gyre.testkit.simulated_fabric import INITIAL, Fabric


class SimulatedEngine:
    """Stands in for EngineProcess and its client. content: as SimulatedTrainer's."""

    def __init__(self, fabric: Fabric, cell: int, pid: int) -> None:
        self.fabric, self.cell, self.pid = fabric, cell, pid
        self.base_url = f"http://engine-{cell}-{self.pid}"
        self.content, self.weight_version = "", ""
        self.paused = False
        self.released: frozenset[str] = frozenset()
        self.num_served = 0
        self._stubborn = False
        self._dead = asyncio.Event()

    @property
    def client(self) -> EngineClient:
        return cast(EngineClient, self)

    @property
    def alive(self) -> bool:
        return not self._dead.is_set()

    async def start(self, launch: EngineLaunch) -> None:
        self.fabric.take_memory(self.cell, "engine")
        await self._work(4.0)
        self._load(launch.model_path, launch.weight_version)

    def kill(self) -> None:
        self._dead.set()
        self.fabric.give_memory(self.cell, "engine")

    async def stop(self) -> None:
        self.kill()

    async def wait(self) -> int:
        await self._dead.wait()
        return -9

    async def abort(self, *, pin_s: float | None = None) -> None:
        await self._work(0.1)

    async def num_pins(self) -> int:
        await self._asked("num_pins")
        return 0

    async def num_announced(self, switch: int) -> int | None:
        await self._asked("num_announced")
        return None

    async def num_requests(self) -> int:
        await self._work(0.1)
        return 0

    async def ready(self) -> bool:
        await self._asked("ready")
        return not self.paused

    async def generate(
        self,
        *,
        input_ids: list[int],
        sampling_params: dict[str, Any],
        rid: str,
        return_logprob: bool,
        timeout_s: float,
    ) -> None:
        await self._asked("generate")
        if self.paused or self.released or not self.content:
            self.fabric.violations.append(f"cell {self.cell}: it computes without weights")
        self.num_served += 1

    async def pause(self, mode: str) -> None:
        await self._asked("pause")
        self.paused = True
        self._stubborn = self.fabric.source.random() < 0.05

    async def resume(self) -> None:
        await self._work(0.1)
        if self.released or not self.content:
            self.fabric.violations.append(f"cell {self.cell}: resumed without its memory")
        self.fabric.refusals.pop((self.cell, "release_memory"), None)
        self.paused = False

    async def release_memory(self, tags: list[str]) -> None:
        await self._asked("release_memory")
        if self._stubborn:
            raise EngineRefusedError("/release_memory_occupation", 400, "a late request waits")
        self.released |= frozenset(tags)
        if "weights" in tags:
            self.content = ""
        self.fabric.give_memory(self.cell, "engine")

    async def resume_memory(self, tags: tuple[str, ...]) -> None:
        await self._asked("resume_memory")
        self.fabric.take_memory(self.cell, "engine")
        self.released -= frozenset(tags)

    async def pause_after_running(self, timeout_s: float) -> None:
        await self.pause("retract")

    async def update_weights_from_disk(
        self, path: str, *, weight_version: str, flush_cache: bool = True
    ) -> None:
        await self._asked("update_weights_from_disk", 1.0)
        if not self.paused:
            self.fabric.violations.append(f"cell {self.cell}: weights changed while it ran")
        self._load(path, weight_version)

    async def update_weights_from_tensors(
        self, weights: Mapping[str, Any], *, weight_version: str, flush_cache: bool = True
    ) -> None:
        """weights: as SimulatedCourier has them."""
        await self._asked("update_weights_from_tensors", 1.0)
        if not self.paused:
            self.fabric.violations.append(f"cell {self.cell}: weights changed while it ran")
        (self.content,) = weights
        self.weight_version = weight_version
        self.fabric.served.add((weight_version, self.content))

    async def confirm_tensors(self, weights: Mapping[str, Any], checksum: str) -> None:
        await self.confirm_directory("tensors", checksum)

    async def loads(self) -> dict[str, Any]:
        await self._work(0.1)
        return {"num_active_tokens": 0}

    async def confirm_directory(self, directory: str, checksum: str) -> None:
        await self._work(0.1)
        if self.content != checksum:
            raise WeightsDiffer(f"{directory} is not what cell {self.cell} serves")

    def _load(self, path: str, weight_version: str) -> None:
        if path in self.fabric.pruned:
            raise EngineRefusedError(path, 400, "there is no such directory")
        there = self.fabric.checkpoints.get(path)
        self.content = there[1] if there else INITIAL
        self.weight_version = weight_version
        self.fabric.served.add((weight_version, self.content))

    async def _asked(self, operation: str, seconds: float = 0.1) -> None:
        """Raises EngineRefusedError where this run has it refused."""
        await self._work(seconds)
        if self.fabric.refuses(self.cell, operation):
            raise EngineRefusedError(f"/{operation}", 400, "refused in this run")

    async def _work(self, seconds: float) -> None:
        """Raises EngineUnreachableError when it dies meanwhile."""
        try:
            async with asyncio.timeout(seconds * self.fabric.source.random()):
                await self._dead.wait()
        except TimeoutError:
            pass
        if not self.alive:
            raise EngineUnreachableError(f"{self.base_url} is gone")
