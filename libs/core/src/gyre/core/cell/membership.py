"""Which cells a job has, as one cell sees it: they leave, join, and go back to serve early."""

from __future__ import annotations

from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import steps as step_events
from gyre.core.cell.state import CellState

# They say something of the cell that they name: void when it is none of the job's.
SAID_BY_A_CELL = (
    cell_events.RoleChanged,
    cell_events.EngineLost,
    cell_events.TrainerReady,
    cell_events.TrainerLost,
    cell_events.WorldReady,
    cell_events.WorldBroken,
    cell_events.WeightsExposed,
    cell_events.BatchJoined,
    step_events.MicroStepClaimed,
    cell_events.WeightsLoaded,
    cell_events.CheckpointFailed,
)


def started(state: CellState, job: str, body: sched.JobStarted) -> CellState:
    """A job that begins, as a cell sees it whether it has a part in it or not."""
    everyone = (*body.cells, *body.pool)
    return CellState(
        cell=state.cell,
        specs=state.specs,
        job=job,
        spec=state.specs[job],
        order=body.cells,
        in_pool=state.cell in body.pool,
        place=everyone.index(state.cell) if state.cell in everyone else 0,
        members=set(everyone),
        places={cell: place for place, cell in enumerate(body.cells)},
        initial=(body.lineage, 0),
        version=(body.lineage, 0),
        published=(body.lineage, 0),
    )


def turn_to(mine: CellState, before: CellState) -> CellState:
    """`mine` is my job from here on; the one before is another's, if it still runs."""
    mine.others, before.others = before.others, {}
    if before.job is not None and not before.finished:
        mine.others[before.job] = before
    return mine


def cell_left(state: CellState, body: sched.CellLost | sched.CellReleased) -> None:
    """The next cell in order is the core if the core left, and nobody holds its optimizer."""
    if state.order[:1] == (body.cell,):
        _give_up(state)
    state.order = tuple(cell for cell in state.order if cell != body.cell)
    state.members.discard(body.cell)
    state.places.pop(body.cell, None)
    state.in_rollout.discard(body.cell)
    state.serving.pop(body.cell, None)
    state.trainers.discard(body.cell)
    state.doomed |= body.cell in state.world
    if body.cell == state.cell:
        state.gone = True
        state.transition = state.leaving = False


def cell_joined(state: CellState, body: sched.CellJoined) -> None:
    held = set(state.places.values())
    place = next(place for place in range(len(held) + 1) if place not in held)
    state.order = (*state.order, body.cell)
    state.members.add(body.cell)
    state.places[body.cell] = place
    if body.cell != state.cell:
        return
    state.place, state.in_pool, state.gone, state.role = place, False, False, "none"
    state.engine_reported = state.trainer_reported = False
    state.transition = state.leaving = False
    state.left_epoch = state.epoch


def sent_back(state: CellState, body: sched.TransitionStarted) -> None:
    """Before its burst's end: with the weights that are published, whatever was trained since."""
    if state.order[:1] == (body.cell,) and (
        state.batch is not None or state.version > state.published
    ):
        _give_up(state)
    if body.cell == state.cell:
        state.transition, state.leaving = False, True
        state.leave_version = state.published


def _give_up(state: CellState) -> None:
    state.orphaned = True
    state.batch = state.exposure = None


def said_outside(state: CellState, body: Body) -> None:
    """What I hold, though I am none of the job's cells any more."""
    match body:
        case cell_events.RoleChanged(role=role):
            state.role = role
        case cell_events.EngineLost():
            state.engine_reported = False
        case cell_events.TrainerLost():
            state.trainer_reported = False
        case _:
            pass
