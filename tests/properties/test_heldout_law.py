"""Held-out measurements while a job trains: on reserved slots, in nobody's way, each to its end."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gyre.contracts.envelope import Body
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import JobState, ledger
from gyre.testkit.scheduling_world import World
from gyre.testkit.specs import job_spec

RESERVED = 3
SCHEDULES: dict[str, dict[str, Any]] = {
    "gyre": {},
    "gyre+": {"policy": "gyre+", "num_steps": 13},
    "async": {"policy": "async", "training_cells": 1},
    "colocate": {"policy": "colocate", "pool_count": 1, "pool_capacity": 10},
}
each_schedule = pytest.mark.parametrize("name", list(SCHEDULES))
TASKS = tuple(f"h{number}" for number in range(5))


def live(name: str, watch: Any = None, every: int = 1) -> World:
    source = random.Random(7)
    lengths = [source.lognormvariate(1.0, 0.7) for _ in range(4000)]
    evaluation = {"heldout_every": every, "heldout_capacity": RESERVED}
    spec = job_spec(**SCHEDULES[name], sections={"evaluation": evaluation})
    world = World(spec, lengths.__getitem__, heldout_tasks=TASKS)
    if watch is not None:
        world.on_fact = watch
    world.run()
    return world


@each_schedule
def test_training_never_fills_what_is_reserved_and_measurements_take_no_more(name: str) -> None:
    def watch(state: JobState, body: Body, now: float) -> None:
        if state.phase != "training" or not isinstance(body, sched.StartOrdered):
            return
        training = state.training.ordered - state.training.terminated
        measuring = state.heldout.ordered - state.heldout.terminated
        assert measuring <= RESERVED
        kinds = {state.executions[order.execution].kind for order in body.orders}
        if "training" in kinds:
            assert training <= ledger.rollout_capacity(state) - RESERVED

    live(name, watch)


@each_schedule
def test_eq_2_holds_beside_the_reserve(name: str) -> None:
    def watch(state: JobState, body: Body, now: float) -> None:
        if isinstance(body, sched.TransitionStarted) and body.to == "training":
            measuring = state.heldout.ordered - state.heldout.terminated
            running = state.training.ordered - state.training.terminated + measuring
            assert running <= ledger.rollout_capacity(state)

    live(name, watch)


@each_schedule
@pytest.mark.parametrize("every", [1, 2])
def test_each_measurement_pins_its_version_and_ends_before_the_next(name: str, every: int) -> None:
    """One execution a task, none while the one before still runs, all scored at the job's end."""
    world = live(name, every=every)
    between = [
        event
        for event in world.decisions(sched.Dispatched)
        if event.kind == "heldout" and "-hm" in event.groups[0].group
    ]
    publications = world.state.num_publications
    assert between
    assert len(between) <= publications // every
    for event in between:
        assert tuple(plan.task for plan in event.groups) == TASKS
    versions = [event.version for event in between]
    assert versions == sorted(set(versions))
    state = world.state
    assert state.status == "succeeded"
    assert state.heldout.dispatched == state.heldout.terminated == state.num_heldout_scored
    assert state.heldout.dispatched == (2 + len(between)) * len(TASKS)


@each_schedule
def test_a_free_reserved_slot_takes_a_queued_measurement_at_once(name: str) -> None:
    def watch(state: JobState, body: Body, now: float) -> None:
        if state.phase == "training" and isinstance(body, sched.StartOrdered):
            measuring = state.heldout.ordered - state.heldout.terminated
            assert not state.heldout_queue or measuring == RESERVED

    live(name, watch)
