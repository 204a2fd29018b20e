"""The job's life, dispatch and executions: what moves d, the orders, p and f."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gyre.contracts.envelope import Body
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import scores as score_events
from gyre.core.scheduling.state import Cell, Counters, Execution, Group, JobState, Queued


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
    state.order, state.pool = body.cells, body.pool
    cells = state.required_spec.cells
    capacities = (*cells.capacities, *(cells.pool_capacity,) * cells.pool_count)
    everyone = (*body.cells, *body.pool)
    state.cells = {
        cell: Cell(index=index, cell=cell, capacity=capacity, pool=cell in body.pool)
        for index, (cell, capacity) in enumerate(zip(everyone, capacities, strict=True))
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


def _scored(
    state: JobState,
    body: score_events.Evaluated | score_events.ExecutionExcluded | score_events.PlaceholderScored,
) -> None:
    """A held-out execution's final disposition; a training group speaks for its own."""
    execution = state.executions[body.execution]
    if execution.kind == "heldout" and not execution.scored:
        execution.scored = True
        state.num_heldout_scored += 1


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


HANDLERS: dict[type[Body], Callable[[JobState, Any], None]] = {
    sched.JobSubmitted: _job_submitted,
    sched.CancelRequested: _cancel_requested,
    sched.JobStarted: _job_started,
    sched.WorldFormed: _world_formed,
    sched.PhaseStarted: _phase_started,
    sched.JobFinished: _job_finished,
    sched.Dispatched: _dispatched,
    sched.StartOrdered: _start_ordered,
    sched.ExecutionsCancelled: _executions_cancelled,
    run_events.Started: _started,
    run_events.Terminated: _terminated,
    score_events.Evaluated: _scored,
    score_events.ExecutionExcluded: _scored,
    score_events.PlaceholderScored: _scored,
}
