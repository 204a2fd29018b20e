"""The next thing a cell must do. Pure: compares the log's state with what the processes hold.

Rules are tried in order; the first that applies wins. Each duty, once done, makes its rule false,
either through the holdings or through the fact that the agent appends, so nothing is done twice and
a killed agent goes on where the log stands.

- Work that is promised comes before work that could be taken: roles and worlds first, then owned
  micro-steps, then claims.
- The trainer's weights are compared by (lineage, version) before a batch is joined: whoever holds
  other weights pulls them from the core.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gyre.core.cell.state import CellState, Checkpoint, Exposure, Holdings, OpenBatch, Version


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
class Publish(Duty):
    checkpoint: Checkpoint
    confirmed_by: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposeWeights(Duty):
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinBatch(Duty):
    """Begin accumulating on the batch's frozen weights; pull them first when `pull` is given."""

    batch: OpenBatch
    pull: Exposure | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainMicroStep(Duty):
    batch: OpenBatch
    index: int
    digest: str


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


def next_duty(state: CellState, held: Holdings) -> Duty | None:
    """What to do now; None when the cell must wait for a fact."""
    if state.job is None or ((state.finished or state.gone) and state.role == "offline"):
        return None
    for rule in _RULES:
        duty = rule(state, held)
        if duty is not None:
            return duty
    return None


def _stop(state: CellState, held: Holdings) -> Duty | None:
    return StopJob() if state.finished or state.gone else None


def _start_trainer(state: CellState, held: Holdings) -> Duty | None:
    if held.trainer_version is not None or state.in_pool:
        return None
    path, version = _latest(state)
    return StartTrainer(path=path, version=version)


def _start_engine(state: CellState, held: Holdings) -> Duty | None:
    """A training cell's dead engine waits until it goes back, then starts with the new weights."""
    if held.engine_version is not None or state.role == "training":
        return None
    path, version = _latest(state)
    return StartEngine(path=path, version=version)


def _report_rollout(state: CellState, held: Holdings) -> Duty | None:
    if held.engine_version is None or state.engine_reported or state.role == "training":
        return None
    return ReportRollout(version=held.engine_version)


def _restore(state: CellState, held: Holdings) -> Duty | None:
    if not state.is_core or state.restored != state.version:
        return None
    if held.trainer_version == state.version:
        return None
    path, version = _latest(state)
    return RestoreCore(path=path, version=version)


def _form_world(state: CellState, held: Holdings) -> Duty | None:
    if state.epoch in (held.world_epoch, held.broken_epoch):
        return None
    if state.cell not in state.world or state.doomed:
        return None
    if state.cell not in state.ready:
        return AwaitWorld(epoch=state.epoch)
    if not state.ready.issuperset(state.world):
        return None
    return FormWorld(epoch=state.epoch, rank=state.world.index(state.cell), size=len(state.world))


def _save_checkpoint(state: CellState, held: Holdings) -> Duty | None:
    if not (state.is_core and state.burst_over) or state.orphaned:
        return None
    if held.trainer_version != state.version:
        return None
    if state.checkpoint is not None and state.checkpoint.version == state.version:
        return None
    return SaveCheckpoint(version=state.version)


def _leave_training(state: CellState, held: Holdings) -> Duty | None:
    """Satellites go back as soon as the checkpoint is durable, the core after it has published."""
    if not state.leaving:
        return None
    _, version = _latest(state)
    if version < state.leave_version or (state.is_core and state.published < state.leave_version):
        return None
    current = held.engine_version == version
    return ReturnToRollout(checkpoint=None if current else state.checkpoint, version=version)


def _load_weights(state: CellState, held: Holdings) -> Duty | None:
    """While it serves, and before it says that it does: nobody enters rollout with old weights."""
    if state.role == "training" or state.transition or state.leaving or state.checkpoint is None:
        return None
    if held.engine_version is None or held.engine_version >= state.checkpoint.version:
        return None
    return LoadWeights(checkpoint=state.checkpoint)


