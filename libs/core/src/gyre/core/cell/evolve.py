"""Fold one fact into a cell's state. Mutates and returns it.

A job that the cell has no part in is folded too, beside its own: O(1) an event, and a cell that
joins it later knows its checkpoint, its world and its batch as if it had been there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import groups as group_events
from gyre.contracts.events import requests as request_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import steps as step_events
from gyre.contracts.events.lost import FactLost
from gyre.core.cell import membership
from gyre.core.cell.state import CellState, Checkpoint, Exposure, OpenBatch


def evolve_cell(state: CellState, sequence: int, job: str, subject: str, body: Body) -> CellState:
    """Fold `body`, appended to `subject` of `job` at stream sequence `sequence`."""
    if isinstance(body, sched.JobSubmitted):
        state.specs[job] = body.spec
    elif isinstance(body, FactLost):
        _fact_lost(state, job, body)
    elif isinstance(body, sched.JobStarted):
        if job not in state.specs:
            return state
        started = membership.started(state, job, body)
        if state.cell in started.members:
            return membership.turn_to(started, state)
        state.others[job] = started
    elif isinstance(body, sched.CellJoined) and body.cell == state.cell and job in state.others:
        state = membership.turn_to(state.others.pop(job), state)
        membership.cell_joined(state, body)
    elif job == state.job:
        _fold(state, sequence, subject, body)
    elif job in state.others:
        _fold(state.others[job], sequence, subject, body)
        if state.others[job].finished:
            del state.others[job]
    return state


def _fact_lost(state: CellState, job: str, body: FactLost) -> None:
    """A job ends with one of its own facts, for a cell at once: what it goes on to do might not be
    what the log has asked for. It does not begin either, if an earlier decision still lets it."""
    if body.execution is not None:
        return
    state.specs.pop(job, None)
    state.others.pop(job, None)
    if job == state.job:
        state.finished, state.batch = True, None


def _fold(state: CellState, sequence: int, subject: str, body: Body) -> None:
    """A cell that is not the job's says nothing that counts, but to itself."""
    if isinstance(body, membership.SAID_BY_A_CELL) and body.cell not in state.members:
        if body.cell == state.cell:
            membership.said_outside(state, body)
    else:
        handler = _HANDLERS.get(type(body))
        if handler is not None:
            handler(state, body)
    if isinstance(body, sched.TransitionStarted) and body.cell == state.cell:
        state.switch, state.num_moved = sequence, len(body.moves)
    if state.batch is not None and subject.endswith(f".batch.{state.batch.batch}.claims"):
        state.batch.claims_sequence = sequence


def _job_finished(state: CellState, body: sched.JobFinished) -> None:
    state.finished = True
    state.batch = None


def _world_formed(state: CellState, body: sched.WorldFormed) -> None:
    state.epoch, state.world = body.epoch, body.cells
    state.ready = set()
    # A trainer may have died between the decision and this event.
    state.doomed = not state.trainers.issuperset(body.cells)


def _world_ready(state: CellState, body: cell_events.WorldReady) -> None:
    if body.epoch == state.epoch:
        state.ready.add(body.cell)


def _transition_started(state: CellState, body: sched.TransitionStarted) -> None:
    state.in_rollout.discard(body.cell)
    if body.to == "rollout":
        membership.sent_back(state, body)
    elif body.cell == state.cell:
        state.transition = True


def _batch_opened(state: CellState, body: sched.BatchOpened) -> None:
    state.batch = OpenBatch(batch=body.batch, step=body.step, version=(body.lineage, body.version))


def _micro_step_emitted(state: CellState, body: group_events.MicroStepEmitted) -> None:
    if state.batch is not None and state.batch.batch == body.batch:
        state.batch.micro_steps[body.index] = body.digest


def _micro_step_claimed(state: CellState, body: step_events.MicroStepClaimed) -> None:
    if state.batch is not None and state.batch.batch == body.batch:
        state.batch.owners[body.index] = (body.cell, body.epoch)


def _batch_joined(state: CellState, body: cell_events.BatchJoined) -> None:
    batch = state.batch
    if batch is not None and batch.batch == body.batch and body.cell not in batch.dismissed:
        batch.joined.add(body.cell)


def _window_closed(state: CellState, body: sched.JoinWindowClosed) -> None:
    """Void in a fenced epoch, as in the scheduler's own fold."""
    batch = state.batch
    if batch is not None and batch.batch == body.batch and body.epoch > batch.fenced_epoch:
        batch.members = body.members
        batch.member_epoch = body.epoch
        batch.final = body.final


def _epoch_fenced(state: CellState, body: sched.EpochFenced) -> None:
    batch = state.batch
    if batch is None or batch.batch != body.batch:
        return
    gone = {*body.lost, *body.dismissed}
    batch.owners = {i: owner for i, owner in batch.owners.items() if owner[0] not in gone}
    batch.joined -= gone
    batch.dismissed |= gone
    batch.members = None
    batch.fenced_epoch = body.epoch


def _step_completed(state: CellState, body: step_events.StepCompleted) -> None:
    """Of the open batch alone, as in the scheduler's own fold."""
    if state.batch is None or state.batch.batch != body.batch:
        return
    state.version = (body.lineage, body.version)
    state.batch = None


def _burst_started(state: CellState, body: sched.BurstStarted) -> None:
    state.burst_over = state.core_stays = False


