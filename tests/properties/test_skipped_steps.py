"""A step that is not applied: the job goes on with the weights it had, until too many in a row.

Real scheduler loops and cell agents in virtual time; only the core's verdict is given.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from gyre.adapters.blobs import DirectoryBlobStore
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import steps as step_events
from gyre.contracts.step_record import StepRecord
from gyre.testkit.specs import job_spec
from gyre.testkit.training_audit import audit
from gyre.testkit.training_world import Strike, TrainingWorld
from gyre.testkit.virtual_time import run_virtual

JOB: dict[str, Any] = {
    "cells": 3,
    "capacity": 4,
    "executions_per_group": 2,
    "groups_per_step": 3,
    "phi": 1 / 3,
    "mu": 2,
    "num_steps": 6,
    "tau_s": 0.0,
    "heldout": False,
}


def world_of(
    home: str, skips: set[int], seed: int, *strikes: Strike, bounded: bool = True
) -> TrainingWorld:
    spec = job_spec(**JOB)
    if not bounded:
        objective = spec.objective.model_copy(update={"max_skipped_steps": None})
        spec = spec.model_copy(update={"objective": objective})
    return TrainingWorld(
        spec=spec,
        home=Path(home),
        seed=seed,
        skips=frozenset(skips),
        strikes=strikes,
        micro_step_s=4.0,
        execution_s=1.0,
    )


def steps_of(world: TrainingWorld) -> list[step_events.StepCompleted]:
    return [f.body for f in world.log if isinstance(f.body, step_events.StepCompleted)]


@pytest.mark.parametrize("skips", [{0}, {1, 2}, {0, 1, 3, 4}], ids=str)
def test_a_skipped_step_counts_is_recorded_and_the_job_goes_on(skips: set[int]) -> None:
    with tempfile.TemporaryDirectory() as home:
        world = world_of(home, skips, 1)
        run_virtual(world.run())
    audit(world)
    steps = steps_of(world)
    assert [step.version for step in steps] == [1, 2, 3, 4, 5, 6]
    assert {step.version - 1 for step in steps if step.skipped} == skips
    assert all(bool(step.skip_reason) == step.skipped for step in steps)
    updates = [world.fabric.reductions[step.batch] for step in steps]
    assert [update.before == update.after for update in updates] == [s.skipped for s in steps]


def test_three_skipped_steps_in_a_row_end_the_job_with_the_reason() -> None:
    with tempfile.TemporaryDirectory() as home:
        world = world_of(home, {0, 2, 3, 4}, 1)
        run_virtual(world.run())
    (finished,) = [f.body for f in world.log if isinstance(f.body, sched.JobFinished)]
    assert finished.status == "failed"
    assert finished.reason == "3 steps in a row were not applied: mismatch: of version 4"
    assert [step.version for step in steps_of(world)] == [1, 2, 3, 4, 5]


def test_a_job_without_a_bound_goes_on_whatever_is_skipped() -> None:
    """As jobs of logs that are older than the bound did, and are decided again."""
    skips = {0, 1, 2, 3, 4, 5}
    with tempfile.TemporaryDirectory() as home:
        world = world_of(home, skips, 1, bounded=False)
        run_virtual(world.run())
    audit(world)
    assert [step.version - 1 for step in steps_of(world) if step.skipped] == sorted(skips)


def test_steps_that_a_restore_does_again_are_not_counted_twice() -> None:
    """The core is lost behind a skipped step before its checkpoint: with it, three in a row."""
    death = Strike(after="step_completed", nth=3, delay_s=0.0, victim="trainer", cell=0)
    with tempfile.TemporaryDirectory() as home:
        world = world_of(home, {2, 3}, 1, death)
        run_virtual(world.run())
    audit(world)
    assert any(isinstance(fact.body, sched.Restored) for fact in world.log)
    skipped = [step.version for step in steps_of(world) if step.skipped]
    assert skipped == [3, 3, 4]


@pytest.mark.parametrize("seed", range(3))
def test_the_steps_blob_names_each_micro_steps_executions_and_cell(seed: int) -> None:
    """After a death too: a dead member's micro-steps are named with who did them again."""
    death = Strike(after="micro_step_claimed", nth=3, delay_s=0.5, victim="trainer", cell=1)
    with tempfile.TemporaryDirectory() as home:
        world = world_of(home, set(), seed, death)
        run_virtual(world.run())
        audit(world)
        blobs = DirectoryBlobStore(Path(home) / "blobs")
        for step in steps_of(world):
            assert step.record is not None
            record = StepRecord.model_validate_json(blobs.get(step.record))
            assert (record.batch, record.step, record.version, record.lineage) == (
                step.batch,
                step.step,
                step.version,
                step.lineage,
            )
            named = [(one.micro_step, one.cell) for one in record.executions]
            assert named == [(owner.index, owner.cell) for owner in step.micro_steps]
