"""A trainer started from the job's weights or a checkpoint, taken back to one, and saved in one."""

from __future__ import annotations

from pathlib import Path

from gyre.cell_agent.reports import Report
from gyre.cell_agent.stepping.base import LONG_S, SHORT_S, DutyFamily
from gyre.contracts.events import cells as cell_events
from gyre.core.cell import CellState, duties
from gyre.core.cell.state import Version


class CheckpointDuties(DutyFamily):
    async def start_trainer(self, duty: duties.StartTrainer, state: CellState) -> list[Report]:
        spec = state.required_spec
        await self._processes.start_trainer(state)
        await self._trainer.call(
            "configure",
            SHORT_S,
            job=state.job,
            objective=spec.objective.model_dump(),
            optimizer=spec.optimizer.model_dump(),
        )
        await self._load(duty.path, duty.version, state)
        self._held.trainer_version = duty.version
        self._held.world_epoch = 0
        return [Report(body=cell_events.TrainerReady(cell=state.cell, pid=self._trainer.pid))]

    async def restore_core(self, duty: duties.RestoreCore, state: CellState) -> list[Report]:
        await self._trainer.call("drop_accumulation", SHORT_S)
        await self._load(duty.path, duty.version, state)
        self._drop_accumulation()
        self._held.trainer_version = duty.version
        return []

    async def _load(self, path: str | None, version: Version, state: CellState) -> None:
        """Weights, and on a checkpoint the optimizer's state too. Raises TrainerCallError."""
        lineage, number = version
        if path is None:
            await self._trainer.call(
                "load_weights",
                SHORT_S,
                path=state.required_spec.model.path,
                version=number,
                lineage=lineage,
            )
        else:
            await self._trainer.call("load_checkpoint", SHORT_S, directory=path, lineage=lineage)

    async def save_checkpoint(self, duty: duties.SaveCheckpoint, state: CellState) -> list[Report]:
        lineage, version = duty.version
        directory = self._checkpoints(state) / f"l{lineage}-v{version:05d}"
        directory.parent.mkdir(parents=True, exist_ok=True)
        answer = await self._trainer.call("save_checkpoint", LONG_S, directory=directory)
        body = cell_events.CheckpointSaved(
            version=version, lineage=lineage, path=answer["path"], checksum=answer["sha256"]
        )
        return [Report(body=body)]

    def _checkpoints(self, state: CellState) -> Path:
        return self._settings.home / "checkpoints" / (state.job or "")
