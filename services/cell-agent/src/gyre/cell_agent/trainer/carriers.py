"""What the trainer holds and hands back, apart from what it does."""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre.cell_agent.trainer.optimizer import Update
from gyre.cell_agent.trainer.statistics import Totals


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
    totals: Totals = field(default_factory=Totals)
    max_abs_logprob_diff: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedBatch:
    """version: the batch's policy version plus one, whether or not the gradient was finite.
    update: the core's. lost: why the broadcast after the update failed; the update stands."""

    version: int
    statistics: dict[str, float | int]
    num_micro_steps: int
    update: Update | None
    lost: str | None
