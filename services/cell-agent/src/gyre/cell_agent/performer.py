"""Duties done: each becomes calls of the engine or the trainer, and facts to say.

A failure of either process surfaces as ProcessLost. What misbehaved is killed: a process in an
unknown state is worth less than a new one, and all it held is in the log or durable.
"""

from __future__ import annotations

from gyre.cell_agent.engine.base import EngineError
from gyre.cell_agent.engine.launch import EngineStartError
from gyre.cell_agent.processes import CellProcesses
from gyre.cell_agent.reports import ProcessLost, Report
from gyre.cell_agent.roles import RoleDuties
from gyre.cell_agent.settings import CellAgentSettings
from gyre.cell_agent.stepping.batches import BatchDuties
from gyre.cell_agent.stepping.checkpoints import CheckpointDuties
from gyre.cell_agent.stepping.publishing import PublishingDuties
from gyre.cell_agent.stepping.worlds import WorldDuties
from gyre.cell_agent.trainer.process.client import TrainerCallError
from gyre.core.cell import CellState, Duty, Holdings, orders


class Performer:
    """Drives the two processes. `held` is what they hold; only the families of duties change it."""

    def __init__(self, settings: CellAgentSettings, processes: CellProcesses) -> None:
        self.processes = processes
        self.held = Holdings()
        self._roles = RoleDuties(settings, processes, self.held)
        self._worlds = WorldDuties(settings, processes, self.held)
        self._batches = BatchDuties(settings, processes, self.held)
        self._checkpoints = CheckpointDuties(settings, processes, self.held)
        self._publishing = PublishingDuties(settings, processes, self.held)

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
            case orders.StopJob():
                return await self._roles.stop_job(state)
            case orders.StartEngine():
                return await self._roles.start_engine(duty, state)
            case orders.ReportRollout():
                return self._roles.report_rollout(duty, state)
            case orders.EnterTraining():
                return await self._roles.enter_training(state)
            case orders.ReturnToRollout():
                return await self._roles.return_to_rollout(duty, state)
            case orders.ExposeWeights():
                return await self._publishing.expose(duty, state)
            case orders.OfferCheckpoint():
                return await self._publishing.offer(duty, state)
            case orders.LoadWeights():
                return await self._publishing.load_weights(duty, state)
            case orders.Publish():
                return self._publishing.publish(duty)
            case _:
                return await self._train(duty, state)

    async def _train(self, duty: Duty, state: CellState) -> list[Report]:
        match duty:
            case orders.StartTrainer():
                return await self._checkpoints.start_trainer(duty, state)
            case orders.RestoreCore():
                return await self._checkpoints.restore_core(duty, state)
            case orders.SaveCheckpoint():
                return await self._checkpoints.save_checkpoint(duty, state)
            case orders.AwaitCheckpoint():
                return await self._checkpoints.await_checkpoint(duty, state)
            case orders.AwaitWorld():
                return await self._worlds.await_world(duty, state)
            case orders.FormWorld():
                return await self._worlds.form_world(duty, state)
            case orders.ReportBroken():
                return self._worlds.report_broken(duty, state)
            case orders.JoinBatch():
                return await self._batches.join_batch(duty, state)
            case orders.ClaimMicroStep():
                return self._batches.claim(duty, state)
            case orders.TrainMicroStep():
                return await self._batches.train(duty, state)
            case orders.FinishBatch():
                return await self._batches.finish(duty, state)
            case _:
                raise TypeError(f"no way to perform {duty!r}")
