"""A policy says which cells train when; all else of the decider is the same under each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gyre.contracts.events.scheduling import GroupPlan
from gyre.core.scheduling import transitions
from gyre.core.scheduling.cadence import Cadence, Due, Even, burst_groups, due_at_publication
from gyre.core.scheduling.policies.words import Supply
from gyre.core.scheduling.state import Cell, JobState


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstEnd:
    """Who goes on training after a burst, and what was tested for it.

    due: what the publication will dispatch. capacity: right side of eq. (3), executions that the
    cells which go back can hold, with the pool's.
    """

    core_stays: bool
    staying_satellites: tuple[int, ...]
    due: Due
    capacity: int


class Policy(Protocol):
    """Pure; every answer is of the state alone. cadence: the lengths of its bursts.

    asks_waterlevel: it holds w against the capacity of those who go on serving, eq. (2) and (3).
    """

    @property
    def cadence(self) -> Cadence: ...

    @property
    def asks_waterlevel(self) -> bool: ...

    def next_cell(self, state: JobState) -> Cell | None:
        """The cell whose turn it is to join training, None when none may."""
        ...

    def supplied(self, state: JobState, cell: Cell) -> bool:
        """There are groups enough for `cell` to join."""
        ...

    def timer_s(self, state: JobState, cell: Cell) -> float:
        """How long they must have been there without a break, seconds."""
        ...

    def capacity_after(self, state: JobState, cell: Cell) -> int:
        """Right side of eq. (2): the capacity that is left when `cell` has gone. The cell may join
        while the waterlevel is not above it."""
        ...

    def may_dispatch(self, state: JobState) -> bool:
        """Training groups may enter the queue."""
        ...

    def start_order(self, state: JobState, groups: tuple[GroupPlan, ...]) -> tuple[GroupPlan, ...]:
        """The groups of one dispatch in the order in which they shall start."""
        ...

    def at_burst_end(self, state: JobState) -> BurstEnd:
        """Eq. (3), or what the policy has in its place."""
        ...

    def nobody_serves(self, state: JobState) -> str | None:
        """Why no cell is left that would ever serve, cells having been lost; None while one is."""
        ...

    # What `gyre why` says of these answers.

    def supply_of(self, state: JobState, cell: Cell) -> Supply:
        """What `supplied` counts."""
        ...

    def capacity_after_terms(self, state: JobState, cell: Cell) -> str:
        """What `capacity_after` is made of: "names = numbers"."""
        ...

    def burst_end_terms(self, state: JobState) -> str:
        """What the capacity of `at_burst_end` is made of: "names = numbers"."""
        ...

    def left_out(self, state: JobState, cell: Cell) -> str | None:
        """Why it is not the turn of `cell`, which could train and is next in order; None where
        the policy has nothing against it."""
        ...


class Common:
    """What a policy has if it says nothing else: the paper's bursts, groups that start in the task
    set's order, a waterlevel that counts, cells that all serve and train, nobody left out."""

    cadence: Cadence = Even()
    asks_waterlevel: bool = True

    def start_order(self, state: JobState, groups: tuple[GroupPlan, ...]) -> tuple[GroupPlan, ...]:
        return groups

    def nobody_serves(self, state: JobState) -> str | None:
        return None

    def left_out(self, state: JobState, cell: Cell) -> str | None:
        return None


def turn(state: JobState, *, satellites_need_batch: bool) -> Cell | None:
    """The next cell of the prefix: core first, satellites in index order, one at a time, none while
    another is on its way, none once the batch's window is closed or the burst is over."""
    if state.phase != "training" or state.transitioning is not None:
        return None
    if state.burst is not None and (state.burst.ended or transitions.window_closed(state)):
        return None
    for cell in state.in_order:
        if cell.role == "training":
            continue
        if cell.role != "rollout" or not transitions.trainable(state, cell):
            return None
        if cell.index > 0 and satellites_need_batch and state.batch is None:
            return None
        return cell
    return None


def begins(state: JobState, cadence: Cadence) -> bool:
    """There are groups enough for the core: rho_min B of the next batch, or, without streaming, all
    mu B of the burst."""
    if state.required_spec.schedule.streaming:
        return transitions.supplied(state)
    return whole_burst_ready(state, cadence)


def whole_burst_ready(state: JobState, cadence: Cadence) -> bool:
    due = burst_groups(state, cadence)
    return 0 < due <= state.num_ready_unclaimed


def stay_if_it_fits(
    state: JobState, cadence: Cadence, capacity: int, satellites: tuple[int, ...] = ()
) -> BurstEnd:
    """Eq. (3) and the next batch's supply: the core stays, and `satellites` with it, if `capacity`
    holds w + mu N B."""
    due = due_at_publication(state, cadence)
    stays = (
        begins(state, cadence)
        and state.training.waterlevel + due.executions <= capacity
        and not transitions.steps_done(state)
    )
    return BurstEnd(
        core_stays=stays,
        staying_satellites=satellites if stays else (),
        due=due,
        capacity=capacity,
    )
