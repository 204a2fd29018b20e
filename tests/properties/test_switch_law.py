"""Law of the role switch: a change that fails is undone, and both sides never hold the memory.

Whole jobs in virtual time with real agents; one call of an engine or a trainer is refused, once or
for good. The simulated sides say which of them holds the memory; a side that takes it from under
the other is a violation, which every job of `live` is checked for.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.contracts.events import cells as cell_events
from gyre.contracts.events.cells import RoleChanged, RolePhase
from gyre.testkit.simulated_cell import SIDE_BYTES
from gyre.testkit.training_strategies import JOBS, PACES, live
from gyre.testkit.training_world import TrainingWorld

QUICK = {"cells": 3, "capacity": 4, "phi": 1 / 3, "mu": 2, "num_steps": 4, "tau_s": 0.0}
CORE = 0
# A run in which no engine refuses of itself what is not to be refused here.
SEED = 3
FOR_GOOD = 10_000

# What is refused, and the phase that it ends.
TO_TRAINING = {
    "pause": "stop_admitting",
    "num_announced": "reroute",
    "num_pins": "drain",
    "release_memory": "release_engine",
    "restore": "restore_trainer",
}
TO_ROLLOUT = {
    "offload": "offload_trainer",
    "resume_memory": "resume_engine",
    "update_weights_from_disk": "receive_weights",
    "generate": "warm",
    "ready": "open_routes",
}
OUT = ("stop_admitting", "reroute", "drain", "release_engine", "restore_trainer")
BACK = ("offload_trainer", "resume_engine", "receive_weights", "warm", "open_routes")


def changes(world: TrainingWorld, cell: int | None = None) -> list[RoleChanged]:
    bodies = [fact.body for fact in world.log if isinstance(fact.body, RoleChanged)]
    return [body for body in bodies if cell is None or body.cell == cell]


def count(world: TrainingWorld, kind: type) -> int:
    return sum(isinstance(fact.body, kind) for fact in world.log)


def all_phases(world: TrainingWorld) -> list[RolePhase]:
    said = [
        fact.body
        for fact in world.log
        if isinstance(fact.body, RoleChanged | cell_events.BatchJoined)
    ]
    return [phase for body in said for phase in body.phases]


def assert_one_side_at_a_time(world: TrainingWorld) -> None:
    phases = all_phases(world)
    assert phases
    for phase in phases:
        assert (phase.engine_bytes or 0) + (phase.trainer_bytes or 0) <= SIDE_BYTES, phase


@pytest.mark.parametrize("refused", TO_TRAINING)
def test_a_phase_that_fails_on_the_way_out_is_undone_and_the_cell_goes_on_serving(
    refused: str,
) -> None:
    often = FOR_GOOD if refused == "release_memory" else 1
    world = live(QUICK, {"refusals": {(CORE, refused): often}}, (), SEED)
    mine = changes(world, CORE)
    [undone] = [change for change in mine if change.undone == TO_TRAINING[refused]]
    assert undone.role == "rollout"
    assert undone.engine_url is not None
    *before, failed = undone.phases
    assert [phase.name for phase in undone.phases] == list(OUT[: len(undone.phases)])
    assert (failed.name, failed.undone) == (TO_TRAINING[refused], True)
    assert not any(phase.undone for phase in before)
    assert mine[mine.index(undone) + 1].role == "training"
    assert count(world, cell_events.EngineLost) == count(world, cell_events.TrainerLost) == 0
    assert_one_side_at_a_time(world)


@pytest.mark.parametrize("refused", TO_ROLLOUT)
def test_a_phase_that_fails_on_the_way_back_is_undone_and_tried_once_more(refused: str) -> None:
    world = live(QUICK, {"refusals": {(CORE, refused): 1}}, (), SEED)
    phase = TO_ROLLOUT[refused]
    back = [change for change in changes(world, CORE) if change.role == "rollout"]
    [change] = [one for one in back if any(record.undone for record in one.phases)]
    names = [record.name for record in change.phases]
    failed = names.index(phase)
    assert names == [*BACK[: failed + 1], *BACK]
    assert [record.undone for record in change.phases].index(True) == failed
    assert count(world, cell_events.EngineLost) == count(world, cell_events.TrainerLost) == 0
    assert_one_side_at_a_time(world)


@pytest.mark.parametrize("refused", ["resume_memory", "update_weights_from_disk", "generate"])
def test_an_engine_that_refuses_twice_on_the_way_back_is_ended_and_a_new_one_serves(
    refused: str,
) -> None:
    world = live(QUICK, {"refusals": {(CORE, refused): 2}}, (), SEED)
    lost = [fact.body for fact in world.log if isinstance(fact.body, cell_events.EngineLost)]
    assert [body.cell for body in lost] == [CORE]
    assert_one_side_at_a_time(world)


def test_an_undisturbed_change_has_all_its_phases_in_order() -> None:
    world = live(QUICK, {"micro_step_s": 4.0, "execution_s": 1.0}, (), 1)
    by_role: dict[str, list[tuple[str, ...]]] = {"training": [], "rollout": []}
    for change in changes(world):
        if change.phases and not change.undone:
            by_role[change.role].append(tuple(phase.name for phase in change.phases))
    assert set(by_role["training"]) == {OUT}
    assert BACK in by_role["rollout"]
    joins = [fact.body for fact in world.log if isinstance(fact.body, cell_events.BatchJoined)]
    names = {tuple(phase.name for phase in join.phases) for join in joins}
    assert names == {("register",), ("pull_weights", "register")}


@settings(max_examples=15)
@given(
    job=JOBS,
    paces=PACES,
    refusals=st.dictionaries(
        st.tuples(st.integers(0, 3), st.sampled_from(sorted({**TO_TRAINING, **TO_ROLLOUT}))),
        st.integers(1, 3),
        max_size=4,
    ),
    seed=st.integers(0, 10_000),
)
def test_a_job_ends_whatever_is_refused_and_one_side_holds_the_memory(
    job: dict[str, Any],
    paces: dict[str, Any],
    refusals: dict[tuple[int, str], int],
    seed: int,
) -> None:
    world = live(job, {**paces, "refusals": refusals}, (), seed)
    assert_one_side_at_a_time(world)
