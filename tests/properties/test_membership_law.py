"""Law `recovery`, for whole cells: they die, hang, are cut off, leave and come back at any moment.

While one cell lives the job ends well; every execution is routed to a cell of the job; each group
is consumed once; and each decision follows from the log before it.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gyre.contracts.envelope import Body, Decision
from gyre.contracts.events import groups as group_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import steps as step_events
from gyre.core.scheduling import JobState, evolve, ledger, next_decision
from gyre.testkit.losing_world import Blow, Harm, LosingWorld
from gyre.testkit.scheduling_world import Timings
from gyre.testkit.specs import job_spec

# More for a long run: GYRE_MEMBERSHIP_EXAMPLES=5000.
NUM_EXAMPLES = int(os.environ.get("GYRE_MEMBERSHIP_EXAMPLES", "60"))

DEADLINES: dict[str, Any] = {
    "transition_deadline_s": 20.0,
    "boot_deadline_s": 30.0,
    "silence_deadline_s": 8.0,
}

JOBS = st.fixed_dictionaries(
    {
        "cells": st.integers(2, 4),
        "capacity": st.integers(2, 8),
        "groups_per_step": st.sampled_from([2, 4]),
        "executions_per_group": st.integers(2, 4),
        "phi": st.sampled_from([0.0, 0.5, 1.5]),
        "mu": st.integers(1, 3),
        "num_steps": st.integers(2, 5),
        "rho_min": st.sampled_from([0.2, 0.5, 1.0]),
        "tau_s": st.sampled_from([0.0, 0.5]),
        "streaming": st.booleans(),
        "policy": st.sampled_from(["gyre", "gyre", "gyre+"]),
    }
)
BASELINES = st.sampled_from(
    [
        {"policy": "async", "training_cells": 1},
        {"policy": "async", "training_cells": 1, "pool_count": 1, "pool_capacity": 4},
        {"policy": "colocate", "phi": 0.0},
        {"policy": "colocate", "pool_count": 2, "pool_capacity": 3},
    ]
)
BLOWS = st.lists(
    st.builds(
        Blow,
        nth=st.integers(3, 250),
        cell=st.integers(0, 3),
        harm=st.sampled_from(get_args(Harm)),
    ),
    max_size=6,
)


def live(job: dict[str, Any], seed: int, blows: tuple[Blow, ...], spare: int = 0) -> LosingWorld:
    source = random.Random(seed)
    lengths = [source.lognormvariate(0.5, 1.0) for _ in range(3000)]
    timings = Timings(micro_step=source.choice([0.1, 1.0, 4.0]), switch=source.choice([0.1, 2.0]))
    heldout = ("h0", "h1", "h2") if source.random() < 0.5 else ()
    world = LosingWorld(
        job_spec(**job, **DEADLINES),
        lengths.__getitem__,
        timings,
        heldout_tasks=heldout,
        blows=blows,
        spare=spare,
    )

    def watch(state: JobState, body: Body, now: float) -> None:
        check(state, body, now)
        if isinstance(body, sched.CellLost):
            assert body.cell in world.still | world.cut_off, "lost for another's delay"

    world.on_fact = watch
    world.run()
    return world


def check(state: JobState, body: Body, now: float) -> None:
    held = sum(len(cell.executions) for cell in state.everyone)
    if state.order:
        assert held == ledger.running(state), body
    serving = sum(cell.capacity for cell in state.everyone if cell.serving)
    assert ledger.rollout_capacity(state) == serving
    training = [cell.index for cell in state.in_order if cell.role == "training"]
    assert training == list(range(len(training))), body
    if isinstance(body, sched.StartOrdered):
        assert ledger.running(state) <= ledger.rollout_capacity(state)
    if isinstance(body, step_events.StepCompleted):
        assert all(state.present(member) is not None for member in body.members)


def audit(world: LosingWorld) -> None:
    state = world.state
    assert state.status == "succeeded", state.reason
    assert state.training.dispatched == state.training.terminated
    assert state.heldout.dispatched == state.heldout.terminated
    consumed = _consumed(world)
    assert sorted(consumed) == sorted(state.groups)
    assert set(Counter(consumed).values()) == {1}
    _decisions_follow(world)


def _consumed(world: LosingWorld) -> list[str]:
    """The groups of the steps that survive, from the log alone."""
    claimed: dict[str, list[str]] = {}
    done: dict[int, list[str]] = {}
    open_batch = ""
    for _, _, body in world.log:
        match body:
            case sched.BatchOpened():
                open_batch = body.batch
            case group_events.GroupClaimed() if body.batch == open_batch:
                claimed.setdefault(body.batch, []).append(body.group)
            case step_events.StepCompleted() if body.batch == open_batch:
                done[body.version], open_batch = claimed[body.batch], ""
            case sched.Restored():
                done = {v: groups for v, groups in done.items() if v <= body.version}
                open_batch = ""
            case _:
                pass
    return [group for groups in done.values() for group in groups]


def _decisions_follow(world: LosingWorld) -> None:
    state = JobState(job="job")
    for sequence, _, body in world.log:
        cluster = isinstance(body, sched.JobStarted | sched.CellJoined)
        if isinstance(body, Decision) and not cluster:
            assert next_decision(state, body.now) == body
        evolve(state, sequence, body)
    assert state == world.state


@pytest.mark.timeout(600)
@settings(max_examples=NUM_EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(job=JOBS, seed=st.integers(0, 10_000), blows=BLOWS, spare=st.integers(0, 1))
def test_a_job_ends_well_while_one_cell_lives(
    job: dict[str, Any], seed: int, blows: list[Blow], spare: int
) -> None:
    world = live(job, seed, tuple(blows), spare)
    if world.state.order:
        audit(world)
    else:
        assert world.state.reason.startswith("no cell is left to train on; cell ")


@pytest.mark.timeout(600)
@settings(max_examples=NUM_EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(job=JOBS, policy=BASELINES, seed=st.integers(0, 10_000), blows=BLOWS)
def test_a_baselines_job_ends_well_or_says_which_cell_it_cannot_do_without(
    job: dict[str, Any], policy: dict[str, Any], seed: int, blows: list[Blow]
) -> None:
    world = live(job | policy, seed, tuple(blows))
    if world.state.status == "succeeded":
        audit(world)
    else:
        wanted = (
            "no cell is left to train on; cell ",
            "policy async keeps 1 of its cells in training and",
        )
        assert world.state.reason.startswith(wanted)


@pytest.mark.parametrize("harm", ["dead", "hung", "cut_off"])
@pytest.mark.parametrize("cell", [0, 1, 2])
@pytest.mark.parametrize("nth", range(10, 200, 17))
def test_one_cell_of_three_is_lost_at_any_moment(nth: int, cell: int, harm: str) -> None:
    job = {"cells": 3, "capacity": 6, "groups_per_step": 4, "mu": 2, "num_steps": 4, "tau_s": 0.0}
    world = live(job, nth, (Blow(nth=nth, cell=cell, harm=harm),))  # type: ignore[arg-type]
    audit(world)
    assert len(world.decisions(sched.CellLost)) == 1
