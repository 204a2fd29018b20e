"""Law `training`, of who comes late: a satellite may join until the window closes, so one that
could not have the batch's weights asks for them again, later each time, and holds nobody up."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.adapters.journal import Fact
from gyre.cell_agent.agent import PULL_AGAIN_MOST_S, PULL_AGAIN_S
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events.cells import BatchJoined, RoleChanged
from gyre.testkit.training_strategies import JOBS, PACES, live
from gyre.testkit.training_world import TrainingWorld

SATELLITE = 1
FOR_GOOD = 10_000
# In the second burst the satellite's trainer lacks the last update, and a batch lasts long enough
# for it to come in the middle.
BURSTS = {"cells": 2, "capacity": 8, "phi": 0.0, "mu": 1, "num_steps": 2, "tau_s": 0.0}
SEED = 1


def lived(refused: int) -> TrainingWorld:
    paces = {"refusals": {(SATELLITE, "pull_weights"): refused}, "micro_step_s": 200.0}
    return live(BURSTS, paces, (), SEED)


def of_the_satellite(world: TrainingWorld, kind: type[RoleChanged | BatchJoined]) -> list[Fact]:
    """What it said in the second batch's time."""
    (opened,) = [
        fact.sequence
        for fact in world.log
        if isinstance(fact.body, sched.BatchOpened) and fact.body.step == 1
    ]
    return [
        fact
        for fact in world.log
        if isinstance(fact.body, kind) and fact.body.cell == SATELLITE and fact.sequence > opened
    ]


@pytest.mark.parametrize("refused", [0, 1, 3])
def test_a_satellite_that_missed_the_weights_joins_the_same_batch_later(refused: int) -> None:
    world = lived(refused)
    came, *_ = of_the_satellite(world, RoleChanged)
    (joined,) = of_the_satellite(world, BatchJoined)
    waits = [min(PULL_AGAIN_S * 2**number, PULL_AGAIN_MOST_S) for number in range(refused)]
    # A try takes a second at most.
    seconds = joined.envelope.time - came.envelope.time
    assert sum(waits) <= seconds <= sum(waits) + refused + 2.0


def test_who_never_has_them_holds_nobody_up_and_asks_ever_more_seldom() -> None:
    world = lived(FOR_GOOD)
    assert of_the_satellite(world, BatchJoined) == []
    *_, closed = [fact.body for fact in world.log if isinstance(fact.body, sched.JoinWindowClosed)]
    assert closed.members == (0,)
    num_asked = FOR_GOOD - world.fabric.refusals[SATELLITE, "pull_weights"]
    came, *_ = of_the_satellite(world, RoleChanged)
    (window,) = [fact for fact in world.log if fact.body is closed]
    open_s = window.envelope.time - came.envelope.time
    # 1 + 2 + 4 + 8 + 16 + 16 + ...
    assert 5 <= num_asked <= 6 + open_s / PULL_AGAIN_MOST_S


@given(
    job=JOBS,
    paces=PACES,
    refused=st.dictionaries(
        st.tuples(st.integers(1, 3), st.just("pull_weights")), st.integers(1, 6), max_size=3
    ),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=15, deadline=None)
def test_a_job_ends_well_however_often_weights_are_missed(
    job: dict[str, object],
    paces: dict[str, object],
    refused: dict[tuple[int, str], int],
    seed: int,
) -> None:
    world = live(job, {**paces, "refusals": refused}, (), seed)
    (end,) = [fact.body for fact in world.log if isinstance(fact.body, sched.JobFinished)]
    assert end.status == "succeeded"
