"""Laws `training` and `recovery` when whole cells are lost, cut off, released and join.

Real scheduler loops and real agents on a lagging log, as in test_training_law; an agent may be gone
for good, or cut off from the log while its processes work on; a spare cell may take a lost one's
place in the middle of the job.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import steps as step_events
from gyre.testkit.training_strategies import JOBS, MOMENTS, PACES, VICTIMS, live
from gyre.testkit.training_world import Strike, TrainingWorld

# More for a long run: GYRE_TRAINING_EXAMPLES=2000.
NUM_EXAMPLES = int(os.environ.get("GYRE_TRAINING_EXAMPLES", "10"))

DEADLINES = {"silence_deadline_s": 10.0, "transition_deadline_s": 60.0, "boot_deadline_s": 90.0}
QUICK = {"cells": 3, "capacity": 4, "phi": 1 / 3, "mu": 2, "num_steps": 4, "tau_s": 0.0}
SLOW_TRAINING: dict[str, Any] = {"micro_step_s": 4.0, "execution_s": 1.0}
SEEDS = range(2)

STRIKES = st.builds(
    Strike,
    after=st.sampled_from([*MOMENTS, "cell_lost", "cell_joined", "cell_released"]),
    nth=st.integers(1, 6),
    delay_s=st.sampled_from([0.0, 0.05, 0.2, 1.0]),
    victim=st.sampled_from(["cell", "cell", "link", "link", "release", *VICTIMS]),
    cell=st.integers(0, 4),
)


def _strike(after: str, nth: int, victim: str, cell: int, delay_s: float = 0.0) -> Strike:
    return Strike(after=after, nth=nth, delay_s=delay_s, victim=victim, cell=cell)


def _of(world: TrainingWorld, kind: type) -> list[Any]:
    return [fact.body for fact in world.log if isinstance(fact.body, kind)]


def _live(paces: dict[str, Any], *strikes: Strike, seed: int = 0, **job: Any) -> TrainingWorld:
    return live(QUICK | DEADLINES | job, paces, strikes, seed)


@pytest.mark.timeout(900)
@settings(max_examples=NUM_EXAMPLES)
@given(
    job=JOBS,
    paces=PACES,
    spare=st.integers(0, 1),
    strikes=st.lists(STRIKES, max_size=4),
    seed=st.integers(0, 10_000),
)
def test_a_job_ends_and_trains_each_micro_step_once_whoever_is_lost_when(
    job: dict[str, Any], paces: dict[str, Any], spare: int, strikes: list[Strike], seed: int
) -> None:
    """One elastic cell is left alone by what ends a cell, so that one always lives."""
    safe = seed % (job["cells"] + spare)
    kept = tuple(
        strike
        for strike in strikes
        if strike.victim not in ("cell", "link", "release")
        or strike.cell % (job["cells"] + spare) != safe
    )
    live(job | DEADLINES, paces | {"spare": spare}, kept, seed)


@pytest.mark.parametrize("seed", [0])
@pytest.mark.parametrize("cell", [0, 1, 2])
@pytest.mark.parametrize("victim", ["cell", "link"])
@pytest.mark.parametrize(
    ("after", "nth"),
    [("transition_started", 1), ("micro_step_claimed", 2), ("join_window_closed", 1)],
)
def test_a_cell_that_falls_silent_is_lost_and_the_job_goes_on(
    after: str, nth: int, victim: str, cell: int, seed: int
) -> None:
    world = _live(SLOW_TRAINING, _strike(after, nth, victim, cell, 0.2), seed=seed)
    assert [lost.cell for lost in _of(world, sched.CellLost)] == [cell]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("victim", ["cell", "link"])
@pytest.mark.parametrize("after", ["burst_ended", "checkpoint_saved", "weights_published"])
def test_a_core_lost_for_good_around_its_checkpoint_leaves_what_is_durable_to_the_next(
    after: str, victim: str, seed: int
) -> None:
    world = _live({}, _strike(after, 1, victim, 0), seed=seed)
    assert [lost.cell for lost in _of(world, sched.CellLost)] == [0]
    assert len(_of(world, sched.Restored)) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_spare_cell_takes_a_lost_ones_place_and_trains(seed: int) -> None:
    paces = SLOW_TRAINING | {"spare": 1}
    world = _live(paces, _strike("batch_opened", 1, "cell", 1), seed=seed, num_steps=8)
    (started,) = _of(world, sched.JobStarted)
    (spare,) = set(range(4)) - set(started.cells)
    assert [joined.cell for joined in _of(world, sched.CellJoined)] == [spare]
    assert any(spare in step.members for step in _of(world, step_events.StepCompleted))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cell_that_was_only_cut_off_joins_again(seed: int) -> None:
    strike = _strike("batch_opened", 1, "link", 2)
    world = _live(SLOW_TRAINING, strike, seed=seed, num_steps=10)
    assert [joined.cell for joined in _of(world, sched.CellJoined)] == [2]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cell", [0, 1, 2])
@pytest.mark.parametrize("after", ["batch_opened", "weights_published"])
def test_a_released_cell_leaves_in_order_and_is_not_taken_back(
    after: str, cell: int, seed: int
) -> None:
    """Nothing is fenced for it and no step is lost, whether it is the core or not."""
    world = _live(SLOW_TRAINING, _strike(after, 1, "release", cell), seed=seed, num_steps=6)
    assert [left.cell for left in _of(world, sched.CellReleased)] == [cell]
    assert not _of(world, sched.CellLost)
    assert not _of(world, sched.CellJoined)
    assert not _of(world, sched.EpochFenced)
    assert len(_of(world, step_events.StepCompleted)) == 6


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_nobody_waits_for_a_peer_that_was_lost_before_it_connected(nth: int, seed: int) -> None:
    """The world's time-out is five minutes; the log knows of the loss within seconds."""
    world = _live({"lag_s": 0.3}, _strike("world_ready", nth, "cell", 2), seed=seed)
    times = [fact.envelope.time for fact in world.log]
    assert max(later - sooner for sooner, later in itertools.pairwise(times)) < 100


@pytest.mark.parametrize("seed", [0])
@pytest.mark.parametrize("cells", [2, 3])
def test_when_nobody_serves_the_last_one_in_training_goes_back(cells: int, seed: int) -> None:
    """The cells that served are lost with executions that last longer than it takes to notice."""
    job = {"cells": cells, "capacity": 8, "phi": 1.0, "rho_min": 1 / 3, "num_steps": 2}
    paces = {"micro_step_s": 4.0, "execution_s": 40.0}
    strikes = [_strike("batch_opened", 1, "cell", cell) for cell in range(1, cells)]
    world = _live(paces, *strikes, seed=seed, **job)
    back = [sent for sent in _of(world, sched.TransitionStarted) if sent.to == "rollout"]
    assert [sent.cell for sent in back] == [0]
    assert len(_of(world, sched.Restored)) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_all_cells_but_one_are_lost_in_turn(seed: int) -> None:
    strikes = (
        _strike("batch_opened", 1, "cell", 0, 0.5),
        _strike("restored", 1, "cell", 1, 3.0),
    )
    world = _live(SLOW_TRAINING, *strikes, seed=seed)
    assert [lost.cell for lost in _of(world, sched.CellLost)] == [0, 1]
