"""`gyre`, the paper's: cells join one by one as the waterlevel falls, eq. (2), and go back at the
burst's end, the core too unless eq. (3) lets it stay.

- Serial: no transition starts while a cell is on its way into training.
- Prefix: core first, then satellites in index order, never back within a burst.
- Supply: min(ready and unclaimed, what the batch still needs) >= rho_min B for tau, unbroken; the
  timer restarts at each transition and each batch.
"""

from __future__ import annotations

from gyre.core.scheduling import transitions
from gyre.core.scheduling.ledger import (
    pool_capacity,
    reserved_capacity,
    rollout_capacity,
    training_capacity,
)
from gyre.core.scheduling.policies.base import BurstEnd, Common, begins, stay_if_it_fits, turn
from gyre.core.scheduling.policies.words import Supply, capacity_terms, for_batch, for_core
from gyre.core.scheduling.state import Cell, JobState


class Elastic(Common):
    def next_cell(self, state: JobState) -> Cell | None:
        return turn(state, satellites_need_batch=True)

    def supplied(self, state: JobState, cell: Cell) -> bool:
        return begins(state, self.cadence) if cell.index == 0 else transitions.supplied(state)

    def timer_s(self, state: JobState, cell: Cell) -> float:
        return state.required_spec.schedule.tau_s

    def capacity_after(self, state: JobState, cell: Cell) -> int:
        """C_R - C_next, where C_R is without what is reserved."""
        return training_capacity(state) - cell.capacity

    def may_dispatch(self, state: JobState) -> bool:
        return True

    def at_burst_end(self, state: JobState) -> BurstEnd:
        """Eq. (3) and the next batch's supply: w + mu N B <= C_s + capacity of all but the core."""
        capacity = pool_capacity(state) + _satellites_capacity(state) - reserved_capacity(state)
        return stay_if_it_fits(state, self.cadence, capacity)

    def supply_of(self, state: JobState, cell: Cell) -> Supply:
        return for_core(state, self.cadence) if cell.index == 0 else for_batch(state)

    def capacity_after_terms(self, state: JobState, cell: Cell) -> str:
        numbers = f"{rollout_capacity(state)} - {cell.capacity}"
        return capacity_terms(state, "C_R - C_next", numbers)

    def burst_end_terms(self, state: JobState) -> str:
        numbers = f"{pool_capacity(state)} + {_satellites_capacity(state)}"
        return capacity_terms(state, "C_s + all cells but the core", numbers)

    def left_out(self, state: JobState, cell: Cell) -> str | None:
        if cell.index == 0 or state.batch is not None:
            return None
        return f"cell {cell.cell}, the next in order, is a satellite, and no batch is open to join"


def _satellites_capacity(state: JobState) -> int:
    return sum(cell.capacity for cell in state.in_order[1:])
