"""Cells: their roles and routes, their processes, the worlds of their trainers; who leaves, who
joins. What a cell that left says from then on is void, but that it is offline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import requests as request_events
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling.state import Cell, JobState, Role


def _transition_started(state: JobState, body: sched.TransitionStarted) -> None:
    cell, batch = state.cells[body.cell], state.batch
    state.set_role(cell, "to_training" if body.to == "training" else "to_rollout", body.now)
    state.supply_since = None
    _move(state, body.moves)
    if body.to == "training":
        return
    if cell.index == 0:
        _give_up(state, body.now)
    elif batch is not None and cell.cell in batch.joined:
        batch.fence_due = (*batch.fence_due, cell.cell)
        state.world_stale = True


def _role_changed(state: JobState, body: cell_events.RoleChanged) -> None:
    cell = state.cells.get(body.cell)
    if cell is None or (cell.gone and body.role != "offline"):
        return
    if body.role == "training":
        # A burst that ended while the cell was on its way sends it straight back.
        if cell.role == "to_training":
            state.set_role(cell, "training")
    elif body.role == "rollout":
        state.set_role(cell, "rollout")
        cell.num_boot_failures = 0
        cell.engine_up, cell.served = True, (body.lineage, body.version)
    else:
        state.set_role(cell, "offline")


def _weights_loaded(state: JobState, body: cell_events.WeightsLoaded) -> None:
    if body.cell in state.cells:
        state.cells[body.cell].served = (body.lineage, body.version)


def _supply_started(state: JobState, body: sched.SupplyTimerStarted) -> None:
    state.supply_since = body.now


def _supply_stopped(state: JobState, body: sched.SupplyTimerStopped) -> None:
    state.supply_since = None


def _move(state: JobState, moves: tuple[sched.Move, ...]) -> None:
    """An execution that ended between the decision and its event holds no slot anywhere."""
    for move in moves:
        if state.executions[move.execution].terminated:
            continue
        state.cells[move.source].executions.pop(move.execution, None)
        state.cells[move.destination].executions[move.execution] = None
        state.executions[move.execution].cell = move.destination


def _trainer_ready(state: JobState, body: cell_events.TrainerReady) -> None:
    cell = state.present(body.cell)
    if cell is not None:
        state.set_trainer(cell, up=True)


def _world_joined(state: JobState, body: cell_events.WorldJoined) -> None:
    cell = state.present(body.cell)
    if cell is not None:
        cell.in_world = body.epoch


def _trainer_lost(state: JobState, body: cell_events.TrainerLost) -> None:
    cell = state.present(body.cell)
    if cell is None:
        return
    state.set_trainer(cell, up=False)
    cell.num_trainer_losses += 1
    state.num_losses += 1
    cell.last_error = body.error
    _leave_world(state, cell)
    if cell.index == 0:
        # Weights newer than the last durable checkpoint died with the core, and so did the batch.
        state.core_lost |= state.batch is not None or state.version > state.durable_version
    elif state.batch is not None and body.cell in state.batch.joined:
        state.batch.fence_due = (*state.batch.fence_due, body.cell)


def _world_broken(state: JobState, body: cell_events.WorldBroken) -> None:
    cell, batch = state.present(body.cell), state.batch
    if cell is None or body.epoch != state.epoch:
        return
    _leave_world(state, cell)
    if batch is not None and body.cell in batch.joined and batch.fenced_epoch < body.epoch:
        batch.reopen_due = True


def _leave_world(state: JobState, cell: Cell) -> None:
    cell.in_world = 0
    state.world_stale |= cell.cell in state.world


def _engine_lost(state: JobState, body: cell_events.EngineLost) -> None:
    cell = state.present(body.cell)
    if cell is None:
        return
    cell.engine_up, cell.served = False, None
    cell.num_boot_failures += 1
    state.num_losses += 1
    cell.last_error = body.error
    if cell.role == "rollout":
        state.set_role(cell, "booting")


def _cell_watched(state: JobState, body: sched.CellWatched) -> None:
    cell = state.present(body.cell)
    if cell is not None and cell.role == "booting":
        cell.since = body.now


def _agent_silent(state: JobState, body: sched.AgentSilent) -> None:
    cell = state.present(body.cell)
    if cell is not None:
        cell.silent = True
        state.awaited[body.cell] = None


def _release_requested(state: JobState, body: request_events.ReleaseRequested) -> None:
    state.released[body.cell] = None


def _cell_lost(state: JobState, body: sched.CellLost) -> None:
    state.cells[body.cell].num_lost += 1
    state.last_loss = f"cell {body.cell}: {body.reason}"
    _leave(state, state.cells[body.cell], "lost", body.moves, body.now)
    if state.order and state.core_lost:
        state.core.last_error = state.last_loss


def _cell_released(state: JobState, body: sched.CellReleased) -> None:
    _leave(state, state.cells[body.cell], "released", body.moves, body.now)


def _leave(
    state: JobState, cell: Cell, role: Role, moves: tuple[sched.Move, ...], now: float
) -> None:
    """The cell is none of the job's any more; the next in order is the core if it was."""
    was_core = not cell.pool and cell.index == 0
    state.set_role(cell, role)
    _move(state, moves)
    state.set_trainer(cell, up=False)
    _leave_world(state, cell)
    if state.batch is not None and cell.cell in state.batch.joined:
        state.batch.fence_due = (*state.batch.fence_due, cell.cell)
    state.seat(
        tuple(number for number in state.order if number != cell.cell),
        tuple(number for number in state.pool if number != cell.cell),
    )
    state.supply_since = None
    if was_core:
        _orphan(state, now)
    elif state.order and state.core.since is not None:
        # The core may have waited for this cell alone: its time begins anew.
        state.core.since = now


