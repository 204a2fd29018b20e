"""The job's life, dispatch and executions: what moves d, the orders, p and f."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from gyre.contracts.envelope import Body
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import requests as request_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import scores as score_events
from gyre.contracts.events.lost import FactLost
from gyre.core.execution import ended_by_itself
from gyre.core.scheduling.state import Cell, Counters, Execution, Group, JobState, Lengths, Queued


def _job_submitted(state: JobState, body: sched.JobSubmitted) -> None:
    state.spec = body.spec
    state.experts = body.experts
    state.train_tasks = body.train_tasks
    state.heldout_tasks = body.heldout_tasks
    state.status = "queued"


def _cancel_requested(state: JobState, body: request_events.CancelRequested) -> None:
    state.cancel_requested = body.reason


def _pause_requested(state: JobState, body: request_events.PauseRequested) -> None:
    state.paused, state.pause_reason = True, body.reason


def _resume_requested(state: JobState, body: request_events.ResumeRequested) -> None:
    state.paused, state.pause_reason = False, ""
    if not state.save_failed:
        return
    # Whoever waited for the checkpoint has waited for the user: everyone's time begins anew.
    state.save_failed = False
    if state.burst is not None and body.now is not None:
        state.burst.since = body.now
        for cell in state.in_order:
            if cell.since is not None:
                cell.since = body.now


def _drain_requested(state: JobState, body: request_events.DrainRequested) -> None:
    state.drain_requested = body.reason


def _job_started(state: JobState, body: sched.JobStarted) -> None:
    state.status = "running"
    state.lineage = body.lineage
    cells = state.required_spec.cells
    capacities = (*cells.capacities, *(cells.pool_capacity,) * cells.pool_count)
    everyone = (*body.cells, *body.pool)
    state.cells = {
        cell: Cell(
            index=index,
            cell=cell,
            capacity=capacity,
            pool=cell in body.pool,
            place=index,
            since=body.now,
        )
        for index, (cell, capacity) in enumerate(zip(everyone, capacities, strict=True))
    }
    state.seat(body.cells, body.pool)


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


def _dispatched(state: JobState, body: sched.Dispatched) -> None:
    counters = _counters(state, body.kind)
    queue = state.queue if body.kind == "training" else state.heldout_queue
    if body.kind == "training":
        state.num_replacements_due = 0
    if body.kind == "heldout" and state.phase == "training":
        state.measurement_due = False
    else:
        state.dispatch_due = False
    seed = state.required_spec.seed
    for plan in body.groups:
        counters.dispatched += len(plan.executions)
        if body.kind == "training":
            state.num_groups_dispatched += 1
            state.groups[plan.group] = Group(
                group=plan.group,
                version=body.version,
                task=plan.task,
                executions=plan.executions,
            )
            state.unclaimed.setdefault(body.version, {})[plan.group] = None
        for execution in plan.executions:
            number = len(state.executions)
            state.executions[execution] = Execution(group=plan.group, kind=body.kind)
            queue.append(
                Queued(
                    execution=execution,
                    group=plan.group,
                    task=plan.task,
                    seed=seed * 1_000_003 + number,
                )
            )


def _start_ordered(state: JobState, body: sched.StartOrdered) -> None:
    for order in body.orders:
        execution = state.executions[order.execution]
        queue = state.queue if execution.kind == "training" else state.heldout_queue
        queued = queue.popleft()
        if queued.execution != order.execution:
            raise ValueError(f"start order for {order.execution}, queue's head {queued.execution}")
        execution.cell = order.cell
        state.cells[order.cell].executions[order.execution] = None
        _counters(state, execution.kind).ordered += 1
        if execution.lost:
            _end(state, order.execution, by_itself=False)


def _started(state: JobState, body: run_events.Started) -> None:
    execution = state.executions[body.execution]
    if not execution.started:
        execution.started = True
        _counters(state, execution.kind).started += 1


def _terminated(state: JobState, body: run_events.Terminated) -> None:
    execution = state.executions[body.execution]
    if execution.terminated:
        return
    by_itself = ended_by_itself(body.reason)
    _end(state, body.execution, by_itself=by_itself)
    if execution.kind == "training" and by_itself:
        task = state.groups[execution.group].task
        state.lengths.setdefault(task, Lengths()).add(body.duration_s)
        state.all_lengths.add(body.duration_s)


def _end(state: JobState, name: str, *, by_itself: bool) -> None:
    """f rises, and p with it for one that was never said to have started."""
    execution = state.executions[name]
    execution.terminated = True
    counters = _counters(state, execution.kind)
    counters.terminated += 1
    if not execution.started:
        execution.started = True
        counters.started += 1
    if execution.cell is not None:
        state.cells[execution.cell].executions.pop(name, None)
    if execution.kind == "training":
        _count_end(state, state.groups[execution.group], by_itself=by_itself)


def _count_end(state: JobState, group: Group, *, by_itself: bool) -> None:
    """With the N-th of N' done the others are surplus, if any is unfinished."""
    schedule = state.required_spec.schedule
    group.num_ended += 1
    group.num_done += by_itself
    if group.num_ended == len(group.executions):
        state.surplus_due.pop(group.group, None)
    elif (
        by_itself
        and not group.dropped
        and schedule.keep == "first_finished"
        and group.num_done == schedule.executions_per_group
    ):
        state.surplus_due[group.group] = None


