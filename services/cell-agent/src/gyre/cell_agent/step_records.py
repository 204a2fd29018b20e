"""A step's executions, as the blob that `step_completed` names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gyre.contracts.step_record import ExecutionRecord, StepRecord
from gyre.core.cell.state import OpenBatch


def step_record(batch: OpenBatch, answer: Mapping[str, Any]) -> bytes:
    """answer: of the core's `finish_batch`. Equal answers give equal bytes."""
    lineage, _ = batch.version
    record = StepRecord(
        batch=batch.batch,
        step=batch.step,
        version=answer["version"],
        lineage=lineage,
        executions=tuple(
            ExecutionRecord(cell=batch.owners[one["micro_step"]][0], **one)
            for one in answer["executions"]
        ),
    )
    return record.model_dump_json().encode()