def _publish(state: CellState, held: Holdings) -> Duty | None:
    """Every engine in rollout has confirmed the durable checkpoint."""
    saved = state.checkpoint
    if not state.is_core or state.orphaned or saved is None or saved.version != state.version:
        return None
    if state.published == saved.version or not state.burst_over:
        return None
    if any(state.serving.get(cell) != saved.version for cell in state.in_rollout):
        return None
    return Publish(checkpoint=saved, confirmed_by=tuple(sorted(state.in_rollout)))


def _enter_training(state: CellState, held: Holdings) -> Duty | None:
    return EnterTraining() if state.transition and state.role == "rollout" else None


def _expose(state: CellState, held: Holdings) -> Duty | None:
    """Before the core claims anything, so that joiners never wait behind its micro-steps."""
    if not state.is_core or state.batch is None or state.role != "training":
        return None
    if held.exposed == state.batch.version or held.trainer_version != state.batch.version:
        return None
    return ExposeWeights(version=state.batch.version)


def _join_batch(state: CellState, held: Holdings) -> Duty | None:
    batch = state.batch
    if batch is None or state.role != "training" or state.leaving:
        return None
    if held.accumulating == batch.batch and state.cell in batch.joined:
        return None
    # A member of a new world begins anew; one that has been through the reduction does not.
    reduced = held.finished == (batch.batch, batch.member_epoch)
    if batch.members is not None and (reduced or state.cell not in batch.members):
        return None
    if state.cell in batch.dismissed or held.missed == batch.batch:
        return None
    if held.world_epoch != state.epoch or not _all_before_joined(state, batch):
        return None
    if held.trainer_version == batch.version:
        return JoinBatch(batch=batch, pull=None)
    if state.is_core or state.exposure is None or state.exposure.version != batch.version:
        return None
    return JoinBatch(batch=batch, pull=state.exposure)


def _all_before_joined(state: CellState, batch: OpenBatch) -> bool:
    """Cells join in the world's order, so that those who have joined are always a prefix."""
    before = state.world[: state.world.index(state.cell)] if state.cell in state.world else None
    return before is not None and batch.joined.issuperset(before)


def _train(state: CellState, held: Holdings) -> Duty | None:
    batch = _my_batch(state, held)
    if batch is None:
        return None
    for index in batch.owned_by(state.cell):
        if index not in held.trained:
            return TrainMicroStep(batch=batch, index=index, digest=batch.micro_steps[index])
    return None


def _claim(state: CellState, held: Holdings) -> Duty | None:
    batch = _my_batch(state, held)
    if batch is None or batch.members is not None:
        return None
    index = batch.unclaimed()
    if index is None:
        return None
    return ClaimMicroStep(batch=batch, index=index, epoch=state.epoch)


def _finish(state: CellState, held: Holdings) -> Duty | None:
    batch = _my_batch(state, held)
    if batch is None or batch.members is None or state.cell not in batch.members:
        return None
    if batch.member_epoch != state.epoch:
        return None
    return FinishBatch(batch=batch, members=batch.members)


def _report_broken(state: CellState, held: Holdings) -> Duty | None:
    if held.broken_epoch != state.epoch or state.left_epoch == state.epoch:
        return None
    return ReportBroken(epoch=state.epoch, explained=state.doomed)


def _my_batch(state: CellState, held: Holdings) -> OpenBatch | None:
    """The open batch, if this cell takes part in it with its accumulation intact."""
    batch = state.batch
    if batch is None or held.accumulating != batch.batch or state.cell not in batch.joined:
        return None
    # In a newer world it is dropped: nothing is added to it any more.
    return batch if held.world_epoch == state.epoch else None


def _latest(state: CellState) -> tuple[str | None, Version]:
    """Newest durable weights: the last checkpoint, else the job's own model as version 0."""
    if state.checkpoint is not None:
        return state.checkpoint.path, state.checkpoint.version
    return None, state.initial


_RULES: tuple[Callable[[CellState, Holdings], Duty | None], ...] = (
    _stop,
    _start_engine,
    _start_trainer,
    _load_weights,
    _report_rollout,
    _restore,
    _form_world,
    _save_checkpoint,
    _publish,
    _leave_training,
    _enter_training,
    _expose,
    _join_batch,
    _train,
    _claim,
    _finish,
    _report_broken,
)
