"""Cells: their roles and routes, their processes, the worlds of their trainers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling.state import Cell, JobState


def _transition_started(state: JobState, body: sched.TransitionStarted) -> None:
    cell = state.cells[body.cell]
    state.set_role(cell, "to_training" if body.to == "training" else "to_rollout")
    state.supply_since = None
    _move(state, body.moves)


def _role_changed(state: JobState, body: cell_events.RoleChanged) -> None:
    cell = state.cells.get(body.cell)
    if cell is None or cell.role == "lost":
        return
    if body.role == "training":
        # A burst that ended while the cell was on its way sends it straight back.
        state.set_role(cell, "training" if cell.role == "to_training" else cell.role)
    elif body.role == "rollout":
        state.set_role(cell, "rollout")
        cell.num_boot_failures = 0
    else:
        state.set_role(cell, "offline")


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
        state.set_role(cell, "booting")


def _cell_lost(state: JobState, body: sched.CellLost) -> None:
    state.set_role(state.cells[body.cell], "lost")
    _move(state, body.moves)


HANDLERS: dict[type[Body], Callable[[JobState, Any], None]] = {
    sched.SupplyTimerStarted: _supply_started,
    sched.SupplyTimerStopped: _supply_stopped,
    sched.TransitionStarted: _transition_started,
    sched.CellLost: _cell_lost,
    cell_events.RoleChanged: _role_changed,
    cell_events.TrainerReady: _trainer_ready,
    cell_events.WorldJoined: _world_joined,
    cell_events.TrainerLost: _trainer_lost,
    cell_events.WorldBroken: _world_broken,
    cell_events.EngineLost: _engine_lost,
}
