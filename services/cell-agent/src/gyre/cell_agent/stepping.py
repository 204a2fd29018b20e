"""The trainer's side: worlds, batches, micro-steps, the step, checkpoints."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.failpoints import failpoint
from gyre.adapters.logging import get_logger
from gyre.cell_agent.processes import CellProcesses
from gyre.cell_agent.reports import ProcessLost, Report
from gyre.cell_agent.settings import CellAgentSettings
from gyre.cell_agent.step_records import step_record
from gyre.cell_agent.trainer.client import TrainerRefused
from gyre.contracts import subjects
from gyre.contracts.events import cells as cell_events
from gyre.core.cell import CellState, Holdings, duties
from gyre.core.cell.state import Version

# A command that only moves memory or reads a local file.
SHORT_S = 60.0
# One micro-step, or writing a checkpoint.
LONG_S = 240.0
# Members come to a world, and to a reduction, within the time of their current micro-step; a peer
# is taken for lost only after longer than that.
WORLD_S = 300.0


class Stepping:
    """Performs the duties that concern the trainer; mutates `held` accordingly."""

    def __init__(
        self, settings: CellAgentSettings, processes: CellProcesses, held: Holdings
    ) -> None:
        self._settings = settings
        self._processes = processes
        self._held = held
        self._blobs = DirectoryBlobStore(settings.blobs_dir)
        self._batch_started = time.monotonic()

    async def start_trainer(self, duty: duties.StartTrainer, state: CellState) -> list[Report]:
        spec = state.required_spec
        await self._processes.start_trainer(state)
        trainer = self._processes.live_trainer
        await trainer.call(
            "configure",
            SHORT_S,
            job=state.job,
            objective=spec.objective.model_dump(),
            optimizer=spec.optimizer.model_dump(),
        )
        await self._load(duty.path, duty.version, state)
        self._held.trainer_version = duty.version
        self._held.world_epoch = 0
        return [Report(body=cell_events.TrainerReady(cell=state.cell, pid=trainer.pid))]

    async def _load(self, path: str | None, version: Version, state: CellState) -> None:
        """Weights, and on a checkpoint the optimizer's state too. Raises TrainerCallError."""
        trainer = self._processes.live_trainer
        lineage, number = version
        if path is None:
            await trainer.call(
                "load_weights",
                SHORT_S,
                path=state.required_spec.model.path,
                version=number,
                lineage=lineage,
            )
        else:
            await trainer.call("load_checkpoint", SHORT_S, directory=path, lineage=lineage)

    async def restore_core(self, duty: duties.RestoreCore, state: CellState) -> list[Report]:
        await self._processes.live_trainer.call("drop_accumulation", SHORT_S)
        await self._load(duty.path, duty.version, state)
        self._drop_accumulation()
        self._held.trainer_version = duty.version
        return []

    async def await_world(self, duty: duties.AwaitWorld, state: CellState) -> list[Report]:
        """Out of the old world first: a member still in one of its collectives may be waiting for
        this cell alone, and would not hear of the new world before its time-out."""
        self._drop_accumulation()
        self._held.world_epoch = 0
        await self._processes.live_trainer.call("leave_world", SHORT_S)
        return [Report(body=cell_events.WorldReady(cell=state.cell, epoch=duty.epoch))]

    async def form_world(self, duty: duties.FormWorld, state: CellState) -> list[Report]:
        """Leaving the old world drops the accumulation too; owned micro-steps are done again."""
        self._drop_accumulation()
        self._held.world_epoch = 0
        try:
            await self._processes.live_trainer.call(
                "form_world",
                WORLD_S + SHORT_S,
                epoch=duty.epoch,
                rank=duty.rank,
                size=duty.size,
                timeout_s=WORLD_S,
                store_host=self._settings.store_host,
                store_port=self._settings.store_port,
            )
        except TrainerRefused as refused:
            if refused.kind != "peer_lost":
                raise
            self._held.broken_epoch = duty.epoch
            return []
        self._held.world_epoch = duty.epoch
        return [Report(body=cell_events.WorldJoined(cell=state.cell, epoch=duty.epoch))]

    async def expose(self, duty: duties.ExposeWeights, state: CellState) -> list[Report]:
        answer = await self._processes.live_trainer.call(
            "serve_weights", SHORT_S, host=self._settings.cell_host
        )
        self._held.exposed = duty.version
        lineage, version = duty.version
        body = cell_events.WeightsExposed(
            cell=state.cell,
            version=version,
            lineage=lineage,
            host=answer["host"],
            port=answer["port"],
            checksum=answer["checksum"],
        )
        return [Report(body=body)]

    async def join_batch(self, duty: duties.JoinBatch, state: CellState) -> list[Report]:
        trainer = self._processes.live_trainer
        lineage, version = duty.batch.version
        await trainer.call("restore", SHORT_S)
        if duty.pull is not None:
            await trainer.call("drop_accumulation", SHORT_S)
            try:
                await trainer.call(
                    "pull_weights",
                    SHORT_S,
                    host=duty.pull.host,
                    port=duty.pull.port,
                    version=version,
                    lineage=lineage,
                )
            except TrainerRefused as refused:
                if refused.kind != "weights_unavailable":
                    raise
                if state.cell in duty.batch.joined:
                    # The others count on us: better a dead trainer, which the log tells them of.
                    raise
                # The step closed without us, or the core is gone: the log will say which.
                self._held.missed = duty.batch.batch
                return []
        await trainer.call("begin_batch", SHORT_S, batch=duty.batch.batch, version=version)
        self._held.trainer_version = duty.batch.version
        self._held.accumulating = duty.batch.batch
        self._held.trained = set()
        self._batch_started = time.monotonic()
        body = cell_events.BatchJoined(
            cell=state.cell, batch=duty.batch.batch, version=version, lineage=lineage
        )
        return [Report(body=body)]

    def claim(self, duty: duties.ClaimMicroStep, state: CellState) -> list[Report]:
        body = cell_events.MicroStepClaimed(
            batch=duty.batch.batch, index=duty.index, cell=state.cell, epoch=duty.epoch
        )
        subject = subjects.batch_claims(state.job or "", duty.batch.batch)
        return [Report(body=body, subject=subject, expected=duty.batch.claims_sequence)]

    async def train(self, duty: duties.TrainMicroStep, state: CellState) -> list[Report]:
        failpoint("cell_agent.after_claim")
        await self._processes.live_trainer.call(
            "micro_step", LONG_S, path=self._blobs.path(duty.digest), digest=duty.digest
        )
        self._held.trained.add(duty.index)
        return []

    async def finish(self, duty: duties.FinishBatch, state: CellState) -> list[Report]:
        batch = duty.batch
        ranks = [state.world.index(member) for member in duty.members]
        try:
            answer = await self._processes.live_trainer.call(
                "finish_batch",
                WORLD_S + LONG_S,
                members=ranks,
                epoch=batch.member_epoch,
                final=batch.final,
            )
        except TrainerRefused as refused:
            if refused.kind != "peer_lost":
                raise
            self._leave_world(batch.member_epoch)
            if not state.is_core and not batch.final:
                # The broadcast may have come half way: these weights have no name any more.
                self._held.trainer_version = (0, 0)
            return []
        self._drop_accumulation()
        self._held.finished = (batch.batch, batch.member_epoch)
        lineage, _ = batch.version
        held = answer["weights_version"]
        self._held.trainer_version = (lineage, held) if held is not None else (0, 0)
        if not state.is_core:
            return []
        if answer["broadcast_lost"]:
            self._leave_world(batch.member_epoch)
        return [self._step_completed(duty, state, answer)]

    def _step_completed(
        self, duty: duties.FinishBatch, state: CellState, answer: dict[str, Any]
    ) -> Report:
        batch = duty.batch
        lineage, _ = batch.version
        owners = tuple(
            cell_events.MicroStepOwner(index=index, cell=cell, epoch=epoch)
            for index, (cell, epoch) in sorted(batch.owners.items())
        )
        statistics = cell_events.StepStatistics(
            **answer["statistics"],
            grad_norm=answer["grad_norm"],
            lr=answer["lr"],
            seconds=time.monotonic() - self._batch_started,
        )
        body = cell_events.StepCompleted(
            batch=batch.batch,
            step=batch.step,
            version=answer["version"],
            lineage=lineage,
            epoch=batch.member_epoch,
            members=duty.members,
            micro_steps=owners,
            statistics=statistics,
            skipped=answer["skipped"],
            skip_reason=answer["skip_reason"],
            record=self._blobs.put(step_record(batch, answer)),
        )
        if body.skipped:
            get_logger().warning("step_skipped", batch=batch.batch, reason=body.skip_reason)
        return Report(body=body)

    async def save_checkpoint(self, duty: duties.SaveCheckpoint, state: CellState) -> list[Report]:
        lineage, version = duty.version
        directory = self._checkpoints(state) / f"l{lineage}-v{version:05d}"
        directory.parent.mkdir(parents=True, exist_ok=True)
        trainer = self._processes.live_trainer
        answer = await trainer.call("save_checkpoint", LONG_S, directory=directory)
        body = cell_events.CheckpointSaved(
            version=version, lineage=lineage, path=answer["path"], checksum=answer["sha256"]
        )
        return [Report(body=body)]

    def _checkpoints(self, state: CellState) -> Path:
        return self._settings.home / "checkpoints" / (state.job or "")

    async def offload(self) -> None:
        trainer = self._processes.live_trainer
        await trainer.call("drop_accumulation", SHORT_S)
        self._drop_accumulation()
        await trainer.call("offload", SHORT_S)

    async def restore_buffers(self) -> None:
        await self._processes.live_trainer.call("restore", SHORT_S)

    def _leave_world(self, epoch: int) -> None:
        self._drop_accumulation()
        self._held.world_epoch = 0
        self._held.broken_epoch = epoch

    def _drop_accumulation(self) -> None:
        self._held.accumulating = None
        self._held.trained = set()


__all__ = ["ProcessLost", "Stepping"]
