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
    return state.num_ready_unclaimed > 0 and supply(state) >= threshold(state)


def trainable(state: JobState, cell: Cell) -> bool:
    """Its trainer lives and stands in the current world."""
    return cell.trainer_up and cell.cell in state.world and cell.in_world == state.epoch


def in_one_world(state: JobState, members: tuple[int, ...]) -> bool:
    """All of `members` are connected to one another."""
    return all(state.cells[cell].in_world == state.epoch for cell in members)


def num_unclaimed(state: JobState) -> int:
    """Groups in flight: dispatched, neither drawn by a batch nor dropped."""
    return sum(len(groups) for groups in state.unclaimed.values())


def short_of_groups(state: JobState) -> bool:
    """Dropped groups leave too few in flight for another step."""
    if state.num_groups_dropped == 0:
        return False
    return num_unclaimed(state) < state.required_spec.schedule.groups_per_step


def drained(state: JobState) -> bool:
    """A drain was asked for and the burst that was under way, if any, is over and published."""
    if state.drain_requested is None or state.core_lost:
        return False
    return state.burst is None and state.published == state.version


def held_back(state: JobState) -> bool:
    """No cell joins training: the job is paused, or it is drained and begins no further burst."""
    return state.paused or (state.drain_requested is not None and state.burst is None)


def window_closed(state: JobState) -> bool:
    return state.batch is not None and state.batch.members is not None
