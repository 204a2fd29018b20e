"""A cell whose agent is real and whose engine and trainer are simulated, in virtual time.

`CellLife` plays the supervisor: it starts the agent, kills it when told to, and starts the next.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from gyre.adapters.eventlog.base import EventLog, EventLogError
from gyre.adapters.journal import Journal
from gyre.cell_agent.agent import CellAgent
from gyre.cell_agent.cell_memory import CellMemory
from gyre.cell_agent.engine.process import EngineProcess
from gyre.cell_agent.group import TrainerGroup
from gyre.cell_agent.performer import Performer
from gyre.cell_agent.processes import CellProcesses
from gyre.cell_agent.settings import CellAgentSettings
from gyre.cell_agent.weights.courier import Courier, Offered, WeightsNotHad
from gyre.contracts.events.cells import AgentOnline
from gyre.core.cell import CellState
from gyre.core.cell.state import Exposure
from gyre.testkit.simulated_engine import SimulatedEngine
from gyre.testkit.simulated_fabric import Fabric, Label
from gyre.testkit.simulated_trainer import SimulatedTrainer
from gyre.testkit.virtual_time import VirtualClock

_pids = itertools.count(1000)

# What the engine holds while it serves, and the trainer while it trains, of memory for one of them.
SIDE_BYTES = 100


class SimulatedCourier(Courier):
    """Checkpoints by the port of the agent that offers them; weights are named by their content."""

    def __init__(self, fabric: Fabric, port: int) -> None:
        super().__init__("simulated", "here")
        self._fabric, self._port = fabric, port

    def offer(self, job: str, directory: str, version: Label, *, allow_public: bool) -> Offered:
        if directory in self._fabric.pruned:
            raise WeightsNotHad(f"{directory} is gone")
        self._fabric.offers[self._port] = (version, self._fabric.checkpoints[directory][1])
        return Offered(host="here", port=self._port, num_bytes=1)

    async def fetch(self, job: str, offered: Exposure) -> Mapping[str, Any]:
        await self._fabric.pause(0.5)
        version, content = self._fabric.offers.get(offered.port, (None, ""))
        if version != offered.version:
            raise WeightsNotHad(f"{offered.port} offers no {offered.version}")
        return {content: None}

    async def close(self) -> None:
        self._fabric.offers.pop(self._port, None)


class SimulatedProcesses(CellProcesses):
    """The real watch over two processes, which are simulated."""

    def __init__(self, settings: CellAgentSettings, fabric: Fabric, micro_step_s: float) -> None:
        self._cell, self._fabric, self._micro_step_s = settings.cell, fabric, micro_step_s
        super().__init__(settings)

    def _new_courier(self) -> Courier:
        return SimulatedCourier(self._fabric, next(_pids))

    def _new_engine(self) -> EngineProcess:
        return cast(EngineProcess, SimulatedEngine(self._fabric, self._cell, next(_pids)))

    def _new_trainer(self, state: CellState) -> TrainerGroup:
        trainer = SimulatedTrainer(self._fabric, self._cell, next(_pids), self._micro_step_s)
        return cast(TrainerGroup, trainer)

    async def memory(self) -> CellMemory:
        held = self._fabric.holding(self._cell)
        return CellMemory(
            engine_bytes=SIDE_BYTES * ("engine" in held),
            trainer_bytes=SIDE_BYTES * ("trainer" in held),
        )

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
