"""A batch on this cell: joined, its micro-steps claimed and trained, finished."""

from __future__ import annotations

import math
import time
from typing import Any

from gyre.adapters.blob_fetch import blob_source
from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.failpoints import failpoint
from gyre.adapters.logging import get_logger
from gyre.cell_agent.phases import PhaseFailed, Phases
from gyre.cell_agent.processes import CellProcesses
from gyre.cell_agent.reports import Report
from gyre.cell_agent.settings import CellAgentSettings
from gyre.cell_agent.step_records import step_record
from gyre.cell_agent.stepping.base import DutyFamily
from gyre.cell_agent.trainer.process.client import TrainerRefused
from gyre.contracts import subjects
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import steps as step_events
from gyre.core.cell import CellState, Holdings, orders
from gyre.core.cell.state import Exposure


class BatchDuties(DutyFamily):
    def __init__(
        self, settings: CellAgentSettings, processes: CellProcesses, held: Holdings
    ) -> None:
        super().__init__(settings, processes, held)
        self._blobs = DirectoryBlobStore(settings.blobs_dir)
        self._batch_started = time.monotonic()

    async def join_batch(self, duty: orders.JoinBatch, state: CellState) -> list[Report]:
        # No role change: the job's limit on those is not this one's.
        phases = Phases(self._processes.memory, self._processes.deadlines(state), math.inf)
        try:
            return await self._join(duty, state, phases)
        except PhaseFailed as failed:
            # Nothing to undo: the trainer is to blame, and ends.
            raise failed.cause from failed

    async def _join(self, duty: orders.JoinBatch, state: CellState, phases: Phases) -> list[Report]:
        lineage, version = duty.batch.version
        limits = self._processes.deadlines(state)
        await self._trainer.call("restore", limits.state_s)
        if duty.pull is not None:
            await self._trainer.call("drop_accumulation", limits.drop_s)
            async with phases("pull_weights"):
                if not await self._pull(duty, duty.pull, state):
                    return []
        async with phases("register"):
            await self._trainer.call(
                "begin_batch", limits.drop_s, batch=duty.batch.batch, version=version
            )
        self._held.trainer_version = duty.batch.version
        self._held.accumulating = duty.batch.batch
        self._held.trained = set()
        self._batch_started = time.monotonic()
        body = cell_events.BatchJoined(
            cell=state.cell,
            batch=duty.batch.batch,
            version=version,
            lineage=lineage,
            phases=tuple(phases.records),
        )
        return [Report(body=body)]

    async def _pull(self, duty: orders.JoinBatch, source: Exposure, state: CellState) -> bool:
        """The batch's weights from the core. False: they are not to be had, now or any more."""
        lineage, version = duty.batch.version
        try:
            await self._trainer.call(
                "pull_weights",
                self._processes.deadlines(state).pull_s,
                host=source.host,
                port=source.port,
                version=version,
                lineage=lineage,
                transport=source.transport,
                allow_public=state.required_spec.weights.allow_public,
            )
        except TrainerRefused as refused:
            if refused.kind != "weights_unavailable":
                raise
            if state.cell in duty.batch.joined:
                # The others count on us: better a dead trainer, which the log tells them of.
                raise
            # The step closed without us, or the core is gone: the log will say which. If neither,
            # they are asked for again.
            self._held.missed = (duty.batch.batch, duty.num_missed + 1)
            get_logger().warning("weights_missed", batch=duty.batch.batch, error=refused.message)
            return False
        return True

    def claim(self, duty: orders.ClaimMicroStep, state: CellState) -> list[Report]:
        body = step_events.MicroStepClaimed(
            batch=duty.batch.batch, index=duty.index, cell=state.cell, epoch=duty.epoch
        )
        subject = subjects.batch_claims(state.job or "", duty.batch.batch)
        return [Report(body=body, subject=subject, expected=duty.batch.claims_sequence)]

    async def train(self, duty: orders.TrainMicroStep, state: CellState) -> list[Report]:
        failpoint("cell_agent.after_claim")
        source = blob_source(self._settings.blobs_url, self._blobs, duty.digest)
        limit_s = self._processes.deadlines(state).step_s
        try:
            await self._trainer.call("submit_step", limit_s, source=source, digest=duty.digest)
        except TrainerRefused as refused:
            if refused.kind != "body_unavailable":
                raise
            # The claim stands, and so does what is accumulated: it is asked for again.
            get_logger().warning("micro_step_unavailable", source=source, error=refused.message)
            return []
        if duty.alone:
            await self._trainer.call("flush_steps", limit_s)
        self._held.trained.add(duty.index)
        return []

    async def finish(self, duty: orders.FinishBatch, state: CellState) -> list[Report]:
        batch = duty.batch
        ranks = [state.world.index(member) for member in duty.members]
        try:
            answer = await self._trainer.call(
                "finish_batch",
                self._processes.deadlines(state).finish_s,
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
        self, duty: orders.FinishBatch, state: CellState, answer: dict[str, Any]
    ) -> Report:
        batch = duty.batch
        lineage, _ = batch.version
        owners = tuple(
            step_events.MicroStepOwner(index=index, cell=cell, epoch=epoch)
            for index, (cell, epoch) in sorted(batch.owners.items())
        )
        statistics = step_events.StepStatistics(
            **answer["statistics"],
            grad_norm=answer["grad_norm"],
            lr=answer["lr"],
            seconds=time.monotonic() - self._batch_started,
        )
        body = step_events.StepCompleted(
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

    def _leave_world(self, epoch: int) -> None:
        self._drop_accumulation()
        self._held.world_epoch = 0
        self._held.broken_epoch = epoch
