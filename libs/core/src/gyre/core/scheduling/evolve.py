"""Fold one fact into a job's state. O(1) in executions and groups; mutates and returns the state.

One handler per event type in `_HANDLERS`; an event without one changes nothing but the sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gyre.contracts.envelope import Body, Decision
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import groups as group_events
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling.state import (
    Batch,
    Burst,
    Cell,
    Counters,
    Execution,
    Group,
    JobState,
    Queued,
)


def evolve(state: JobState, sequence: int, body: Body) -> JobState:
    """Fold `body`, which lies in the log at stream sequence `sequence`. Mutates `state`."""
    handler = _HANDLERS.get(type(body))
    if handler is not None:
        handler(state, body)
    state.sequence = sequence
    if isinstance(body, Decision | sched.JobSubmitted | sched.CancelRequested):
        state.sched_sequence = sequence
    return state


# --- the job's life -----------------------------------------------------------------------------


def _job_submitted(state: JobState, body: sched.JobSubmitted) -> None:
    state.spec = body.spec
    state.train_tasks = body.train_tasks
    state.heldout_tasks = body.heldout_tasks
    state.status = "queued"


def _cancel_requested(state: JobState, body: sched.CancelRequested) -> None:
    state.cancel_requested = body.reason


def _job_started(state: JobState, body: sched.JobStarted) -> None:
    state.status = "running"
    state.lineage = body.lineage
    state.order = body.cells
    capacity = state.required_spec.cells.capacity
    state.cells = {
        cell: Cell(index=index, cell=cell, capacity=capacity)
        for index, cell in enumerate(body.cells)
    }


def _world_formed(state: JobState, body: sched.WorldFormed) -> None:
    state.epoch = body.epoch
    state.world = body.cells
    # A trainer may have died between the decision and this event.
    state.world_stale = not all(state.cells[cell].trainer_up for cell in body.cells)


def _phase_started(state: JobState, body: sched.PhaseStarted) -> None:
    state.phase = body.phase
    state.dispatch_due = True


def _job_finished(state: JobState, body: sched.JobFinished) -> None:
    state.status = body.status
    state.reason = body.reason


# --- dispatch and executions --------------------------------------------------------------------


def _dispatched(state: JobState, body: sched.Dispatched) -> None:
    state.dispatch_due = False
    counters = _counters(state, body.kind)
    seed = state.required_spec.seed
    for plan in body.groups:
        counters.dispatched += len(plan.executions)
        if body.kind == "training":
            state.num_groups_dispatched += 1
            state.groups[plan.group] = Group(
                group=plan.group, version=body.version, num_executions=len(plan.executions)
            )
        for execution in plan.executions:
            number = len(state.executions)
            state.executions[execution] = Execution(group=plan.group, kind=body.kind)
            state.queue.append(
                Queued(
                    execution=execution,
                    group=plan.group,
                    task=plan.task,
                    seed=seed * 1_000_003 + number,
                )
            )


def _start_ordered(state: JobState, body: sched.StartOrdered) -> None:
    for order in body.orders:
        queued = state.queue.popleft()
        if queued.execution != order.execution:
            raise ValueError(f"start order for {order.execution}, queue's head {queued.execution}")
        execution = state.executions[order.execution]
        execution.cell = order.cell
        state.cells[order.cell].executions[order.execution] = None
        _counters(state, execution.kind).ordered += 1


def _started(state: JobState, body: run_events.Started) -> None:
    execution = state.executions[body.execution]
    if not execution.started:
        execution.started = True
        _counters(state, execution.kind).started += 1


def _terminated(state: JobState, body: run_events.Terminated) -> None:
    execution = state.executions[body.execution]
    if execution.terminated:
        return
    execution.terminated = True
    counters = _counters(state, execution.kind)
    counters.terminated += 1
    if not execution.started:
        execution.started = True
        counters.started += 1
    if execution.cell is not None:
        state.cells[execution.cell].executions.pop(body.execution, None)


def _executions_cancelled(state: JobState, body: sched.ExecutionsCancelled) -> None:
    state.cancelled_sent = True
    gone = set(body.queued)
    state.queue = type(state.queue)(q for q in state.queue if q.execution not in gone)
    for name in body.queued:
        execution = state.executions[name]
        execution.started = execution.terminated = True
        counters = _counters(state, execution.kind)
        counters.ordered += 1
        counters.started += 1
        counters.terminated += 1


def _counters(state: JobState, kind: str) -> Counters:
    return state.training if kind == "training" else state.heldout


# --- groups and batches -------------------------------------------------------------------------


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


# --- bursts and roles ---------------------------------------------------------------------------


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
        leaves = cell.index > 0 or not body.core_stays
        if leaves and cell.role in ("training", "to_training"):
            cell.role = "to_rollout"


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


def _transition_started(state: JobState, body: sched.TransitionStarted) -> None:
    cell = state.cells[body.cell]
    cell.role = "to_training" if body.to == "training" else "to_rollout"
    state.supply_since = None
    _move(state, body.moves)


def _role_changed(state: JobState, body: cell_events.RoleChanged) -> None:
    cell = state.cells.get(body.cell)
    if cell is None or cell.role == "lost":
        return
    if body.role == "training":
        # A burst that ended while the cell was on its way sends it straight back.
        cell.role = "training" if cell.role == "to_training" else cell.role
    elif body.role == "rollout":
        cell.role = "rollout"
        cell.num_boot_failures = 0
    else:
        cell.role = "offline"


def _move(state: JobState, moves: tuple[sched.Move, ...]) -> None:
    """An execution that ended between the decision and its event holds no slot anywhere."""
    for move in moves:
        if state.executions[move.execution].terminated:
            continue
        state.cells[move.source].executions.pop(move.execution, None)
        state.cells[move.destination].executions[move.execution] = None
        state.executions[move.execution].cell = move.destination


def _supply_started(state: JobState, body: sched.SupplyTimerStarted) -> None:
    state.supply_since = body.now


def _supply_stopped(state: JobState, body: sched.SupplyTimerStopped) -> None:
    state.supply_since = None


# --- processes that come and go -----------------------------------------------------------------


def _trainer_ready(state: JobState, body: cell_events.TrainerReady) -> None:
    if body.cell in state.cells:
        state.cells[body.cell].trainer_up = True


def _world_joined(state: JobState, body: cell_events.WorldJoined) -> None:
    if body.cell in state.cells:
        state.cells[body.cell].in_world = body.epoch


def _trainer_lost(state: JobState, body: cell_events.TrainerLost) -> None:
    cell = state.cells.get(body.cell)
    if cell is None:
        return
    cell.trainer_up = False
    cell.num_trainer_losses += 1
    cell.last_error = body.error
    _leave_world(state, cell)
    if cell.index == 0:
        # Weights newer than the last durable checkpoint died with the core, and so did the batch.
        state.core_lost = state.batch is not None or state.version > state.durable_version
    elif state.batch is not None and body.cell in state.batch.joined:
        state.batch.fence_due = (*state.batch.fence_due, body.cell)


def _world_broken(state: JobState, body: cell_events.WorldBroken) -> None:
    cell, batch = state.cells.get(body.cell), state.batch
    if cell is None or body.epoch != state.epoch:
        return
    _leave_world(state, cell)
    if batch is not None and body.cell in batch.joined and batch.fenced_epoch < body.epoch:
        batch.reopen_due = True


def _leave_world(state: JobState, cell: Cell) -> None:
    cell.in_world = 0
    state.world_stale |= cell.cell in state.world


def _engine_lost(state: JobState, body: cell_events.EngineLost) -> None:
    cell = state.cells.get(body.cell)
    if cell is None:
        return
    cell.num_boot_failures += 1
    cell.last_error = body.error
    if cell.role == "rollout":
        cell.role = "booting"


def _cell_lost(state: JobState, body: sched.CellLost) -> None:
    state.cells[body.cell].role = "lost"
    _move(state, body.moves)


_HANDLERS: dict[type[Body], Callable[[JobState, Any], None]] = {
    sched.JobSubmitted: _job_submitted,
    sched.CancelRequested: _cancel_requested,
    sched.JobStarted: _job_started,
    sched.WorldFormed: _world_formed,
    sched.PhaseStarted: _phase_started,
    sched.JobFinished: _job_finished,
    sched.Dispatched: _dispatched,
    sched.StartOrdered: _start_ordered,
    sched.ExecutionsCancelled: _executions_cancelled,
    sched.SupplyTimerStarted: _supply_started,
    sched.SupplyTimerStopped: _supply_stopped,
    sched.TransitionStarted: _transition_started,
    sched.BurstStarted: _burst_started,
    sched.BatchOpened: _batch_opened,
    sched.JoinWindowClosed: _join_window_closed,
    sched.BurstEnded: _burst_ended,
    sched.EpochFenced: _epoch_fenced,
    sched.Restored: _restored,
    sched.CellLost: _cell_lost,
    run_events.Started: _started,
    run_events.Terminated: _terminated,
    group_events.GroupReady: _group_ready,
    group_events.GroupClaimed: _group_claimed,
    group_events.StreamClosed: _stream_closed,
    cell_events.MicroStepClaimed: _micro_step_claimed,
    cell_events.BatchJoined: _batch_joined,
    cell_events.StepCompleted: _step_completed,
    cell_events.CheckpointSaved: _checkpoint_saved,
    cell_events.WeightsPublished: _weights_published,
    cell_events.RoleChanged: _role_changed,
    cell_events.TrainerReady: _trainer_ready,
    cell_events.WorldJoined: _world_joined,
    cell_events.TrainerLost: _trainer_lost,
    cell_events.WorldBroken: _world_broken,
    cell_events.EngineLost: _engine_lost,
}
