"""What the trainer holds and hands back, apart from what it does."""

from __future__ import annotations

from dataclasses import dataclass

from gyre.cell_agent.trainer.batch.batch_record import BatchRecord
from gyre.cell_agent.trainer.optimizer import Update


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsName:
    """Which weights: number of updates, within a lineage."""

    version: int
    lineage: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedBatch:
    """version: the batch's policy version plus one, whether or not the batch was applied.
    record: of all cells. update: the core's. lost: why the broadcast after the update failed; the
    update stands. num_warmups: times that this cell's pipeline was filled."""

    version: int
    record: BatchRecord
    update: Update | None
    lost: str | None
    num_warmups: int
