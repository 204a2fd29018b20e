"""A trainer started from the job's weights or a checkpoint, taken back to one, and saved in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gyre.adapters.logging import get_logger
from gyre.cell_agent.deadlines import COMMAND_S
from gyre.cell_agent.reports import Report
from gyre.cell_agent.stepping.base import DutyFamily
from gyre.cell_agent.trainer.checkpoints.retention import checkpoint_name
from gyre.cell_agent.trainer.process.client import TrainerRefused
from gyre.contracts.events import cells as cell_events
from gyre.core.cell import CellState, orders
from gyre.core.cell.state import Version

# How long one question about a save that goes on may hold the agent up.
STATUS_WAIT_S = 0.5
# Refusals that say: nothing was written, the trainer is as it was.
SAVE_FAILURES = ("no_space", "checkpoint_error")


class CheckpointDuties(DutyFamily):
    async def start_trainer(self, duty: orders.StartTrainer, state: CellState) -> list[Report]:
        spec = state.required_spec
        await self._processes.start_trainer(state)
        await self._trainer.call(
            "configure",
            COMMAND_S,
            job=state.job,
            objective=spec.objective.model_dump(),
            optimizer=spec.optimizer.model_dump(),
        )
        await self._load(duty.path, duty.version, state)
        if state.role != "training":
            # The engine has the memory.
            await self._trainer.call(
                "offload", self._processes.deadlines(state).state_s, directory=self.parked
            )
        self._held.trainer_version = duty.version
        self._held.world_epoch = 0
        pid, pids = self._trainer.pid, self._trainer.pids
        return [Report(body=cell_events.TrainerReady(cell=state.cell, pid=pid, pids=pids))]

    async def restore_core(self, duty: orders.RestoreCore, state: CellState) -> list[Report]:
        await self._trainer.call("drop_accumulation", self._processes.deadlines(state).drop_s)
        await self._load(duty.path, duty.version, state)
        self._drop_accumulation()
        self._held.trainer_version = duty.version
        return []

    async def _load(self, path: str | None, version: Version, state: CellState) -> None:
        """Weights, and on a checkpoint the optimizer's state too. Raises TrainerCallError."""
        lineage, number = version
        limits = self._processes.deadlines(state)
        if path is None:
            await self._trainer.call(
                "load_weights",
                limits.weights_s,
                path=state.required_spec.model.path,
                version=number,
                lineage=lineage,
            )
        else:
            await self._trainer.call(
                "load_checkpoint",
                limits.state_s,
                directory=path,
                lineage=lineage,
                optimizer=state.is_core,
            )

    async def save_checkpoint(self, duty: orders.SaveCheckpoint, state: CellState) -> list[Report]:
        section = state.required_spec.training.checkpoint
        return await self._saved(
            duty.version,
            state,
            "save_checkpoint",
            self._processes.deadlines(state).save_s,
            keep=section.keep,
            protected=self._needed(state),
            asynchronous=section.asynchronous,
        )

    async def await_checkpoint(
        self, duty: orders.AwaitCheckpoint, state: CellState
    ) -> list[Report]:
        return await self._saved(
            duty.version, state, "checkpoint_status", COMMAND_S, wait_s=STATUS_WAIT_S
        )

    async def _saved(
        self, name: Version, state: CellState, command: str, timeout_s: float, **arguments: Any
    ) -> list[Report]:
        """What there is to say of this save now: nothing while it goes on. One that failed costs
        the trainer nothing: it still holds the weights, and saves them when the job is resumed."""
        lineage, version = name
        directory = self._checkpoints(state) / checkpoint_name(lineage, version)
        self._held.saving = None
        try:
            answer = await self._trainer.call(command, timeout_s, directory=directory, **arguments)
        except TrainerRefused as refused:
            if refused.kind not in SAVE_FAILURES:
                raise
            failed = cell_events.CheckpointFailed(
                cell=state.cell, version=version, lineage=lineage, error=refused.message
            )
            get_logger().warning("checkpoint_failed", directory=str(directory), error=failed.error)
            return [Report(body=failed)]
        if not answer["done"]:
            self._held.saving = name
            return []
        body = cell_events.CheckpointSaved(
            version=version, lineage=lineage, path=answer["path"], checksum=answer["sha256"]
        )
        return [Report(body=body)]

    def _needed(self, state: CellState) -> list[Path]:
        """Checkpoints that somebody may still be sent to, or serves."""
        directory = self._checkpoints(state)
        served = {directory / checkpoint_name(*version) for version in state.serving.values()}
        named = {state.checkpoint.path if state.checkpoint is not None else None}
        named.add(state.published_path)
        return sorted(served | {Path(path) for path in named if path is not None})

    def _checkpoints(self, state: CellState) -> Path:
        return self._settings.home / "checkpoints" / (state.job or "")
