"""`gyre`, the paper's: cells join one by one as the waterlevel falls, eq. (2), and go back at the
burst's end, the core too unless eq. (3) lets it stay.

- Serial: no transition starts while a cell is on its way into training.
- Prefix: core first, then satellites in index order, never back within a burst.
- Supply: min(ready and unclaimed, what the batch still needs) >= rho_min B for tau, unbroken; the
  timer restarts at each transition and each batch.
"""

from __future__ import annotations

from gyre.core.scheduling import transitions
from gyre.core.scheduling.cadence import executions_due
from gyre.core.scheduling.ledger import pool_capacity, reserved_capacity, training_capacity
from gyre.core.scheduling.policies.base import AsDispatched, BurstEnd, begins, turn
from gyre.core.scheduling.state import Cell, JobState


class Elastic(AsDispatched):
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
        capacity = pool_capacity(state) + sum(cell.capacity for cell in state.in_order[1:])
        capacity -= reserved_capacity(state)
        outstanding = state.training.waterlevel + executions_due(state, self.cadence)
        stays = (
            begins(state, self.cadence)
            and outstanding <= capacity
            and not transitions.steps_done(state)
        )
        return BurstEnd(core_stays=stays, staying_satellites=(), capacity=capacity)
