"""Groups, batches, bursts and publications: what a step consumes and what it leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import groups as group_events
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling.state import Batch, Burst, JobState


def _group_ready(state: JobState, body: group_events.GroupReady) -> None:
    group = state.groups[body.group]
    if not group.ready:
        group.ready = True
        state.num_ready_unclaimed += 1


def _group_claimed(state: JobState, body: group_events.GroupClaimed) -> None:
    """A claim for a batch that is not open (it came behind `restored`) or beyond B is void."""
    batch = state.batch
    if batch is None or batch.batch != body.batch:
        return
    if batch.num_claimed_groups >= state.required_spec.schedule.groups_per_step:
        return
    group = state.groups[body.group]
    group.batch = body.batch
    group.claimed_version = batch.version
    batch.num_claimed_groups += 1
    state.num_ready_unclaimed -= 1


def _stream_closed(state: JobState, body: group_events.StreamClosed) -> None:
    if state.batch is not None and state.batch.batch == body.batch:
        state.batch.num_micro_steps = body.num_micro_steps


def _micro_step_claimed(state: JobState, body: cell_events.MicroStepClaimed) -> None:
    if state.batch is not None and state.batch.batch == body.batch:
        state.batch.owners[body.index] = (body.cell, body.epoch)


def _batch_joined(state: JobState, body: cell_events.BatchJoined) -> None:
    batch = state.batch
    if batch is not None and batch.batch == body.batch and body.cell not in batch.dismissed:
        batch.joined[body.cell] = None


def _epoch_fenced(state: JobState, body: sched.EpochFenced) -> None:
    batch = state.batch
    if batch is None or batch.batch != body.batch:
        return
    gone = {*body.lost, *body.dismissed}
    batch.owners = {i: owner for i, owner in batch.owners.items() if owner[0] not in gone}
    batch.joined = {cell: None for cell in batch.joined if cell not in gone}
    batch.dismissed |= gone
    batch.members = None
    # Not simply (): another trainer may have died between the decision and this event.
    batch.fence_due = tuple(cell for cell in batch.fence_due if cell not in gone)
    batch.reopen_due = False
    batch.fenced_epoch = body.epoch


def _burst_started(state: JobState, body: sched.BurstStarted) -> None:
    state.burst = Burst(burst=body.burst, first_step=body.first_step, num_steps=body.num_steps)
    state.num_bursts += 1


def _batch_opened(state: JobState, body: sched.BatchOpened) -> None:
    state.batch = Batch(batch=body.batch, step=body.step, version=body.version)
    state.supply_since = None


def _join_window_closed(state: JobState, body: sched.JoinWindowClosed) -> None:
    """Void in a fenced epoch: another scheduler decided it before it saw the fence."""
    batch = state.batch
    if batch is not None and batch.batch == body.batch and body.epoch > batch.fenced_epoch:
        batch.members = body.members


def _step_completed(state: JobState, body: cell_events.StepCompleted) -> None:
    state.version = body.version
    state.num_steps_done += 1
    state.batch = None
    state.supply_since = None
    for cell in state.in_order:
        cell.num_trainer_losses = 0


def _burst_ended(state: JobState, body: sched.BurstEnded) -> None:
    if state.burst is None:
        raise ValueError("burst_ended without a burst")
    state.burst.ended = True
    state.burst.core_stays = body.core_stays
    for cell in state.in_order:
        stays = body.core_stays if cell.index == 0 else cell.cell in body.staying_satellites
        if not stays and cell.role in ("training", "to_training"):
            state.set_role(cell, "to_rollout")


def _weights_published(state: JobState, body: cell_events.WeightsPublished) -> None:
    state.published = body.version
    state.burst = None
    state.dispatch_due = True


def _checkpoint_saved(state: JobState, body: cell_events.CheckpointSaved) -> None:
    state.durable_version = body.version
    state.num_restores = 0
    state.durable_path = body.path


def _restored(state: JobState, body: sched.Restored) -> None:
    state.lineage = body.lineage
    state.version = state.num_steps_done = body.version
    state.batch = state.burst = state.supply_since = None
    state.core_lost = False
    state.num_restores += 1
    # By the rule, not by the event's list: a claim may have come in after the decision.
    for group in state.groups.values():
        if group.claimed_version is not None and group.claimed_version >= body.version:
            group.batch = group.claimed_version = None
            state.num_ready_unclaimed += 1


HANDLERS: dict[type[Body], Callable[[JobState, Any], None]] = {
    sched.BurstStarted: _burst_started,
    sched.BatchOpened: _batch_opened,
    sched.JoinWindowClosed: _join_window_closed,
    sched.BurstEnded: _burst_ended,
    sched.EpochFenced: _epoch_fenced,
    sched.Restored: _restored,
    group_events.GroupReady: _group_ready,
    group_events.GroupClaimed: _group_claimed,
    group_events.StreamClosed: _stream_closed,
    cell_events.MicroStepClaimed: _micro_step_claimed,
    cell_events.BatchJoined: _batch_joined,
    cell_events.StepCompleted: _step_completed,
    cell_events.CheckpointSaved: _checkpoint_saved,
    cell_events.WeightsPublished: _weights_published,
}
