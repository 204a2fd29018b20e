"""Duties done: each becomes calls of the engine or the trainer, and facts to say.

A failure of either process surfaces as ProcessLost. What misbehaved is killed: a process in an
unknown state is worth less than a new one, and all it held is in the log or durable.
"""

from __future__ import annotations

import time

from gyre.cell_agent.engine.base import EngineError
from gyre.cell_agent.engine.process import EngineStartError
from gyre.cell_agent.processes import CellProcesses
from gyre.cell_agent.reports import ProcessLost, Report
from gyre.cell_agent.roles import drain, load_while_serving, serve_again
from gyre.cell_agent.settings import CellAgentSettings
from gyre.cell_agent.stepping import Stepping
from gyre.cell_agent.trainer.client import TrainerCallError
from gyre.contracts.events import cells as cell_events
from gyre.core.cell import CellState, Duty, Holdings, duties
from gyre.core.cell.state import Version


class Performer:
    """Drives the two processes. `held` is what they hold; only the performer changes it."""

    def __init__(self, settings: CellAgentSettings, processes: CellProcesses) -> None:
        self.processes = processes
        self.held = Holdings()
        self._stepping = Stepping(settings, self.processes, self.held)

    async def perform(self, duty: Duty, state: CellState) -> list[Report]:
        """Do it and return what is to be said, in order. Raises ProcessLost."""
        try:
            return await self._dispatch(duty, state)
        except (EngineError, EngineStartError) as error:
            raise ProcessLost(process="engine", error=str(error)) from error
        except TrainerCallError as error:
            raise ProcessLost(process="trainer", error=str(error)) from error

    async def forget(self, lost: ProcessLost) -> None:
        """The process is gone: end what is left of it, and hold nothing of it any more."""
        await self.processes.forget(lost.process)
        if lost.process == "engine":
            self.held.engine_version = None
            self.held.engine_paused = False
            return
        self.held.trainer_version = None
        self.held.world_epoch = 0
        self.held.exposed = None
        self.held.accumulating = None
        self.held.trained = set()

    async def _dispatch(self, duty: Duty, state: CellState) -> list[Report]:
        match duty:
            case duties.StopJob():
                return await self._stop_job(state)
            case duties.StartEngine():
                await self.processes.start_engine(state, duty.path, duty.version)
                self.held.engine_version = duty.version
                return []
            case duties.ReportRollout():
                return [self._role(state, "rollout", duty.version, 0.0)]
            case duties.LoadWeights():
                return await self._load_weights(duty, state)
            case duties.EnterTraining():
                return await self._enter_training(state)
            case duties.ReturnToRollout():
                return await self._return_to_rollout(duty, state)
            case duties.Publish():
                return self._publish(duty)
            case _:
                return await self._train(duty, state)

    async def _train(self, duty: Duty, state: CellState) -> list[Report]:
        match duty:
            case duties.StartTrainer():
                return await self._stepping.start_trainer(duty, state)
            case duties.RestoreCore():
                return await self._stepping.restore_core(duty, state)
            case duties.AwaitWorld():
                return await self._stepping.await_world(duty, state)
            case duties.ReportBroken():
                return [self._world_broken(duty, state)]
            case duties.FormWorld():
                return await self._stepping.form_world(duty, state)
            case duties.ExposeWeights():
                return await self._stepping.expose(duty, state)
            case duties.JoinBatch():
                return await self._stepping.join_batch(duty, state)
            case duties.ClaimMicroStep():
                return self._stepping.claim(duty, state)
            case duties.TrainMicroStep():
                return await self._stepping.train(duty, state)
            case duties.FinishBatch():
                return await self._stepping.finish(duty, state)
            case duties.SaveCheckpoint():
                return await self._stepping.save_checkpoint(duty, state)
            case _:
                raise TypeError(f"no way to perform {duty!r}")

    async def _load_weights(self, duty: duties.LoadWeights, state: CellState) -> list[Report]:
        await load_while_serving(self.processes.live_engine.client, duty.checkpoint)
        self.held.engine_version = duty.checkpoint.version
        lineage, version = duty.checkpoint.version
        body = cell_events.WeightsLoaded(
            cell=state.cell, version=version, lineage=lineage, checksum=duty.checkpoint.checksum
        )
        return [Report(body=body)]

    async def _enter_training(self, state: CellState) -> list[Report]:
        started = time.monotonic()
        deadline = state.required_spec.schedule.transition_deadline_s
        await drain(
            self.processes.live_engine.client,
            deadline,
            switch=state.switch,
            num_moved=state.num_moved,
        )
        self.held.engine_paused = True
        await self._stepping.restore_buffers()
        version = self.held.engine_version or state.published
        return [self._role(state, "training", version, time.monotonic() - started)]

    async def _return_to_rollout(
        self, duty: duties.ReturnToRollout, state: CellState
    ) -> list[Report]:
        started = time.monotonic()
        await self._stepping.offload()
        if self.processes.engine is None:
            path = state.checkpoint.path if state.checkpoint else None
            await self.processes.start_engine(state, path, duty.version)
        elif self.held.engine_paused:
            await serve_again(self.processes.live_engine.client, duty.checkpoint)
        elif duty.checkpoint is not None:
            await load_while_serving(self.processes.live_engine.client, duty.checkpoint)
        self.held.engine_paused = False
        self.held.engine_version = duty.version
        return [self._role(state, "rollout", duty.version, time.monotonic() - started)]

    def _world_broken(self, duty: duties.ReportBroken, state: CellState) -> Report:
        why = "a peer died" if duty.explained else "no peer is known to have died"
        return Report(
            body=cell_events.WorldBroken(
                cell=state.cell, epoch=duty.epoch, error=f"collective failed: {why}"
            )
        )

    def _publish(self, duty: duties.Publish) -> list[Report]:
        lineage, version = duty.checkpoint.version
        body = cell_events.WeightsPublished(
            version=version,
            lineage=lineage,
            path=duty.checkpoint.path,
            confirmed_by=duty.confirmed_by,
        )
        return [Report(body=body)]

    async def _stop_job(self, state: CellState) -> list[Report]:
        await self.processes.stop()
        self.held.clear()
        return [self._role(state, "offline", state.published, 0.0)]

    def _role(
        self, state: CellState, role: cell_events.CellRole, version: Version, seconds: float
    ) -> Report:
        engine, trainer = self.processes.engine, self.processes.trainer
        lineage, number = version
        body = cell_events.RoleChanged(
            cell=state.cell,
            role=role,
            version=number,
            lineage=lineage,
            engine_url=engine.client.base_url if engine is not None else None,
            duration_s=seconds,
            engine_pid=engine.pid if engine is not None else None,
            trainer_pid=trainer.pid if trainer is not None else None,
        )
        return Report(body=body)