def _burst_ended(state: CellState, body: sched.BurstEnded) -> None:
    state.burst_over = True
    state.core_stays = body.core_stays
    stays = body.core_stays if state.is_core else state.cell in body.staying_satellites
    if not stays and (state.role == "training" or state.transition):
        state.leaving = True
        state.leave_version = state.version
        state.transition = False


def _restored(state: CellState, body: sched.Restored) -> None:
    """The durable weights are the new lineage's first: the same tensors under another name."""
    restored = (body.lineage, body.version)
    # A checkpoint that was durable and not yet published is published under the new name.
    unpublished = state.burst_over and state.published < state.durable
    state.batch = None
    state.orphaned = False
    state.version = state.restored = restored
    state.published = state.published if unpublished else restored
    if state.checkpoint is None:
        state.initial = restored
    else:
        state.checkpoint = replace(state.checkpoint, version=restored)
    state.exposure = None
    state.burst_over = unpublished


def _role_changed(state: CellState, body: cell_events.RoleChanged) -> None:
    if body.role == "rollout":
        state.in_rollout.add(body.cell)
        state.serving[body.cell] = (body.lineage, body.version)
    else:
        state.in_rollout.discard(body.cell)
    if body.cell != state.cell:
        return
    state.role = body.role
    state.engine_reported = True
    state.transition = False
    if body.role == "rollout":
        state.leaving = False


def _engine_lost(state: CellState, body: cell_events.EngineLost) -> None:
    state.in_rollout.discard(body.cell)
    if body.cell == state.cell:
        state.engine_reported = False


def _trainer_ready(state: CellState, body: cell_events.TrainerReady) -> None:
    state.trainers.add(body.cell)
    if body.cell == state.cell:
        state.trainer_reported = True


def _trainer_lost(state: CellState, body: cell_events.TrainerLost) -> None:
    state.trainers.discard(body.cell)
    state.doomed |= body.cell in state.world
    if body.cell == state.cell:
        state.trainer_reported = False
        state.left_epoch = state.epoch
    if state.order[:1] == (body.cell,):
        state.exposure = None


def _world_broken(state: CellState, body: cell_events.WorldBroken) -> None:
    state.doomed |= body.epoch == state.epoch
    if body.cell == state.cell:
        state.left_epoch = max(state.left_epoch, body.epoch)


def _weights_exposed(state: CellState, body: cell_events.WeightsExposed) -> None:
    exposure = Exposure(
        version=(body.lineage, body.version),
        host=body.host,
        port=body.port,
        checksum=body.checksum,
        transport=body.transport,
    )
    if body.source == "checkpoint":
        state.offered = exposure
    else:
        state.exposure = exposure


def _checkpoint_saved(state: CellState, body: cell_events.CheckpointSaved) -> None:
    """Void from a core that only seemed lost, as in the scheduler's own fold."""
    if state.orphaned or body.lineage != state.version[0]:
        return
    state.checkpoint = Checkpoint(
        version=(body.lineage, body.version), path=body.path, checksum=body.checksum
    )


def _checkpoint_failed(state: CellState, body: cell_events.CheckpointFailed) -> None:
    if state.order[:1] == (body.cell,):
        state.save_failed = (body.lineage, body.version)


def _resume_requested(state: CellState, body: request_events.ResumeRequested) -> None:
    """Somebody has made room: it is tried again."""
    state.save_failed = None


def _weights_loaded(state: CellState, body: cell_events.WeightsLoaded) -> None:
    state.serving[body.cell] = (body.lineage, body.version)


def _weights_published(state: CellState, body: cell_events.WeightsPublished) -> None:
    if state.orphaned or body.lineage != state.version[0]:
        return
    state.published = (body.lineage, body.version)
    state.published_path = body.path


_HANDLERS: dict[type[Body], Callable[[CellState, Any], None]] = {
    sched.JobFinished: _job_finished,
    sched.WorldFormed: _world_formed,
    sched.TransitionStarted: _transition_started,
    sched.BatchOpened: _batch_opened,
    sched.JoinWindowClosed: _window_closed,
    sched.EpochFenced: _epoch_fenced,
    sched.BurstStarted: _burst_started,
    sched.BurstEnded: _burst_ended,
    sched.Restored: _restored,
    request_events.ResumeRequested: _resume_requested,
    sched.CellLost: membership.cell_left,
    sched.CellReleased: membership.cell_left,
    sched.CellJoined: membership.cell_joined,
    group_events.MicroStepEmitted: _micro_step_emitted,
    step_events.MicroStepClaimed: _micro_step_claimed,
    cell_events.BatchJoined: _batch_joined,
    step_events.StepCompleted: _step_completed,
    cell_events.RoleChanged: _role_changed,
    cell_events.EngineLost: _engine_lost,
    cell_events.TrainerReady: _trainer_ready,
    cell_events.TrainerLost: _trainer_lost,
    cell_events.WorldReady: _world_ready,
    cell_events.WorldBroken: _world_broken,
    cell_events.WeightsExposed: _weights_exposed,
    cell_events.CheckpointSaved: _checkpoint_saved,
    cell_events.CheckpointFailed: _checkpoint_failed,
    cell_events.WeightsLoaded: _weights_loaded,
    cell_events.WeightsPublished: _weights_published,
}
