"""The scheduler's laws under random facts in random order, repeated and late, with crashes between
any two of them: held after every step, and every run ends with its job done."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gyre.contracts.envelope import Body
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import JobState, evolve, ledger, next_decision
from gyre.testkit.scheduling_world import World
from gyre.testkit.shuffled_world import REPEATABLE, ShuffledWorld
from gyre.testkit.specs import job_spec

SMALL = st.fixed_dictionaries(
    {
        "cells": st.integers(2, 4),
        "capacity": st.integers(2, 6),
        "groups_per_step": st.sampled_from([2, 4]),
        "executions_per_group": st.integers(2, 3),
        "phi": st.sampled_from([0.0, 0.5, 1.5]),
        "mu": st.integers(1, 3),
        "num_steps": st.integers(1, 4),
        "rho_min": st.sampled_from([0.2, 1.0]),
        "tau_s": st.sampled_from([0.0, 1.0]),
        "streaming": st.booleans(),
    }
)
PLACE = st.integers(0, 10_000)


class SchedulerMachine(RuleBasedStateMachine):
    world: ShuffledWorld

    @initialize(schedule=SMALL, policy=st.sampled_from(["gyre", "async", "colocate"]))
    def submit(self, schedule: dict[str, Any], policy: str) -> None:
        if policy == "async":
            schedule = schedule | {"policy": policy, "training_cells": 1}
        if policy == "colocate":
            schedule = schedule | {"policy": policy, "pool_count": 1, "pool_capacity": 3}
        self.world = ShuffledWorld(job_spec(**schedule), lambda number: 1.0)
        self.last_waterlevel: int | None = None
        self.world.on_fact = self.watch
        self.world.begin()

    @rule(place=PLACE)
    def something_happens(self, place: int) -> None:
        if self.world.due:
            self.world.happen(place)

    @rule(places=st.lists(PLACE, min_size=5, max_size=40))
    def much_happens(self, places: list[int]) -> None:
        """So that a run of a few dozen rules gets to the job's later life."""
        for place in places:
            self.world.decide()
            if self.world.due:
                self.world.happen(place)

    @rule()
    def the_scheduler_decides(self) -> None:
        self.world.decide()

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    @rule(kind=st.sampled_from(REPEATABLE), place=PLACE)
    def a_fact_is_repeated(self, kind: type[Body], place: int) -> None:
        self.world.repeat(kind, place)

    @rule(after_append=st.booleans())
    def the_scheduler_dies(self, after_append: bool) -> None:
        self.world.die(after_append=after_append)

    @precondition(lambda self: hasattr(self, "world"))
    @invariant()
    def the_laws_hold(self) -> None:
        check_counters(self.world.state)
        check_cells(self.world.state)
        check_groups(self.world.state)

    def watch(self, state: JobState, body: Body, now: float) -> None:
        if isinstance(body, sched.TransitionStarted):
            assert body.waterlevel <= body.capacity_after
        if isinstance(body, sched.StartOrdered):
            assert ledger.running(state) <= ledger.rollout_capacity(state)
        waterlevel = state.training.waterlevel
        if self.last_waterlevel is not None and not isinstance(body, sched.Dispatched):
            assert waterlevel <= self.last_waterlevel
        self.last_waterlevel = waterlevel

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        state = self.world.finish()
        assert state.status == "succeeded"
        assert all(group.claimed_version is not None for group in state.groups.values())
        assert state.training.dispatched == state.training.terminated
        assert self.world.replayed() == state


TestSchedulerLaws = SchedulerMachine.TestCase
TestSchedulerLaws.settings = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def check_counters(state: JobState) -> None:
    for counters in (state.training, state.heldout):
        assert 0 <= counters.terminated <= counters.started <= counters.dispatched
        assert counters.started <= counters.ordered <= counters.dispatched
    dispatched = state.training.dispatched + state.heldout.dispatched
    ordered = state.training.ordered + state.heldout.ordered
    assert len(state.queue) + len(state.heldout_queue) == dispatched - ordered
    held = sum(len(cell.executions) for cell in state.everyone)
    assert held == ledger.running(state)


def check_cells(state: JobState) -> None:
    capacity = sum(cell.capacity for cell in state.everyone if cell.serving)
    assert ledger.rollout_capacity(state) == capacity
    roles = [cell.role for cell in state.in_order]
    assert roles.count("to_training") <= 1
    training = [place for place, role in enumerate(roles) if role == "training"]
    assert training == list(range(len(training)))


def check_groups(state: JobState) -> None:
    groups = state.groups.values()
    assert state.num_ready_unclaimed == sum(g.ready and g.claimed_version is None for g in groups)
    assert all(group.ready for group in groups if group.claimed_version is not None)
    if state.batch is not None:
        drawn = sum(group.batch == state.batch.batch for group in groups)
        assert drawn == state.batch.num_claimed_groups
        assert drawn <= state.required_spec.schedule.groups_per_step


# --- kill points ---


class KilledWorld(World):
    """The scheduler dies at the decisions numbered in `kills`, each with its decision appended or
    not, and is rebuilt from the log."""

    kills: dict[int, bool]
    num_decisions = 0
    num_killed = 0

    def _decide(self) -> None:
        while (decision := self.decide_once()) is not None:
            self.num_decisions += 1
            appended = self.kills.get(self.num_decisions)
            if appended is None:
                self.fact(decision)
                continue
            self.num_killed += 1
            rebuilt = ShuffledWorld(self.spec, self.durations, log=self.log).replayed()
            assert rebuilt == self.state
            self.state = rebuilt
            if appended:
                self.fact(decision)

    def decide_once(self) -> Body | None:
        return next_decision(self.state, self.now)


@pytest.mark.parametrize("seed", range(10))
def test_a_job_with_a_hundred_kill_points_ends_as_the_undisturbed_one(seed: int) -> None:
    """Ten seeds, a thousand kills: the same log, event for event, and the same end."""
    source = random.Random(seed)
    lengths = [source.lognormvariate(0.5, 1.0) for _ in range(1000)]
    spec = job_spec(num_steps=5, heldout=False)
    undisturbed = World(spec, lengths.__getitem__)
    undisturbed.run()
    num = sum(isinstance(body, sched.Decision) for _, _, body in undisturbed.log) - 1

    killed = KilledWorld(spec, lengths.__getitem__)
    killed.kills = {
        number: source.random() < 0.5 for number in source.sample(range(1, num + 1), min(num, 100))
    }
    end = killed.run()
    assert killed.num_killed == 100
    assert killed.log == undisturbed.log
    assert end == undisturbed.state


@pytest.mark.parametrize("kind", REPEATABLE, ids=lambda kind: kind.TYPE)
def test_a_repeated_fact_changes_nothing(kind: type[Body]) -> None:
    """At every moment of a job, whichever fact of that kind came before."""
    lengths = [1.0 + number % 7 for number in range(1000)]
    world = World(job_spec(num_steps=2), lengths.__getitem__)
    world.run()
    state, last = JobState(job="job"), None
    for sequence, _, body in world.log:
        evolve(state, sequence, body)
        if isinstance(body, kind):
            last = body
        if last is not None and sequence % 7 == 0:
            before = copy.deepcopy(state)
            evolve(state, sequence, last)
            assert state == before
    assert last is not None or kind.TYPE == "evaluated"
