"""A disk that is full when the core saves: the job pauses and says why, nobody is lost for it, and
once somebody has made room and resumed it, it goes on with the same weights. Old checkpoints go,
but none that the log still sends anybody to.

Real scheduler loops and cell agents on a lagging log in virtual time, as in the training law.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.adapters.journal import Fact
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import steps as step_events
from gyre.core.scheduling import JobState, evolve
from gyre.testkit.specs import job_spec
from gyre.testkit.training_audit import audit
from gyre.testkit.training_strategies import JOBS, PACES
from gyre.testkit.training_world import JOB, Strike, TrainingWorld
from gyre.testkit.virtual_time import run_virtual

QUICK = {"cells": 3, "capacity": 4, "phi": 1 / 3, "mu": 1, "num_steps": 4, "tau_s": 0.0}
HASTY = {"transition_deadline_s": 60.0, "boot_deadline_s": 60.0}
# Longer than a hasty job waits for any cell.
LONG_S = 1200.0


def live(
    job: dict[str, Any], checkpoint: dict[str, Any], seed: int, **world_settings: Any
) -> TrainingWorld:
    """One whole job, audited."""
    fixed = {"heldout": False, "executions_per_group": 2, "groups_per_step": 3}
    sections = {"training": {"checkpoint": checkpoint}}
    with tempfile.TemporaryDirectory() as home:
        world = TrainingWorld(
            spec=job_spec(**{**fixed, **job}, sections=sections),
            home=Path(home),
            seed=seed,
            **world_settings,
        )
        needed = _Needed(world)
        world.on_fact = needed.see
        run_virtual(world.run())
    audit(world)
    assert needed.removed == []
    return world


class _Needed:
    """Notes a checkpoint that is gone while the log names it durable or published."""

    def __init__(self, world: TrainingWorld) -> None:
        self.removed: list[str] = []
        self._world, self._durable, self._published = world, "", ""

    def see(self, fact: Fact) -> None:
        match fact.body:
            case cell_events.CheckpointSaved(path=path):
                self._durable = path
            case cell_events.WeightsPublished(path=path):
                self._published = path
            case _:
                pass
        for path in (self._durable, self._published):
            if path in self._world.fabric.pruned:
                self.removed.append(path)


def bodies(world: TrainingWorld, kind: type) -> list[Any]:
    return [fact.body for fact in world.log if isinstance(fact.body, kind)]


@settings(max_examples=10)
@given(
    job=JOBS,
    paces=PACES,
    full=st.dictionaries(st.integers(1, 4), st.integers(1, 2), max_size=2),
    asynchronous=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_a_job_ends_whatever_does_not_fit_once_it_is_resumed(
    job: dict[str, Any],
    paces: dict[str, Any],
    full: dict[int, int],
    asynchronous: bool,
    seed: int,
) -> None:
    checkpoint = {"keep": 1, "asynchronous": asynchronous}
    world = live(job, checkpoint, seed, full=full, **paces)
    tried = {body.version for body in bodies(world, cell_events.CheckpointSaved)}
    expected = sum(times for version, times in full.items() if version in tried)
    assert len(bodies(world, cell_events.CheckpointFailed)) == expected
    assert len(bodies(world, step_events.StepCompleted)) == job["num_steps"]
    assert bodies(world, cell_events.TrainerLost) == []
    assert bodies(world, sched.CellLost) == []


@pytest.mark.parametrize("asynchronous", [False, True])
def test_nobody_is_lost_while_the_job_waits_for_room(asynchronous: bool) -> None:
    world = live(
        QUICK | HASTY,
        {"asynchronous": asynchronous},
        seed=1,
        full={2: 2},
        resumed_after_s=LONG_S,
    )
    assert len(bodies(world, cell_events.CheckpointFailed)) == 2
    assert bodies(world, sched.CellLost) == []
    assert bodies(world, sched.Restored) == []


def test_a_paused_job_says_what_it_waits_for() -> None:
    world = live(QUICK, {}, seed=1, full={2: 1})
    state = JobState(job=JOB)
    reasons = []
    for fact in world.log:
        if fact.job == JOB:
            evolve(state, fact.sequence, fact.body)
            reasons.append(state.pause_reason)
            assert state.paused == (state.pause_reason != "")
    said = {reason for reason in reasons if reason}
    assert len(said) == 1
    assert said.pop().startswith("version 2 could not be saved: ")


@pytest.mark.parametrize("seed", range(3))
def test_a_core_that_dies_while_its_save_failed_goes_on_from_the_last_checkpoint(seed: int) -> None:
    strike = Strike(after="checkpoint_failed", nth=1, delay_s=1.0, victim="trainer", cell=0)
    world = live(QUICK, {}, seed, full={2: 1}, strikes=(strike,))
    (restored,) = bodies(world, sched.Restored)
    assert restored.version == 1


@pytest.mark.parametrize("seed", range(3))
def test_a_core_that_dies_in_an_asynchronous_save_loses_no_more_than_that(seed: int) -> None:
    strike = Strike(after="burst_ended", nth=2, delay_s=0.1, victim="trainer", cell=0)
    live(QUICK, {"asynchronous": True}, seed, strikes=(strike,))


@pytest.mark.parametrize("keep", [1, 3])
def test_the_newest_checkpoints_stay_and_older_ones_go(keep: int) -> None:
    world = live(QUICK | {"num_steps": 8}, {"keep": keep}, seed=2)
    there = set(world.fabric.checkpoints) - world.fabric.pruned
    assert len(world.fabric.checkpoints) == 8
    assert set(sorted(world.fabric.checkpoints)[-keep:]) <= there
    # With them what was durable, published or served when the last one was saved.
    assert len(there) <= keep + 2
