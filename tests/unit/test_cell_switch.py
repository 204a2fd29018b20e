"""What a cell knows of the switch that it drains for."""

from __future__ import annotations

from gyre.contracts.events.scheduling import Move, TransitionStarted
from gyre.core.cell import CellState, evolve_cell


def test_a_cell_knows_its_own_last_switch_and_how_many_it_moved_away() -> None:
    state = CellState(cell=1, job="j")
    for sequence, cell, num_moves in ((7, 1, 2), (9, 0, 3), (11, 1, 0)):
        moves = tuple(
            Move(execution=f"e{number}", source=cell, destination=2) for number in range(num_moves)
        )
        fact = TransitionStarted(
            based_on=0,
            now=0.0,
            cell=cell,
            to="training",
            moves=moves,
            waterlevel=0,
            capacity_after=0,
        )
        state = evolve_cell(state, sequence, "j", "facts.j.job.j.sched", fact)
        known = state.switch, state.num_moved
        assert known == {7: (7, 2), 9: (7, 2), 11: (11, 0)}[sequence]
