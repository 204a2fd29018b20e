"""Groups, batches, bursts and publications: what a step consumes and what it leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import groups as group_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import steps as step_events
from gyre.core.scheduling.state import Batch, Burst, JobState


def _group_ready(state: JobState, body: group_events.GroupReady) -> None:
    """Void for a dropped group: it became ready behind the decision."""
    group = state.groups[body.group]
    if not group.ready and not group.dropped:
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
    if group.claimed_version is not None or group.dropped:
        return
    group.batch = body.batch
    group.claimed_version = batch.version
    batch.num_claimed_groups += 1
    state.num_ready_unclaimed -= 1
    state.leave_buffer(group)


def _stream_closed(state: JobState, body: group_events.StreamClosed) -> None:
    if state.batch is not None and state.batch.batch == body.batch:
        state.batch.num_micro_steps = body.num_micro_steps


def _micro_step_claimed(state: JobState, body: step_events.MicroStepClaimed) -> None:
    """By a cell of the job: another's is void, and the micro-step is claimed anew."""
    if state.batch is None or state.batch.batch != body.batch:
        return
    if state.present(body.cell) is not None:
        state.batch.owners[body.index] = (body.cell, body.epoch)


def _batch_joined(state: JobState, body: cell_events.BatchJoined) -> None:
    batch, cell = state.batch, state.present(body.cell)
    if batch is None or batch.batch != body.batch or body.cell in batch.dismissed or cell is None:
        return
    batch.joined[body.cell] = None
    if cell.role == "to_rollout":
        # It was sent back before it could know; nobody waits for it at the reduction.
        batch.fence_due = (*batch.fence_due, body.cell)
        state.world_stale = True


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


def _step_completed(state: JobState, body: step_events.StepCompleted) -> None:
    """Of the open batch alone: one that comes again, or behind `restored`, is void."""
    if state.batch is None or state.batch.batch != body.batch:
        return
    state.version = body.version
    state.num_steps_done += 1
    state.num_skipped_in_a_row = state.num_skipped_in_a_row + 1 if body.skipped else 0
    state.last_skip = body.skip_reason
    state.batch = None
    state.supply_since = None
    for cell in state.in_order:
        cell.num_trainer_losses = 0


def _burst_ended(state: JobState, body: sched.BurstEnded) -> None:
    if state.burst is None:
        raise ValueError("burst_ended without a burst")
    state.burst.ended = True
    state.burst.since = state.core.since = body.now
    state.burst.core_stays = body.core_stays
    for cell in state.in_order:
        stays = body.core_stays if cell.index == 0 else cell.cell in body.staying_satellites
        if not stays and cell.role in ("training", "to_training"):
            state.set_role(cell, "to_rollout", body.now)


def _weights_published(state: JobState, body: cell_events.WeightsPublished) -> None:
    """Once a burst, and what the burst made: what comes again dispatches nothing."""
    newest = (body.lineage, body.version) == (state.lineage, state.version)
    if state.burst is None or not state.burst.ended or not newest or state.core_lost:
        return
    state.published = body.version
    state.burst = None
    state.dispatch_due = True
    state.num_publications += 1
    state.measurement_due |= _measures(state)


def _measures(state: JobState) -> bool:
    """This publication is measured: its turn has come, and the measurement before it is over. The
    last one is measured by a phase of its own."""
    every = state.required_spec.evaluation.heldout_every
    if every is None or not state.heldout_tasks or state.num_publications % every != 0:
        return False
    over = state.heldout.terminated == state.heldout.dispatched
    return over and state.num_steps_done < state.required_spec.schedule.num_steps


def _checkpoint_saved(state: JobState, body: cell_events.CheckpointSaved) -> None:
    """By the core alone: a core that only seemed lost says it of a lineage that is over."""
    if state.core_lost or body.lineage != state.lineage:
        return
    state.durable_version = body.version
    state.save_failed = False
    state.num_restores = 0
    state.durable_path = body.path


def _checkpoint_failed(state: JobState, body: cell_events.CheckpointFailed) -> None:
    """The core holds the weights on and lives: what is missing is for the user to mend."""
    if state.core_lost or body.lineage != state.lineage or state.order[:1] != (body.cell,):
        return
    state.paused, state.save_failed = True, True
    state.pause_reason = f"version {body.version} could not be saved: {body.error}"


def _restored(state: JobState, body: sched.Restored) -> None:
    state.lineage = body.lineage
    state.version = state.num_steps_done = body.version
    # The steps behind the checkpoint are done again.
    state.num_skipped_in_a_row = 0
    state.batch = state.supply_since = None
    if not (state.burst is not None and state.burst.ended and state.published < body.version):
        state.burst = None
    else:
        # Its weights are durable, its publication is still to come.
        state.burst.since = body.now
    for cell in state.in_order:
        if cell.role == "to_rollout":
            cell.since = body.now
    state.core_lost = state.save_failed = False
    state.num_restores += 1
    # The burst's publication, which would have brought them, does not come.
    state.dispatch_due |= state.num_replacements_due > 0
    # By the rule, not by the event's list: a claim may have come in after the decision.
    for group in state.groups.values():
        if group.claimed_version is not None and group.claimed_version >= body.version:
            group.batch = group.claimed_version = None
            state.num_ready_unclaimed += 1
            state.unclaimed.setdefault(group.version, {})[group.group] = None


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
    step_events.MicroStepClaimed: _micro_step_claimed,
    cell_events.BatchJoined: _batch_joined,
    step_events.StepCompleted: _step_completed,
    cell_events.CheckpointSaved: _checkpoint_saved,
    cell_events.CheckpointFailed: _checkpoint_failed,
    cell_events.WeightsPublished: _weights_published,
}
