"""`async`: a fixed split.

The first `training_cells` cells train from the first dispatch to the last step, whether there is
work for them or not; the others serve."""

from __future__ import annotations

from gyre.core.scheduling import transitions
from gyre.core.scheduling.cadence import due_at_publication
from gyre.core.scheduling.ledger import pool_capacity, reserved_capacity
from gyre.core.scheduling.policies.base import BurstEnd, Common, turn
from gyre.core.scheduling.policies.words import Supply, capacity_terms
from gyre.core.scheduling.state import Cell, JobState


class Fixed(Common):
    asks_waterlevel = False

    def next_cell(self, state: JobState) -> Cell | None:
        if transitions.steps_done(state):
            return None
        cell = turn(state, satellites_need_batch=False)
        return cell if cell is not None and cell.index < _num_fixed(state) else None

    def supplied(self, state: JobState, cell: Cell) -> bool:
        return True

    def timer_s(self, state: JobState, cell: Cell) -> float:
        return 0.0

    def capacity_after(self, state: JobState, cell: Cell) -> int:
        """What the cells outside the split hold; nothing outstanding counts against it."""
        return max(_serving_capacity(state), state.training.waterlevel)

    def may_dispatch(self, state: JobState) -> bool:
        """Once the split stands, so that nothing starts on a cell that is about to leave."""
        if transitions.steps_done(state):
            return True
        fixed = state.in_order[: _num_fixed(state)]
        return all(cell.role == "training" for cell in fixed)

    def at_burst_end(self, state: JobState) -> BurstEnd:
        stays = not transitions.steps_done(state)
        satellites = tuple(cell.cell for cell in state.in_order[1 : _num_fixed(state)])
        return BurstEnd(
            core_stays=stays,
            staying_satellites=satellites if stays else (),
            due=due_at_publication(state, self.cadence),
            capacity=_serving_capacity(state),
        )

    def nobody_serves(self, state: JobState) -> str | None:
        num = _num_fixed(state)
        if len(state.everyone) > num:
            return None
        return f"policy async keeps {num} of its cells in training and none is left to serve"

    def supply_of(self, state: JobState, cell: Cell) -> Supply:
        return Supply(terms="policy async asks for none")

    def capacity_after_terms(self, state: JobState, cell: Cell) -> str:
        serving, w = _serving_capacity(state), state.training.waterlevel
        return (
            f"max(w, capacity of the cells that serve for good) = max({w}, {serving}): a fixed "
            "split is not held against it"
        )

    def burst_end_terms(self, state: JobState) -> str:
        numbers = f"{pool_capacity(state)} + {_capacity_outside(state)}"
        return capacity_terms(state, "C_s + all cells outside the split", numbers)

    def left_out(self, state: JobState, cell: Cell) -> str | None:
        return f"training_cells is {_num_fixed(state)}: the other cells serve for good"


def _num_fixed(state: JobState) -> int:
    return state.required_spec.schedule.training_cells or 0


def _serving_capacity(state: JobState) -> int:
    return pool_capacity(state) + _capacity_outside(state) - reserved_capacity(state)


def _capacity_outside(state: JobState) -> int:
    return sum(cell.capacity for cell in state.in_order[_num_fixed(state) :])
