"""The duties of a cell: what there is to be done, one class each. Which is next: `duties`."""

from __future__ import annotations

from dataclasses import dataclass

from gyre.core.cell.state import Checkpoint, Exposure, OpenBatch, Version

BEFORE_ALL: Version = (0, 0)
"""Names the job's own model in a process that is given newer weights before it does anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duty:
    """Base of all duties; carries nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopJob(Duty):
    """The job is over, or goes on without me: end engine and trainer, report the cell offline, be
    free for another job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTrainer(Duty):
    """Start the trainer with these weights (path None: the job's model); report it ready."""

    path: str | None
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class StartEngine(Duty):
    """Start the engine with these weights (path None: the job's model)."""

    path: str | None
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRollout(Duty):
    """The engine holds what it should: report the role."""

    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitWorld(Duty):
    """Say that this cell is ready to connect."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FormWorld(Duty):
    """Connect to the others, who are all ready."""

    epoch: int
    rank: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportBroken(Duty):
    """Say that the world of `epoch` failed under us.

    explained: a peer's death is known, so that the next world will do without it; if not, it is
    better to wait a little for the explanation.
    """

    epoch: int
    explained: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreCore(Duty):
    """Load the durable checkpoint under the new lineage."""

    path: str | None
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWeights(Duty):
    """The serving engine takes newer weights between two tokens; report them loaded."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class EnterTraining(Duty):
    """Drain the engine, restore the trainer's buffers, report the role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnToRollout(Duty):
    """Offload the trainer's buffers, give the engine these weights (None: it has them), serve."""

    checkpoint: Checkpoint | None
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCheckpoint(Duty):
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitCheckpoint(Duty):
    """Ask whether the checkpoint that is being written is durable by now."""

    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish(Duty):
    checkpoint: Checkpoint
    confirmed_by: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferCheckpoint(Duty):
    """Serve the durable checkpoint to the agents of the other engines."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposeWeights(Duty):
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinBatch(Duty):
    """Begin accumulating on the batch's frozen weights; pull them first when `pull` is given.

    num_missed: how often they could not be had. A cell may come until the window closes, and so it
    tries again until then, a little later each time.
    """

    batch: OpenBatch
    pull: Exposure | None
    num_missed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainMicroStep(Duty):
    """alone: it is computed before the cell claims another; else while it does."""

    batch: OpenBatch
    index: int
    digest: str
    alone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimMicroStep(Duty):
    batch: OpenBatch
    index: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishBatch(Duty):
    """Reduce over the members, update on the core, broadcast unless this was the burst's last."""

    batch: OpenBatch
    members: tuple[int, ...]
