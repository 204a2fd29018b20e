"""Laws `training` and `recovery`, with deaths at any moment.

Real scheduler loops and real cell agents on a lagging log in virtual time; `training_audit` checks
each run: it ends, every micro-step of a step is in exactly one surviving reduction, by its owner;
members are a prefix of their world; joiners hold the exact weights; versions count the steps;
returned groups are consumed again, once; what is published is durable and confirmed; and each
decision follows from the log it names.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import steps as step_events
from gyre.testkit.training_strategies import JOBS, PACES, STRIKES, live
from gyre.testkit.training_world import Strike, TrainingWorld

# More for a long run: GYRE_TRAINING_EXAMPLES=2000.
NUM_EXAMPLES = int(os.environ.get("GYRE_TRAINING_EXAMPLES", "40"))

QUICK = {"cells": 3, "capacity": 4, "phi": 1 / 3, "mu": 2, "num_steps": 4, "tau_s": 0.0}
# Long micro-steps give satellites the time to join; full batches make the core wait for them.
SLOW_TRAINING: dict[str, Any] = {"micro_step_s": 4.0, "execution_s": 1.0}
SEEDS = range(4)


def _count(world: TrainingWorld, kind: type) -> int:
    return sum(isinstance(fact.body, kind) for fact in world.log)


def _die(after: str, nth: int, victim: str, cell: int, delay_s: float = 0.0) -> Strike:
    return Strike(after=after, nth=nth, delay_s=delay_s, victim=victim, cell=cell)


@pytest.mark.timeout(600)
@settings(max_examples=NUM_EXAMPLES)
@given(
    job=JOBS,
    paces=PACES,
    strikes=st.lists(STRIKES, max_size=6).map(tuple),
    seed=st.integers(0, 10_000),
)
def test_a_job_ends_and_trains_each_micro_step_once_whoever_dies_when(
    job: dict[str, Any], paces: dict[str, Any], strikes: tuple[Strike, ...], seed: int
) -> None:
    live(job, paces, strikes, seed)


@settings(max_examples=max(10, NUM_EXAMPLES // 4))
@given(job=JOBS, paces=PACES, seed=st.integers(0, 10_000))
def test_without_a_death_no_epoch_is_fenced_and_no_step_is_done_twice(
    job: dict[str, Any], paces: dict[str, Any], seed: int
) -> None:
    world = live(job, paces, (), seed)
    assert _count(world, sched.EpochFenced) == 0
    assert _count(world, sched.WorldFormed) == 1
    assert _count(world, step_events.StepCompleted) == job["num_steps"]


@pytest.mark.parametrize("seed", SEEDS)
def test_satellites_join_and_own_micro_steps_when_training_is_slow(seed: int) -> None:
    world = live(QUICK, SLOW_TRAINING, (), seed)
    steps = [f.body for f in world.log if isinstance(f.body, step_events.StepCompleted)]
    assert any(len(step.members) > 1 for step in steps)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.5, 1.0, 2.0])
def test_a_satellite_that_dies_while_the_members_reduce_or_receive_the_update(
    seed: int, delay_s: float
) -> None:
    """From the window's closing through the reduction and the broadcast."""
    live(QUICK, SLOW_TRAINING, (_die("join_window_closed", 1, "trainer", 1, delay_s),), seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("victim", ["agent", "trainer"])
def test_a_satellite_that_dies_with_owned_micro_steps_loses_them_to_the_others(
    seed: int, victim: str
) -> None:
    strikes = (_die("batch_joined", 2, victim, 1, 0.5),)
    live(QUICK, SLOW_TRAINING, strikes, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_late_joiner_stays_out_of_the_step_and_comes_with_the_next(seed: int) -> None:
    """The log is so slow that joins cross the closing of the window."""
    live(QUICK, {"lag_s": 2.0, "micro_step_s": 0.2, "execution_s": 1.0}, (), seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cell", [0, 1])
def test_an_agent_restarted_on_its_way_into_training_goes_on(seed: int, cell: int) -> None:
    strikes = (_die("transition_started", 1 + cell, "agent", cell, 0.05),)
    live(QUICK, SLOW_TRAINING, strikes, seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cell", [1, 2])
def test_an_engine_that_dies_during_the_publication_does_not_hold_it_up(
    seed: int, cell: int
) -> None:
    world = live(QUICK, {}, (_die("checkpoint_saved", 1, "engine", cell),), seed)
    assert _count(world, cell_events.WeightsPublished) == 2


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("victim", ["agent", "trainer"])
@pytest.mark.parametrize("after", ["burst_ended", "checkpoint_saved", "weights_published"])
def test_a_core_lost_around_its_checkpoint_goes_on_from_what_is_durable(
    seed: int, victim: str, after: str
) -> None:
    live(QUICK, {}, (_die(after, 1, victim, 0),), seed)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_core_lost_inside_a_step_starts_a_new_lineage(seed: int, nth: int) -> None:
    world = live(QUICK, SLOW_TRAINING, (_die("stream_closed", nth, "trainer", 0),), seed)
    assert _count(world, sched.Restored) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_two_satellites_that_die_together_are_fenced_both(seed: int) -> None:
    """The second death may fall between the first fence's decision and its event."""
    strikes = (
        _die("batch_joined", 3, "trainer", 2, 0.5),
        _die("trainer_lost", 1, "trainer", 1),
    )
    job = {**QUICK, "rho_min": 1 / 3}
    live(job, {**SLOW_TRAINING, "lag_s": 0.3}, strikes, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_deaths_in_turn_of_every_cell_and_the_scheduler(seed: int) -> None:
    strikes = tuple(
        _die("micro_step_claimed", 2 + 3 * place, victim, cell, 0.1)
        for place, (victim, cell) in enumerate(
            [("agent", 1), ("scheduler", 0), ("agent", 0), ("trainer", 2), ("engine", 1)]
        )
    )
    live(QUICK, {**SLOW_TRAINING, "num_schedulers": 2}, strikes, seed)
