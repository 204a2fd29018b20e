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

from gyre.core.cell import orders
from gyre.core.cell.orders import BEFORE_ALL, Duty
from gyre.core.cell.state import CellState, Holdings, OpenBatch, Version


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
    return orders.StopJob() if state.finished or state.gone else None


def _start_trainer(state: CellState, held: Holdings) -> Duty | None:
    if held.trainer_version is not None or state.in_pool:
        return None
    path, version = _reached(state)
    return orders.StartTrainer(path=path, version=version)


def _start_engine(state: CellState, held: Holdings) -> Duty | None:
    """A training cell's dead engine waits until it goes back, then starts with the new weights."""
    if held.engine_version is not None or state.role == "training":
        return None
    path, version = _reached(state)
    return orders.StartEngine(path=path, version=version)


def _report_rollout(state: CellState, held: Holdings) -> Duty | None:
    if held.engine_version is None or state.engine_reported or state.role == "training":
        return None
    if held.engine_version == BEFORE_ALL:
        return None
    return orders.ReportRollout(version=held.engine_version)


def _restore(state: CellState, held: Holdings) -> Duty | None:
    if not state.is_core or state.restored != state.version:
        return None
    if held.trainer_version == state.version:
        return None
    path, version = _latest(state)
    return orders.RestoreCore(path=path, version=version)


def _form_world(state: CellState, held: Holdings) -> Duty | None:
    if state.epoch in (held.world_epoch, held.broken_epoch):
        return None
    if state.cell not in state.world or state.doomed:
        return None
    if state.cell not in state.ready:
        return orders.AwaitWorld(epoch=state.epoch)
    if not state.ready.issuperset(state.world):
        return None
    return orders.FormWorld(
        epoch=state.epoch, rank=state.world.index(state.cell), size=len(state.world)
    )


def _save_checkpoint(state: CellState, held: Holdings) -> Duty | None:
    if not (state.is_core and state.burst_over) or state.orphaned:
        return None
    if held.trainer_version != state.version or state.save_failed == state.version:
        return None
    if state.checkpoint is not None and state.checkpoint.version == state.version:
        return None
    if held.saving == state.version:
        return None
    return orders.SaveCheckpoint(version=state.version)


def _await_checkpoint(state: CellState, held: Holdings) -> Duty | None:
    """After all else: what the cell can do meanwhile it does."""
    if held.saving is None or held.saving != held.trainer_version or held.saving != state.version:
        return None
    return orders.AwaitCheckpoint(version=held.saving)


def _leave_training(state: CellState, held: Holdings) -> Duty | None:
    """Satellites go back as soon as the checkpoint is durable, the core after it has published."""
    if not state.leaving:
        return None
    _, version = _latest(state)
    if version < state.leave_version or (state.is_core and state.published < state.leave_version):
        return None
    current = held.engine_version == version
    if not current and not in_reach(state):
        return None
    return orders.ReturnToRollout(checkpoint=None if current else state.checkpoint, version=version)


def _load_weights(state: CellState, held: Holdings) -> Duty | None:
    """While it serves, and before it says that it does: nobody enters rollout with old weights."""
    if state.role == "training" or state.transition or state.leaving or state.checkpoint is None:
        return None
    if held.engine_version is None or held.engine_version >= state.checkpoint.version:
        return None
    if not in_reach(state):
        return None
    return orders.LoadWeights(checkpoint=state.checkpoint)


def _offer(state: CellState, held: Holdings) -> Duty | None:
    """Before anybody waits for it; again after a restore, under the new name."""
    if not state.is_core or state.orphaned or not state.publishes_by_wire:
        return None
    if state.checkpoint is None or held.offered == state.checkpoint.version:
        return None
    return orders.OfferCheckpoint(checkpoint=state.checkpoint)


def in_reach(state: CellState) -> bool:
    """Whether the durable checkpoint can be had now: from the disk, or as the core offers it."""
    if state.checkpoint is None or not state.publishes_by_wire:
        return True
    return state.offered is not None and state.offered.version == state.checkpoint.version


