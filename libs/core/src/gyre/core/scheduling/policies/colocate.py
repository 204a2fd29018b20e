"""`colocate`: all elastic cells change role as one.

Without a pool that is at waterlevel 0 (global), with one when the pool can hold what is left
(coarse)."""

from __future__ import annotations

from gyre.core.scheduling.ledger import pool_capacity, reserved_capacity
from gyre.core.scheduling.policies.base import BurstEnd, Common, begins, stay_if_it_fits, turn
from gyre.core.scheduling.policies.words import Supply, capacity_terms, for_core
from gyre.core.scheduling.state import Cell, JobState


class Colocate(Common):
    def next_cell(self, state: JobState) -> Cell | None:
        return turn(state, satellites_need_batch=False)

    def supplied(self, state: JobState, cell: Cell) -> bool:
        """The core's turn decides for all: the others follow."""
        return begins(state, self.cadence) if cell.index == 0 else True

    def timer_s(self, state: JobState, cell: Cell) -> float:
        schedule = state.required_spec.schedule
        return schedule.tau_s if cell.index == 0 and schedule.streaming else 0.0

    def capacity_after(self, state: JobState, cell: Cell) -> int:
        return pool_capacity(state) - reserved_capacity(state)

    def may_dispatch(self, state: JobState) -> bool:
        return True

    def at_burst_end(self, state: JobState) -> BurstEnd:
        """Eq. (3) with all cells in the core's place: they stay if the pool holds everything."""
        satellites = tuple(cell.cell for cell in state.in_order[1:] if cell.role == "training")
        capacity = pool_capacity(state) - reserved_capacity(state)
        return stay_if_it_fits(state, self.cadence, capacity, satellites)

    def supply_of(self, state: JobState, cell: Cell) -> Supply:
        if cell.index > 0:
            return Supply(terms="it follows the core")
        return for_core(state, self.cadence)

    def capacity_after_terms(self, state: JobState, cell: Cell) -> str:
        return f"{self.burst_end_terms(state)}: all cells leave as one"

    def burst_end_terms(self, state: JobState) -> str:
        return capacity_terms(state, "C_s", str(pool_capacity(state)))
