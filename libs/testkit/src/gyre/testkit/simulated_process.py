"""The life of a simulated trainer: it starts, answers commands, and dies, as the real one does."""

from __future__ import annotations

import asyncio
from typing import Any

from gyre.cell_agent.trainer.process.client import TrainerGone, TrainerRefused, TrainerTimeout
from gyre.testkit.simulated_fabric import Fabric, Label, World

# Refusals that an agent has an answer to; any other is a mistake of its.
_EXPECTED = ("peer_lost", "weights_unavailable", "no_space", "no_memory", "pruned")


class SimulatedProcess:
    """Stands in for a TrainerGroup. A command is the method of its name after an underscore.

    seconds: the most that a micro-step takes."""

    def __init__(self, fabric: Fabric, cell: int, pid: int, seconds: float) -> None:
        self.fabric, self.cell, self.pid, self.seconds = fabric, cell, pid, seconds
        self.label: Label | None = None
        self.content = ""
        self.open: str | None = None
        self.accumulated: list[int] = []
        self.world: World | None = None
        self.num_met: dict[int, int] = {}
        self.left: set[int] = set()
        self.offloaded = False
        self.has_optimizer = True
        self._saving: asyncio.Future[dict[str, Any]] | None = None
        self._computing: asyncio.Future[None] | None = None
        self._dead = asyncio.Event()

    @property
    def alive(self) -> bool:
        return not self._dead.is_set()

    async def start(self, timeout_s: float) -> None:
        self.fabric.called("start", timeout_s)
        await asyncio.sleep(2.0 + 3.0 * self.fabric.source.random())
        if not self.alive:
            raise TrainerGone("the trainer ended")

    def kill(self) -> None:
        if self.alive:
            self._dead.set()
            for work in (self._saving, self._computing):
                if work is not None:
                    work.cancel()
            self.fabric.give_memory(self.cell, "trainer")
            self.fabric.servers.pop(self.cell, None)
            if self.world is not None:
                self.fabric.leave(self, self.world.epoch, self.world.rank)

    async def wait(self) -> int:
        await self._dead.wait()
        return -9

    @property
    def pids(self) -> tuple[int, ...]:
        return (self.pid,)

    @property
    def how_it_ended(self) -> str:
        return "ended with signal 9"

    async def call(self, command: str, timeout_s: float, /, **arguments: Any) -> dict[str, Any]:
        """Raises TrainerRefused, TrainerGone, as the real one does."""
        self.fabric.called(command, timeout_s, *sorted(arguments))
        work = asyncio.ensure_future(getattr(self, f"_{command}")(**arguments))
        death = asyncio.ensure_future(self._dead.wait())
        try:
            done, _ = await asyncio.wait(
                {work, death}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                raise TrainerTimeout(f"{command}: no answer within {timeout_s:g} s")
        finally:
            for task in (work, death):
                task.cancel()
            await asyncio.wait({work, death})
        if not self.alive or work.cancelled():
            raise TrainerGone(f"{command}: the trainer ended")
        try:
            answer: dict[str, Any] = work.result()
            return answer
        except TrainerRefused as refused:
            if refused.kind not in _EXPECTED:
                self.fabric.violations.append(f"cell {self.cell}: {command}: {refused}")
            raise

    def _require(self, holds: bool, kind: str, message: str) -> None:
        if not holds:
            raise TrainerRefused(kind, message)
