"""When a cell may change role: eq. (2) with the supply check, and eq. (3) at a burst's end.

- Serial: no transition starts while a cell is on its way into training.
- Prefix: core first, then satellites in index order, never back within a burst.
- Supply: min(ready and unclaimed, what the batch still needs) >= rho_min B for tau, unbroken; the
  timer restarts at each transition and each batch.
"""

from __future__ import annotations

import math

from gyre.core.scheduling.ledger import rollout_capacity
from gyre.core.scheduling.state import Cell, JobState


def groups_needed(state: JobState) -> int:
    """How many groups the current batch, or the next one when none is open, still needs."""
    if state.num_steps_done >= state.required_spec.schedule.num_steps:
        return 0
    claimed = state.batch.num_claimed_groups if state.batch else 0
    return state.required_spec.schedule.groups_per_step - claimed


def supply(state: JobState) -> int:
    """Ready and unclaimed groups, capped by what the batch still needs."""
    return min(state.num_ready_unclaimed, groups_needed(state))


def threshold(state: JobState) -> int:
    """rho_min B as a whole number of groups, at least 1. The tolerance keeps 1/3 * 6 at 2."""
    schedule = state.required_spec.schedule
    return max(1, math.ceil(schedule.rho_min * schedule.groups_per_step - 1e-9))


def supplied(state: JobState) -> bool:
    return supply(state) >= threshold(state)


def next_cell(state: JobState) -> Cell | None:
    """The cell whose turn it is to join training, None when none may."""
    if state.phase != "training" or state.transitioning is not None:
        return None
    if state.burst is not None and (state.burst.ended or _window_closed(state)):
        return None
    for cell in state.in_order:
        if cell.role == "training":
            continue
        if cell.role != "rollout" or not trainable(state, cell):
            return None
        if cell.index > 0 and state.batch is None:
            return None
        return cell
    return None


def trainable(state: JobState, cell: Cell) -> bool:
    """Its trainer lives and stands in the current world."""
    return cell.trainer_up and cell.cell in state.world and cell.in_world == state.epoch


def waterlevel_allows(state: JobState, cell: Cell) -> bool:
    """Eq. (2): w <= C_R - C_next."""
    return state.training.waterlevel <= rollout_capacity(state) - cell.capacity


def capacity_without_core(state: JobState) -> int:
    """Right side of eq. (3): C_s plus the capacity of every cell but the core."""
    spec = state.required_spec
    return spec.cells.pool_capacity + sum(cell.capacity for cell in state.in_order[1:])


def next_dispatch(state: JobState, *, first: bool) -> int:
    """Groups to dispatch: (phi + mu) B at first, mu B after a publication, cut at the job's end."""
    schedule = state.required_spec.schedule
    wanted = schedule.mu * schedule.groups_per_step + (schedule.extra_groups if first else 0)
    total = schedule.num_steps * schedule.groups_per_step
    return max(0, min(wanted, total - state.num_groups_dispatched))


def core_stays(state: JobState) -> bool:
    """Eq. (3) and the next batch's supply: w + mu N B <= C_s + capacity of all but the core."""
    spec = state.required_spec
    if state.num_steps_done >= spec.schedule.num_steps:
        return False
    outstanding = state.training.waterlevel + (
        next_dispatch(state, first=False) * spec.schedule.executions_per_group
    )
    return supplied(state) and outstanding <= capacity_without_core(state)


def _window_closed(state: JobState) -> bool:
    return state.batch is not None and state.batch.members is not None
