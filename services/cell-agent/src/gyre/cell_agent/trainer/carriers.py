"""What the trainer holds and hands back, apart from what it does."""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre.cell_agent.trainer.batch_record import BatchRecord
from gyre.cell_agent.trainer.optimizer import Update


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsName:
    """Which weights: number of updates, within a lineage."""

    version: int
    lineage: int


@dataclass(slots=True, kw_only=True)
class OpenBatch:
    """The batch under accumulation. Mutated by `micro_step` alone."""

    batch: str
    accumulated: list[int] = field(default_factory=list)
    record: BatchRecord = field(default_factory=BatchRecord)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedBatch:
    """version: the batch's policy version plus one, whether or not the batch was applied.
    record: of all cells. update: the core's. lost: why the broadcast after the update failed; the
    update stands."""

    version: int
    record: BatchRecord
    update: Update | None
    lost: str | None
