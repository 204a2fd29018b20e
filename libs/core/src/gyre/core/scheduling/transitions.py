"""What the transition law counts: supply, what a batch needs, what is dispatched next.

Whose turn it is, and what the waterlevel is held against, is the policy's (`policies`).
"""

from __future__ import annotations

import math

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


def steps_done(state: JobState) -> bool:
    """All of the job's steps are applied."""
    return state.num_steps_done >= state.required_spec.schedule.num_steps


def threshold(state: JobState) -> int:
    """rho_min B as a whole number of groups, at least 1. The tolerance keeps 1/3 * 6 at 2."""
    schedule = state.required_spec.schedule
    return max(1, math.ceil(schedule.rho_min * schedule.groups_per_step - 1e-9))


def supplied(state: JobState) -> bool:
    return supply(state) >= threshold(state)


def trainable(state: JobState, cell: Cell) -> bool:
    """Its trainer lives and stands in the current world."""
    return cell.trainer_up and cell.cell in state.world and cell.in_world == state.epoch


def in_one_world(state: JobState, members: tuple[int, ...]) -> bool:
    """All of `members` are connected to one another."""
    return all(state.cells[cell].in_world == state.epoch for cell in members)


def next_dispatch(state: JobState, *, first: bool) -> int:
    """Groups to dispatch: (phi + mu) B at first, mu B after a publication, cut at the job's end."""
    schedule = state.required_spec.schedule
    wanted = schedule.mu * schedule.groups_per_step + (schedule.extra_groups if first else 0)
    total = schedule.num_steps * schedule.groups_per_step
    return max(0, min(wanted, total - state.num_groups_dispatched))


def executions_due(state: JobState) -> int:
    """mu N B, the executions that the next publication dispatches; N' under oversampling."""
    return next_dispatch(state, first=False) * state.required_spec.schedule.group_size


def burst_groups(state: JobState) -> int:
    """mu B, the groups of the burst that begins next, cut at the job's end."""
    schedule = state.required_spec.schedule
    steps = min(schedule.mu, schedule.num_steps - state.num_steps_done)
    return steps * schedule.groups_per_step


def window_closed(state: JobState) -> bool:
    return state.batch is not None and state.batch.members is not None
