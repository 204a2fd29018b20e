"""The cell's two child processes, watched. Both live through every role change."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections import deque
from pathlib import Path
from typing import Literal

from gyre.adapters.keys import make_migration_key
from gyre.cell_agent.cell_memory import CellMemory, cell_memory
from gyre.cell_agent.child_environment import trainer_environment
from gyre.cell_agent.deadlines import Deadlines, deadlines_of
from gyre.cell_agent.engine.launch import EngineLaunch, EngineStartError, visible_device
from gyre.cell_agent.engine.process import EngineProcess
from gyre.cell_agent.engine.sglang.launch import installed_python
from gyre.cell_agent.gpus import rank_limit, trains_on_gpu
from gyre.cell_agent.group import Rank, TrainerGroup
from gyre.cell_agent.nodes.lead import Nodes
from gyre.cell_agent.nodes.messages import StartRank
from gyre.cell_agent.nodes.rank import RemoteRank
from gyre.cell_agent.pace import Pace
from gyre.cell_agent.reports import ProcessLost
from gyre.cell_agent.settings import CellAgentSettings
from gyre.cell_agent.trainer.process.client import TrainerGone, TrainerProcess, ending
from gyre.cell_agent.trainer.process.launch import Meeting, TrainerLaunch
from gyre.cell_agent.weights.addresses import check_host
from gyre.cell_agent.weights.courier import Courier
from gyre.cell_agent.weights.errors import PublicAddress
from gyre.contracts.job import EmulationSection
from gyre.core.cell import CellState
from gyre.core.cell_plan import LayoutDoesNotFit, spread_ranks
from gyre.core.routing import weight_version_name

Which = Literal["engine", "trainer"]


class CellProcesses:
    """Starts, watches and ends engine and trainer. `lost` fills when one ends unasked."""

    def __init__(self, settings: CellAgentSettings, nodes: Nodes | None = None) -> None:
        """nodes: the cell's others, where it has any."""
        self._settings = settings
        self._nodes = nodes
        self._pace = Pace(floor_s=settings.micro_step_floor_s, factor=settings.micro_step_factor)
        self._own_limit = rank_limit(settings.node_ranks, os.environ)
        self._trains_on = "cuda" if trains_on_gpu(os.environ) else "cpu"
        # And the job that they are of.
        self._deadlines: tuple[str | None, Deadlines] | None = None
        self._watches: dict[Which, asyncio.Task[None]] = {}
        self.lost: deque[ProcessLost] = deque()
        self.something_lost = asyncio.Event()
        self.engine: EngineProcess | None = None
        self.trainer: TrainerGroup | None = None
        self.courier = self._new_courier()

    @property
    def logs_dir(self) -> Path:
        return self._settings.home / "logs"

    @property
    def node_ranks(self) -> tuple[int | None, ...]:
        """The most trainer ranks that each of the cell's nodes takes, once all have reported."""
        return self._own_limit, *(self._nodes.limits if self._nodes else ())

    @property
    def live_engine(self) -> EngineProcess:
        if self.engine is None:
            raise ProcessLost(process="engine", error="it is not running")
        return self.engine

    @property
    def live_trainer(self) -> TrainerGroup:
        if self.trainer is None:
            raise ProcessLost(process="trainer", error="it is not running")
        return self.trainer

    def deadlines(self, state: CellState) -> Deadlines:
        """By when they have to answer. The model's files are looked at once a job, and again when
        its trainer is started: they may have come meanwhile."""
        if self._deadlines is None or self._deadlines[0] != state.job:
            self._deadlines = state.job, deadlines_of(state.required_spec, self._trains_on)
        return self._deadlines[1]

    async def start_engine(
        self, state: CellState, path: str | None, version: tuple[int, int]
    ) -> None:
        """What it reads from a checkpoint is confirmed before it is told to anybody. Raises
        EngineError: it did not start, may not listen here, or serves something else."""
        _check_host(self._settings.cell_host, state)
        self.logs_dir.mkdir(parents=True, exist_ok=True)
        engine = self._new_engine()
        self.engine = engine
        spec, emulated = state.required_spec, _emulation(state)
        secret = self._settings.key_secret.get_secret_value()
        settings = self._settings
        launch = EngineLaunch(
            kind=spec.engine.kind,
            model_path=path or spec.model.path,
            weight_version=weight_version_name(*version),
            context_tokens=spec.model.context_tokens,
            max_running_requests=_capacity(state),
            seed=spec.seed + settings.cell,
            host=settings.cell_host,
            threads=settings.engine_threads,
            decode_tokens_per_s=emulated.decode_tokens_per_s,
            migration_key=None if state.job is None else make_migration_key(secret, state.job),
            tensor=spec.engine.tensor,
            memory_fraction=spec.engine.memory_fraction,
            python=installed_python(settings.sglang_python),
            device=visible_device(os.environ),
        )
        await engine.start(launch)
        saved = state.checkpoint
        if saved is not None and path == saved.path:
            await engine.client.confirm_directory(saved.path, saved.checksum)
        self._watches["engine"] = asyncio.create_task(self._watch_engine(engine))

    async def start_trainer(self, state: CellState) -> None:
        """Raises TrainerCallError."""
        self.logs_dir.mkdir(parents=True, exist_ok=True)
        trainer = self._new_trainer(state)
        self.trainer, self._deadlines = trainer, None
        await trainer.start(self.deadlines(state).start_s)
        self._watches["trainer"] = asyncio.create_task(self._watch_trainer(trainer))

    def _new_engine(self) -> EngineProcess:
        return EngineProcess(log_path=self.logs_dir / f"engine-{self._settings.cell}.log")

    def _new_courier(self) -> Courier:
        return Courier(self._settings.key_secret.get_secret_value(), self._settings.cell_host)

    def _new_trainer(self, state: CellState) -> TrainerGroup:
        """Raises TrainerGone: the cell's nodes do not hold its ranks."""
        settings, spec, job = self._settings, state.required_spec, state.job or ""
        layout = spec.training.layout
        # Another start's ranks must not be met: they may still be ending.
        start, meeting = uuid.uuid4().hex, None
        if layout.num_ranks > 1:
            prefix = f"cell/{settings.cell}/{start}"
            meeting = Meeting(host=settings.store_host, port=settings.store_port, prefix=prefix)
        launch = TrainerLaunch(
            cell=settings.cell,
            model_path=Path(spec.model.path),
            layout=layout,
            meeting=meeting,
            dtype=spec.training.precision,
            recompute=spec.training.recompute,
            threads=settings.trainer_threads,
            nice=settings.trainer_nice,
            tokens_per_s=_emulation(state).training_tokens_per_s,
        )
        try:
            homes = spread_ranks(layout, self.node_ranks)
        except LayoutDoesNotFit as error:
            raise TrainerGone(str(error)) from error
        ranks = [
            self._new_rank(node, launch.of_rank(rank, homes[:rank].count(node)), start, job)
            for rank, node in enumerate(homes)
        ]
        return TrainerGroup(ranks, self._pace)

    def _new_rank(self, node: int, launch: TrainerLaunch, start: str, job: str) -> Rank:
        settings = self._settings
        silence_s = settings.trainer_silence_s
        if node > 0:
            assert self._nodes is not None
            order = StartRank(start=start, job=job, control="", launch=launch)
            return RemoteRank(self._nodes, node, order, silence_s=silence_s)
        return TrainerProcess(
            launch,
            log_path=self.logs_dir / f"trainer-{settings.cell}.log",
            environment=trainer_environment(settings.key_secret.get_secret_value(), job),
            silence_s=silence_s,
        )

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

    async def end_trainer(self) -> None:
        """SIGKILL, and it is gone when this returns; that it ended is noted as a loss."""
        self.kill_trainer()
        if "trainer" in self._watches:
            await asyncio.wait({self._watches["trainer"]})

    async def memory(self) -> CellMemory:
        """Of both sides, now."""
        on_device = visible_device(os.environ) == "cuda"
        pid = self.engine.pid if self.engine else None
        return await cell_memory(pid, self.trainer, on_device=on_device)

    def kill_trainer(self) -> None:
        """SIGKILL; whoever waits for its answer is told that it is gone."""
        if self.trainer is not None:
            self.trainer.kill()

    async def stop(self) -> None:
        await self.forget("engine")
        await self.forget("trainer")
        await self.courier.close()

    def take_lost(self) -> ProcessLost | None:
        """The oldest unreported loss."""
        lost = self.lost.popleft() if self.lost else None
        if not self.lost:
            self.something_lost.clear()
        return lost

    async def _watch_engine(self, engine: EngineProcess) -> None:
        self._note("engine", ending(await engine.wait()))

    async def _watch_trainer(self, trainer: TrainerGroup) -> None:
        await trainer.wait()
        self._note("trainer", trainer.how_it_ended)

    def _note(self, which: Which, error: str) -> None:
        self.lost.append(ProcessLost(process=which, error=error))
        self.something_lost.set()


def _check_host(host: str, state: CellState) -> None:
    """An engine asks nobody for a key, and SGLang reads pickles from whoever connects. Raises
    EngineStartError."""
    allow_public = state.required_spec.weights.allow_public
    try:
        check_host(host, allow_public=allow_public)
    except (PublicAddress, OSError) as error:
        raise EngineStartError(f"the engine's address: {error}") from error


def _capacity(state: CellState) -> int:
    """Executions that this cell serves at a time."""
    cells = state.required_spec.cells
    return cells.pool_capacity if state.in_pool else cells.capacities[state.place]


def _emulation(state: CellState) -> EmulationSection:
    return state.required_spec.cells.emulation(state.place) or EmulationSection()
