"""A cell whose agent is real and whose engine and trainer are simulated, in virtual time.

`CellLife` plays the supervisor: it starts the agent, kills it when told to, and starts the next.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from gyre.adapters.eventlog.base import EventLog, EventLogError
from gyre.adapters.journal import Journal
from gyre.cell_agent.agent import CellAgent
from gyre.cell_agent.engine.base import EngineClient, EngineRefusedError, EngineUnreachableError
from gyre.cell_agent.engine.process import EngineProcess
from gyre.cell_agent.performer import Performer
from gyre.cell_agent.processes import CellProcesses
from gyre.cell_agent.settings import CellAgentSettings
from gyre.cell_agent.trainer.client import TrainerProcess
from gyre.contracts.events.cells import AgentOnline
from gyre.core.cell import CellState
from gyre.testkit.simulated_trainer import INITIAL, Fabric, SimulatedTrainer
from gyre.testkit.virtual_time import VirtualClock

_pids = itertools.count(1000)


class SimulatedEngine:
    """Stands in for EngineProcess and its client. content: as SimulatedTrainer's."""

    def __init__(self, fabric: Fabric, cell: int) -> None:
        self.fabric, self.cell, self.pid = fabric, cell, next(_pids)
        self.base_url = f"http://engine-{cell}-{self.pid}"
        self.content, self.weight_version = "", ""
        self.paused = self.released = False
        self._dead = asyncio.Event()

    @property
    def client(self) -> EngineClient:
        return cast(EngineClient, self)

    @property
    def alive(self) -> bool:
        return not self._dead.is_set()

    async def start(self, *, model_path: str, weight_version: str, **_: Any) -> None:
        await self._work(4.0)
        self._load(model_path, weight_version)

    def kill(self) -> None:
        self._dead.set()

    async def stop(self) -> None:
        self.kill()

    async def wait(self) -> int:
        await self._dead.wait()
        return -9

    async def abort(self, *, pin_s: float | None = None) -> None:
        await self._work(0.1)

    async def num_pins(self) -> int:
        await self._work(0.1)
        return 0

    async def num_announced(self, switch: int) -> int | None:
        return None

    async def num_requests(self) -> int:
        await self._work(0.1)
        return 0

    async def pause(self, mode: str) -> None:
        await self._work(0.1)
        self.paused = True

    async def resume(self) -> None:
        await self._work(0.1)
        if self.released:
            self.fabric.violations.append(f"cell {self.cell}: resumed without its memory")
        self.paused = False

    async def release_memory(self, tags: tuple[str, ...]) -> None:
        await self._work(0.1)
        if self.fabric.source.random() < 0.05:
            raise EngineRefusedError("/release_memory_occupation", 400, "a late request waits")
        self.released = True

    async def resume_memory(self, tags: tuple[str, ...]) -> None:
        await self._work(0.1)
        self.released = False

    async def update_weights_from_disk(self, path: str, *, weight_version: str) -> None:
        await self._work(1.0)
        if not self.paused:
            self.fabric.violations.append(f"cell {self.cell}: weights changed while it ran")
        self._load(path, weight_version)

    async def checksum(self) -> str:
        await self._work(0.1)
        return self.content

    def _load(self, path: str, weight_version: str) -> None:
        there = self.fabric.checkpoints.get(path)
        self.content = there[1] if there else INITIAL
        self.weight_version = weight_version
        self.fabric.served.add((weight_version, self.content))

    async def _work(self, seconds: float) -> None:
        """Raises EngineUnreachableError when it dies meanwhile."""
        try:
            async with asyncio.timeout(seconds * self.fabric.source.random()):
                await self._dead.wait()
        except TimeoutError:
            pass
        if not self.alive:
            raise EngineUnreachableError(f"{self.base_url} is gone")


class SimulatedProcesses(CellProcesses):
    """The real watch over two processes, which are simulated."""

    def __init__(self, settings: CellAgentSettings, fabric: Fabric, micro_step_s: float) -> None:
        super().__init__(settings)
        self._cell, self._fabric, self._micro_step_s = settings.cell, fabric, micro_step_s

    def _new_engine(self) -> EngineProcess:
        return cast(EngineProcess, SimulatedEngine(self._fabric, self._cell))

    def _new_trainer(self, state: CellState) -> TrainerProcess:
        trainer = SimulatedTrainer(self._fabric, self._cell, next(_pids), self._micro_step_s)
        return cast(TrainerProcess, trainer)

    def kill(self, which: str) -> None:
        """SIGKILL; the agent learns of it as of any other death."""
        process = self.engine if which == "engine" else self.trainer
        if process is not None:
            cast(SimulatedEngine | SimulatedTrainer, process).kill()


class CellLife:
    """One cell through the lives of its agent. Mutated by `run` and the kills.

    buried: the agent is not started again. connected: cleared while the cell is cut off from the
    log; its processes work on."""

    def __init__(
        self,
        cell: int,
        home: Path,
        fabric: Fabric,
        new_log: Callable[[asyncio.Event], EventLog],
        speed: float,
    ) -> None:
        self.cell, self._fabric, self._new_log, self._speed = cell, fabric, new_log, speed
        self.buried = False
        self.connected = asyncio.Event()
        self.connected.set()
        self._settings = CellAgentSettings.model_validate(
            {
                "nats_url": "nats://nowhere",
                "database_url": "postgresql://nowhere",
                "key_secret": "simulated",
                "home": home,
                "cell": cell,
                "store_port": 1,
            }
        )
        self._lives = itertools.count(1)
        self._task: asyncio.Task[None] | None = None
        self.processes = SimulatedProcesses(self._settings, fabric, speed)
        self.agent: CellAgent | None = None
        self.performer: Performer | None = None

    async def run(self) -> None:
        """One life after the other, until cancelled."""
        while not self.buried:
            self._task = asyncio.create_task(self._live(next(self._lives)))
            try:
                await asyncio.wait({self._task})
            finally:
                self._task.cancel()
                self.processes.kill("engine")
                self.processes.kill("trainer")
            if not self._task.cancelled() and (error := self._task.exception()) is not None:
                self._excuse(error)
            await self._fabric.pause(3.0)
        self.agent = None

    def _excuse(self, error: BaseException) -> None:
        """An agent that is cut off for long gives up; nothing else may end one."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        match error:
            case EventLogError():
                pass
            case _:
                raise RuntimeError(f"agent {self.cell} failed") from error

    async def _live(self, life: int) -> None:
        self.processes = SimulatedProcesses(self._settings, self._fabric, self._speed)
        self.performer = Performer(self._settings, self.processes)
        incarnation = f"cell{self.cell}-life{life}"
        self.agent = CellAgent(
            cell=self.cell,
            incarnation=incarnation,
            journal=Journal(self._new_log(self.connected), VirtualClock()),
            performer=self.performer,
        )
        online = AgentOnline(cell=self.cell, incarnation=incarnation, host="here", pid=life)
        await self.agent.run(online, asyncio.Event())

    def kill(self, which: str) -> None:
        """which: "agent", "engine", "trainer", or "cell": the agent is not started again."""
        if which in ("engine", "trainer"):
            self.processes.kill(which)
            return
        self.buried |= which == "cell"
        if self._task is not None:
            self._task.cancel()

    @property
    def audible(self) -> bool:
        """Its heartbeats arrive."""
        return not self.buried and self.connected.is_set()