def _publish(state: CellState, held: Holdings) -> Duty | None:
    """Every engine in rollout has confirmed the durable checkpoint."""
    saved = state.checkpoint
    if not state.is_core or state.orphaned or saved is None or saved.version != state.version:
        return None
    if state.published == saved.version or not state.burst_over:
        return None
    if any(state.serving.get(cell) != saved.version for cell in state.in_rollout):
        return None
    return orders.Publish(checkpoint=saved, confirmed_by=tuple(sorted(state.in_rollout)))


def _enter_training(state: CellState, held: Holdings) -> Duty | None:
    return orders.EnterTraining() if state.transition and state.role == "rollout" else None


def _expose(state: CellState, held: Holdings) -> Duty | None:
    """Before the core claims anything, so that joiners never wait behind its micro-steps."""
    if not state.is_core or state.batch is None or state.role != "training":
        return None
    if held.exposed == state.batch.version or held.trainer_version != state.batch.version:
        return None
    return orders.ExposeWeights(version=state.batch.version)


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
    if state.cell in batch.dismissed:
        return None
    if held.world_epoch != state.epoch or not _all_before_joined(state, batch):
        return None
    if held.trainer_version == batch.version:
        return orders.JoinBatch(batch=batch, pull=None, num_missed=0)
    if state.is_core or state.exposure is None or state.exposure.version != batch.version:
        return None
    num_missed = held.num_missed(batch.batch)
    return orders.JoinBatch(batch=batch, pull=state.exposure, num_missed=num_missed)


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
            digest, alone = batch.micro_steps[index], _leaves_the_rest(state, batch)
            return orders.TrainMicroStep(batch=batch, index=index, digest=digest, alone=alone)
    return None


def _leaves_the_rest(state: CellState, batch: OpenBatch) -> bool:
    """With fewer micro-steps left than cells, one taken ahead would wait here while another cell
    could have it. A pipeline is kept full all the same: it would drain for it."""
    if state.required_spec.training.layout.pipeline > 1:
        return False
    return len(batch.unclaimed()) < len(state.order)


def _claim(state: CellState, held: Holdings) -> Duty | None:
    batch = _my_batch(state, held)
    if batch is None or batch.members is not None:
        return None
    unclaimed = batch.unclaimed()
    if not unclaimed:
        return None
    return orders.ClaimMicroStep(batch=batch, index=unclaimed[0], epoch=state.epoch)


def _finish(state: CellState, held: Holdings) -> Duty | None:
    batch = _my_batch(state, held)
    if batch is None or batch.members is None or state.cell not in batch.members:
        return None
    if batch.member_epoch != state.epoch:
        return None
    return orders.FinishBatch(batch=batch, members=batch.members)


def _report_broken(state: CellState, held: Holdings) -> Duty | None:
    if held.broken_epoch != state.epoch or state.left_epoch == state.epoch:
        return None
    return orders.ReportBroken(epoch=state.epoch, explained=state.doomed)


def _my_batch(state: CellState, held: Holdings) -> OpenBatch | None:
    """The open batch, if this cell takes part in it with its accumulation intact."""
    batch = state.batch
    if batch is None or held.accumulating != batch.batch or state.cell not in batch.joined:
        return None
    # In a newer world it is dropped: nothing is added to it any more.
    return batch if held.world_epoch == state.epoch else None


def _reached(state: CellState) -> tuple[str | None, Version]:
    """What this cell can read by itself to start with: without a disk that all share, a checkpoint
    is the core's alone. The others start with the job's model, and are sent what they need."""
    if state.publishes_by_wire and not state.is_core and state.checkpoint is not None:
        return None, BEFORE_ALL
    return _latest(state)


def _latest(state: CellState) -> tuple[str | None, Version]:
    """Newest durable weights: the last checkpoint, else the job's own model as version 0."""
    if state.checkpoint is not None:
        return state.checkpoint.path, state.checkpoint.version
    return None, state.initial


_RULES: tuple[Callable[[CellState, Holdings], Duty | None], ...] = (
    _stop,
    _offer,
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
    _await_checkpoint,
)