def _scored(
    state: JobState,
    body: score_events.Evaluated | score_events.ExecutionExcluded | score_events.PlaceholderScored,
) -> None:
    """A held-out execution's final disposition; a training group speaks for its own."""
    _count_score(state, state.executions[body.execution])


def _count_score(state: JobState, execution: Execution) -> None:
    if execution.kind == "heldout" and not execution.scored:
        execution.scored = True
        state.num_heldout_scored += 1


def _fact_lost(state: JobState, body: FactLost) -> None:
    """Whatever the fact was, its execution is over and will have no score: it may have been the
    last. One that waits for its order keeps its place: an order may be on its way into the log."""
    state.num_lost_facts += 1
    if body.execution is None:
        state.lost_fact = state.lost_fact or body.error
        return
    execution = state.executions.get(body.execution)
    if execution is None:
        return
    execution.lost = True
    _count_score(state, execution)
    if execution.cell is not None and not execution.terminated:
        _end(state, body.execution, by_itself=False)


def _executions_cancelled(state: JobState, body: sched.ExecutionsCancelled) -> None:
    """A cancellation ends a drain too; a drain's own comes before any cancellation."""
    if state.cancel_requested is not None:
        state.cancelled_sent = True
    else:
        state.drained_sent = True
    gone = set(body.queued)
    state.queue = deque(q for q in state.queue if q.execution not in gone)
    state.heldout_queue = deque(q for q in state.heldout_queue if q.execution not in gone)
    for name in body.queued:
        _never_starts(state, name)


def _surplus_cancelled(state: JobState, body: sched.SurplusCancelled) -> None:
    state.surplus_due.pop(body.group, None)
    _leave_queue(state, body.queued)


def _group_dropped(state: JobState, body: sched.GroupDropped) -> None:
    """Void for a group that a batch has claimed: whoever comes first in the log has it."""
    _leave_queue(state, body.queued)
    group = state.groups[body.group]
    if group.dropped or group.claimed_version is not None:
        return
    group.dropped = True
    state.surplus_due.pop(body.group, None)
    state.num_ready_unclaimed -= group.ready
    state.num_groups_dropped += 1
    state.num_replacements_due += 1
    state.leave_buffer(group)


def _leave_queue(state: JobState, names: tuple[str, ...]) -> None:
    """Siblings stand side by side, and near the head when one of them has ended already."""
    for name in names:
        place = next(i for i, queued in enumerate(state.queue) if queued.execution == name)
        del state.queue[place]
        _never_starts(state, name)


def _never_starts(state: JobState, name: str) -> None:
    """Cancelled in the queue: p and f rise together."""
    execution = state.executions[name]
    execution.started = execution.terminated = True
    counters = _counters(state, execution.kind)
    counters.ordered += 1
    counters.started += 1
    counters.terminated += 1
    if execution.kind == "training":
        _count_end(state, state.groups[execution.group], by_itself=False)
    else:
        _count_score(state, execution)


def _counters(state: JobState, kind: str) -> Counters:
    return state.training if kind == "training" else state.heldout


HANDLERS: dict[type[Body], Callable[[JobState, Any], None]] = {
    sched.JobSubmitted: _job_submitted,
    request_events.CancelRequested: _cancel_requested,
    request_events.PauseRequested: _pause_requested,
    request_events.ResumeRequested: _resume_requested,
    request_events.DrainRequested: _drain_requested,
    sched.JobStarted: _job_started,
    sched.WorldFormed: _world_formed,
    sched.PhaseStarted: _phase_started,
    sched.JobFinished: _job_finished,
    sched.Dispatched: _dispatched,
    sched.StartOrdered: _start_ordered,
    sched.ExecutionsCancelled: _executions_cancelled,
    sched.SurplusCancelled: _surplus_cancelled,
    sched.GroupDropped: _group_dropped,
    run_events.Started: _started,
    run_events.Terminated: _terminated,
    score_events.Evaluated: _scored,
    score_events.ExecutionExcluded: _scored,
    score_events.PlaceholderScored: _scored,
    FactLost: _fact_lost,
}
