"""What the service says: the events that it appends, each on its aggregate's subject behind the
last one that was folded of it, so that a second writer conflicts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from gyre.adapters.blobs import BlobStore
from gyre.adapters.failpoints import failpoint
from gyre.adapters.journal import Journal
from gyre.adapters.logging import get_logger
from gyre.adapters.microsteps import encode_microstep
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events.groups import (
    ExecutionQuarantined,
    GroupClaimed,
    GroupReady,
    MicroStepEmitted,
    StreamClosed,
)
from gyre.core.groups import Batch, Group, JobGroups
from gyre.core.microstep import MicroStep
from gyre.trajectory.workbench import Chosen, Workbench


@dataclass(slots=True, kw_only=True)
class Job:
    """last_event: id of the last fact folded, the cause of what is appended next."""

    groups: JobGroups
    workbench: Workbench | None = None
    last_event: str = ""


class Statements:
    """Each method appends one event and returns its sequence; a micro-step's blob is written and
    synced before. Raises SequenceConflict: another writer is on our subject, and a restart folds
    anew."""

    def __init__(self, journal: Journal, blobs: BlobStore) -> None:
        self._journal = journal
        self._blobs = blobs

    async def quarantined(self, job: Job, body: ExecutionQuarantined) -> int:
        sequence = await self._to_group(job, body.group, body, body.execution)
        get_logger().error(
            "execution_quarantined",
            job=job.groups.job,
            execution=body.execution,
            error=body.error,
        )
        return sequence

    async def ready(self, job: Job, ready: GroupReady) -> int:
        sequence = await self._to_group(job, ready.group, ready)
        get_logger().info(
            "group_ready",
            job=job.groups.job,
            group=ready.group,
            rewards=[one.reward for one in ready.outcomes],
            zero_weight=ready.zero_weight,
        )
        return sequence

    async def claim(self, job: Job, group: Group, batch: Batch) -> int:
        body = GroupClaimed(group=group.group, batch=batch.batch)
        sequence = await self._to_group(job, group.group, body, batch.batch)
        failpoint("trajectory.after_claim")
        return sequence

    async def micro_step(
        self, job: Job, micro_step: MicroStep, batch: Batch, chosen: Chosen
    ) -> int:
        """chosen: of its executions."""
        payload = await asyncio.to_thread(encode_microstep, micro_step)
        digest = await asyncio.to_thread(self._blobs.put, payload)
        body = MicroStepEmitted(
            batch=batch.batch,
            index=micro_step.index,
            digest=digest,
            executions=tuple(info.execution for info in micro_step.executions),
            num_rows=len(micro_step.rows),
            row_tokens=micro_step.row_tokens,
            num_tokens=micro_step.num_tokens,
            num_targets=micro_step.num_targets,
            num_paths=micro_step.num_paths,
            num_path_tokens=micro_step.num_path_tokens,
            num_repeated_tokens=micro_step.num_repeated_tokens,
            num_admitted_targets=chosen.num_targets,
            num_paths_too_long=chosen.num_paths_too_long,
        )
        sequence = await self._to_stream(job, batch, body, micro_step.index)
        get_logger().info(
            "micro_step_emitted",
            job=job.groups.job,
            batch=batch.batch,
            index=body.index,
            num_tokens=body.num_tokens,
            fill=round(body.num_tokens / (body.num_rows * body.row_tokens), 4),
        )
        return sequence

    async def closed(self, job: Job, batch: Batch, workbench: Workbench) -> int:
        chosen = await workbench.chosen()
        body = StreamClosed(
            batch=batch.batch,
            groups=tuple(group.group for group in batch.groups),
            num_micro_steps=batch.num_micro_steps,
            num_targets=batch.num_targets,
            num_paths_too_long=chosen.num_paths_too_long,
            num_admitted_targets=chosen.num_targets,
        )
        return await self._to_stream(job, batch, body, batch.num_micro_steps)

    async def _to_group(self, job: Job, name: str, body: Body, *cause: str) -> int:
        return await self._append(
            job,
            subjects.group(job.groups.job, name),
            body,
            (name, *cause),
            expected=job.groups.groups[name].last_sequence,
        )

    async def _to_stream(self, job: Job, batch: Batch, body: Body, index: int) -> int:
        return await self._append(
            job,
            subjects.batch_stream(job.groups.job, batch.batch),
            body,
            (batch.batch, index),
            expected=batch.last_sequence,
        )

    async def _append(
        self, job: Job, subject: str, body: Body, cause: tuple[str | int, ...], *, expected: int
    ) -> int:
        sequence = await self._journal.append(
            subject,
            body,
            job=job.groups.job,
            cause=(job.groups.job, *cause),
            expected=expected,
            causation=job.last_event,
        )
        failpoint("trajectory.after_append")
        return sequence
