"""The trainers' idle share in a report: summed over cells and steps; absent where none is told."""

from __future__ import annotations

from gyre.contracts.events.steps import NO_STATISTICS, CellTime
from gyre.core.trainer_times import trainer_times


def test_idle_is_a_share_of_what_all_cells_had_in_all_steps() -> None:
    times = (
        (CellTime(cell=0, busy_s=6.0, idle_s=2.0), CellTime(cell=1, busy_s=3.0, idle_s=1.0)),
        (CellTime(cell=0, busy_s=7.0, idle_s=1.0, pull_s=0.5),),
    )
    steps = [NO_STATISTICS.model_copy(update={"cell_times": each}).model_dump() for each in times]
    assert trainer_times(steps) == {
        "trainer_busy_s": 16.0,
        "trainer_idle_s": 4.0,
        "trainer_pull_s": 0.5,
        "trainer_idle_share": 0.2,
    }


def test_steps_that_tell_no_times_have_no_share() -> None:
    assert trainer_times([NO_STATISTICS.model_dump()])["trainer_idle_share"] is None
    assert trainer_times([])["trainer_idle_share"] is None
