"""The cell's two child processes, watched. Both live through every role change."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import Literal

from gyre.adapters.keys import make_migration_key
from gyre.cell_agent.engine.process import EngineProcess
from gyre.cell_agent.reports import ProcessLost
from gyre.cell_agent.settings import CellAgentSettings
from gyre.cell_agent.trainer.client import TrainerProcess
from gyre.cell_agent.trainer.launch import TrainerLaunch
from gyre.contracts.job import EmulationSection
from gyre.core.cell import CellState
from gyre.core.routing import weight_version_name

Which = Literal["engine", "trainer"]


class CellProcesses:
    """Starts, watches and ends engine and trainer. `lost` fills when one ends unasked."""

    def __init__(self, settings: CellAgentSettings) -> None:
        self._settings = settings
        self._watches: dict[Which, asyncio.Task[None]] = {}
        self.lost: deque[ProcessLost] = deque()
        self.something_lost = asyncio.Event()
        self.engine: EngineProcess | None = None
        self.trainer: TrainerProcess | None = None

    @property
    def logs_dir(self) -> Path:
        return self._settings.home / "logs"

    @property
    def live_engine(self) -> EngineProcess:
        if self.engine is None:
            raise ProcessLost(process="engine", error="it is not running")
        return self.engine

    @property
    def live_trainer(self) -> TrainerProcess:
        if self.trainer is None:
            raise ProcessLost(process="trainer", error="it is not running")
        return self.trainer

    async def start_engine(
        self, state: CellState, path: str | None, version: tuple[int, int]
    ) -> None:
        """Raises EngineStartError."""
        self.logs_dir.mkdir(parents=True, exist_ok=True)
        engine = self._new_engine()
        self.engine = engine
        spec, emulated = state.required_spec, _emulation(state)
        secret = self._settings.key_secret.get_secret_value()
        await engine.start(
            model_path=path or spec.model.path,
            weight_version=weight_version_name(*version),
            context_tokens=spec.model.context_tokens,
            max_running_requests=_capacity(state),
            seed=spec.seed + self._settings.cell,
            decode_tokens_per_s=emulated.decode_tokens_per_s,
            migration_key=None if state.job is None else make_migration_key(secret, state.job),
        )
        self._watches["engine"] = asyncio.create_task(self._watch_engine(engine))

    async def start_trainer(self, state: CellState) -> None:
        """Raises TrainerCallError."""
        self.logs_dir.mkdir(parents=True, exist_ok=True)
        trainer = self._new_trainer(state)
        self.trainer = trainer
        await trainer.start()
        self._watches["trainer"] = asyncio.create_task(self._watch_trainer(trainer))

    def _new_engine(self) -> EngineProcess:
        return EngineProcess(
            host=self._settings.cell_host,
            log_path=self.logs_dir / f"engine-{self._settings.cell}.log",
            threads=self._settings.engine_threads,
        )

    def _new_trainer(self, state: CellState) -> TrainerProcess:
        launch = TrainerLaunch(
            cell=self._settings.cell,
            model_path=Path(state.required_spec.model.path),
            threads=self._settings.trainer_threads,
            nice=self._settings.trainer_nice,
            tokens_per_s=_emulation(state).training_tokens_per_s,
        )
        log_path = self.logs_dir / f"trainer-{self._settings.cell}.log"
        return TrainerProcess(launch, log_path=log_path)

    async def forget(self, which: Which) -> None:
        """End the process if it still lives and expect nothing more of it."""
        watch = self._watches.pop(which, None)
        if watch is not None:
            watch.cancel()
        if which == "engine" and self.engine is not None:
            engine, self.engine = self.engine, None
            await engine.stop()
        if which == "trainer" and self.trainer is not None:
            trainer, self.trainer = self.trainer, None
            trainer.kill()
            await trainer.wait()
        self.lost = deque(lost for lost in self.lost if lost.process != which)

    def kill_trainer(self) -> None:
        """SIGKILL; whoever waits for its answer is told that it is gone."""
        if self.trainer is not None:
            self.trainer.kill()

    async def stop(self) -> None:
        await self.forget("engine")
        await self.forget("trainer")

    def take_lost(self) -> ProcessLost | None:
        """The oldest unreported loss."""
        lost = self.lost.popleft() if self.lost else None
        if not self.lost:
            self.something_lost.clear()
        return lost

    async def _watch_engine(self, engine: EngineProcess) -> None:
        self._note("engine", await engine.wait())

    async def _watch_trainer(self, trainer: TrainerProcess) -> None:
        self._note("trainer", await trainer.wait())

    def _note(self, which: Which, status: int) -> None:
        words = f"signal {-status}" if status < 0 else f"exit status {status}"
        self.lost.append(ProcessLost(process=which, error=f"ended with {words}"))
        self.something_lost.set()


def _capacity(state: CellState) -> int:
    """Executions that this cell serves at a time."""
    cells = state.required_spec.cells
    return cells.pool_capacity if state.in_pool else cells.capacities[state.place]


def _emulation(state: CellState) -> EmulationSection:
    return state.required_spec.cells.emulation(state.place) or EmulationSection()
