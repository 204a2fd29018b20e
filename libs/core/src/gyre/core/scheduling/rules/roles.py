"""Cells on their way into training: the supply timer and eq. (2)."""

from __future__ import annotations

from gyre.contracts.envelope import Body
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import ledger, transitions
from gyre.core.scheduling.policies import policy_of
from gyre.core.scheduling.state import Cell, JobState


def back_to_rollout(state: JobState, cell: Cell, now: float) -> Body:
    """The way out of training outside a burst's end: whoever stayed over a publication, or must
    serve because nobody else does."""
    return sched.TransitionStarted(
        based_on=state.sequence,
        now=now,
        cell=cell.cell,
        to="rollout",
        waterlevel=state.training.waterlevel,
        capacity_after=ledger.rollout_capacity(state) + cell.capacity,
    )


def supply_timer(state: JobState, now: float) -> Body | None:
    """It runs while a cell could join and has supply."""
    policy = policy_of(state)
    cell = policy.next_cell(state)
    running = state.supply_since is not None
    wanted = cell is not None and policy.supplied(state, cell)
    wanted = wanted and not transitions.held_back(state)
    if running == wanted:
        return None
    event = sched.SupplyTimerStarted if wanted else sched.SupplyTimerStopped
    return event(
        based_on=state.sequence,
        now=now,
        ready=state.num_ready_unclaimed,
        needed=transitions.groups_needed(state),
    )


def transition(state: JobState, now: float) -> Body | None:
    """The timer has run out and the waterlevel allows it."""
    if state.supply_since is None or transitions.held_back(state):
        return None
    policy = policy_of(state)
    cell = policy.next_cell(state)
    if cell is None:
        return None
    if now < state.supply_since + policy.timer_s(state, cell):
        return None
    capacity_after = policy.capacity_after(state, cell)
    if state.training.waterlevel > capacity_after:
        return None
    return sched.TransitionStarted(
        based_on=state.sequence,
        now=now,
        cell=cell.cell,
        to="training",
        moves=ledger.moves_off(state, cell),
        waterlevel=state.training.waterlevel,
        capacity_after=capacity_after,
        batch=state.batch.batch if state.batch else None,
    )