def _give_up(state: JobState, now: float) -> None:
    """The core goes back before the burst's end: what it has trained since the last publication
    goes back to the buffer."""
    if state.batch is not None or state.version > state.published:
        _orphan(state, now)
    else:
        state.burst = None


def _orphan(state: JobState, now: float) -> None:
    """Nobody holds the optimizer's state any more. The open batch is over: a step_completed that a
    core which only seemed lost still says of it is void."""
    state.core_lost = True
    state.batch = None
    if state.order and state.burst is not None and state.burst.ended:
        state.core.since = now


def _cell_joined(state: JobState, body: sched.CellJoined) -> None:
    """It takes the lowest place of the job file that a cell left free, and its capacity."""
    held = {cell.place for cell in state.in_order}
    place = next(place for place in range(len(held) + 1) if place not in held)
    before = state.cells.get(body.cell)
    state.cells[body.cell] = Cell(
        index=body.index,
        cell=body.cell,
        capacity=state.required_spec.cells.capacities[place],
        place=place,
        since=body.now,
        num_lost=before.num_lost if before is not None else 0,
    )
    state.seat((*state.order, body.cell), state.pool)


HANDLERS: dict[type[Body], Callable[[JobState, Any], None]] = {
    sched.SupplyTimerStarted: _supply_started,
    sched.SupplyTimerStopped: _supply_stopped,
    sched.TransitionStarted: _transition_started,
    sched.CellWatched: _cell_watched,
    sched.AgentSilent: _agent_silent,
    request_events.ReleaseRequested: _release_requested,
    sched.CellLost: _cell_lost,
    sched.CellReleased: _cell_released,
    sched.CellJoined: _cell_joined,
    cell_events.RoleChanged: _role_changed,
    cell_events.TrainerReady: _trainer_ready,
    cell_events.WorldJoined: _world_joined,
    cell_events.TrainerLost: _trainer_lost,
    cell_events.WorldBroken: _world_broken,
    cell_events.EngineLost: _engine_lost,
    cell_events.WeightsLoaded: _weights_loaded,
}
