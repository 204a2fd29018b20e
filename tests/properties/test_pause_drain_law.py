"""Pause, resume, drain: at any moment of any job, alone, together and with a cancellation."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gyre.contracts.envelope import Body
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import requests as request_events
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import JobState, evolve, next_decision, next_wake
from gyre.testkit.scheduling_strategies import SCHEDULES
from gyre.testkit.scheduling_world import Timings, World
from gyre.testkit.specs import job_spec

POLICIES: dict[str, dict[str, Any]] = {
    "gyre": {},
    "whole bursts": {"streaming": False},
    "async": {"policy": "async", "training_cells": 1},
    "colocate": {"policy": "colocate", "pool_count": 2, "pool_capacity": 9},
}
HELDOUT = ("h0", "h1", "h2")
PAUSE = request_events.PauseRequested(reason="p")
RESUME = request_events.ResumeRequested()
DRAIN = request_events.DrainRequested(reason="d")
CANCEL = request_events.CancelRequested(reason="c")
BEGINNINGS = (
    *(sched.StartOrdered, sched.Dispatched, sched.BurstStarted, sched.BatchOpened),
    sched.SupplyTimerStarted,
)
moments = st.floats(0.01, 60.0)
pauses = st.lists(st.tuples(moments, st.floats(0.1, 20.0)), max_size=2)
some_jobs = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def make(schedule: dict[str, Any], seed: int, *, heldout: bool = True, scale: float = 0.5) -> World:
    source = random.Random(seed)
    lengths = [source.lognormvariate(scale, 1.0) for _ in range(3000)]
    timings = Timings(micro_step=source.choice([0.1, 1.0, 4.0]), switch=source.choice([0.1, 2.0]))
    tasks = HELDOUT if heldout else ()
    return World(job_spec(**schedule), lengths.__getitem__, timings, heldout_tasks=tasks)


def ask(world: World, at: float, body: Body) -> None:
    """Unless the job has ended by then: the API answers 409."""

    def say() -> None:
        if world.state.status == "running":
            world.fact(body)

    world.later(at, say)


@some_jobs
@given(
    schedule=SCHEDULES,
    policy=st.sampled_from(sorted(POLICIES)),
    seed=st.integers(0, 10_000),
    when=pauses,
    drain=st.none() | moments,
    cancel=st.none() | moments,
    heldout=st.booleans(),
)
def test_a_job_ends_whatever_is_asked_of_it_and_when(
    schedule: dict[str, Any],
    policy: str,
    seed: int,
    when: list[tuple[float, float]],
    drain: float | None,
    cancel: float | None,
    heldout: bool,
) -> None:
    """Paused, nothing begins; what was asked is what the end says; nothing is left running; and the
    log gives every decision again."""
    world = make(schedule | POLICIES[policy], seed, heldout=heldout)
    for start, length in when:
        ask(world, start, PAUSE)
        ask(world, start + length, RESUME)
    if drain is not None:
        ask(world, drain, DRAIN)
    if cancel is not None:
        ask(world, cancel, CANCEL)

    def watch(state: JobState, body: Body, now: float) -> None:
        if state.paused:
            assert not isinstance(body, BEGINNINGS)
            assert not (isinstance(body, sched.TransitionStarted) and body.to == "training")
        if state.drain_requested is not None:
            assert not isinstance(body, sched.BurstStarted)

    world.on_fact = watch
    state = world.run()
    asked = {type(body) for _, _, body in world.log}
    allowed = {"all steps done"}
    if request_events.DrainRequested in asked:
        allowed.add(f"drained after step {state.num_steps_done}")
    if request_events.CancelRequested in asked:
        allowed = {"c"}
    assert state.reason in allowed
    for counters in (state.training, state.heldout):
        assert counters.dispatched == counters.started == counters.terminated
    assert state.status == "cancelled" or state.published == state.version
    _decides_again(world)


def _decides_again(world: World) -> None:
    state = JobState(job="job")
    for sequence, _, body in world.log:
        if isinstance(body, sched.Decision) and not isinstance(body, sched.JobStarted):
            assert next_decision(state, body.now) == body
        evolve(state, sequence, body)
    assert state == world.state


class Stop(Exception):
    """The moment that a test wanted."""


def run_until(world: World, kind: type[Body], nth: int = 1) -> None:
    """Lives up to the nth fact of this kind, that one folded."""
    seen = 0

    def watch(state: JobState, body: Body, now: float) -> None:
        nonlocal seen
        seen += isinstance(body, kind)
        if seen == nth and isinstance(body, kind):
            raise Stop

    world.on_fact = watch
    with pytest.raises(Stop):
        world.run()
    world.on_fact = lambda state, body, now: None


def test_the_supply_timer_stops_at_a_pause_and_begins_anew_after_it() -> None:
    world = make({"tau_s": 5.0}, 1, heldout=False)
    run_until(world, sched.SupplyTimerStarted)
    state, now = world.state, world.now
    evolve(state, state.sequence + 1, PAUSE)
    stopped = next_decision(state, now + 1)
    assert isinstance(stopped, sched.SupplyTimerStopped)
    evolve(state, state.sequence + 1, stopped)
    assert next_wake(state) is None
    assert next_decision(state, now + 100) is None
    evolve(state, state.sequence + 1, RESUME)
    again = next_decision(state, now + 100)
    assert isinstance(again, sched.SupplyTimerStarted)
    evolve(state, state.sequence + 1, again)
    assert next_wake(state) == pytest.approx(now + 105)


def test_an_open_batch_ends_its_step_and_publishes_though_the_job_is_paused() -> None:
    world = make({"mu": 1, "phi": 1.0, "num_steps": 6}, 2, heldout=False)

    paused_at: list[int] = []

    def watch(state: JobState, body: Body, now: float) -> None:
        if isinstance(body, sched.JoinWindowClosed) and not paused_at:
            paused_at.append(state.num_steps_done)
            world.later(0.0, partial(world.fact, PAUSE))
            world.later(50.0, partial(world.fact, RESUME))
        if state.paused and isinstance(body, sched.BurstEnded):
            paused_at.append(state.num_steps_done)

    world.on_fact = watch
    world.run()
    assert paused_at == [0, 1]


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("heldout", [True, False])
def test_a_drain_inside_a_burst_lets_it_end_publishes_measures_and_cancels_the_rest(
    policy: str, heldout: bool
) -> None:
    schedule = {"mu": 2, "num_steps": 9} | POLICIES[policy]
    world = make(schedule, 5, heldout=heldout)
    asked: list[int] = []

    def watch(state: JobState, body: Body, now: float) -> None:
        if isinstance(body, sched.BatchOpened) and not asked:
            asked.append(state.num_steps_done)
            world.later(0.0, partial(world.fact, DRAIN))

    world.on_fact = watch
    state = world.run()
    assert (state.status, state.reason) == ("succeeded", "drained after step 2")
    assert not any(event.core_stays for event in world.decisions(sched.BurstEnded))
    assert state.published == state.version == 2
    assert state.heldout.terminated == (6 if heldout else 0)
    cancelled = world.decisions(sched.ExecutionsCancelled)
    assert [event.reason for event in cancelled] == ["d"]
    ended = {
        body.execution
        for _, _, body in world.log
        if isinstance(body, run_events.Terminated) and body.reason == "cancelled"
    }
    assert ended <= set(cancelled[0].running)
    assert all(cell.role == "rollout" for cell in state.everyone)


def test_the_phase_changes_only_when_what_was_cancelled_has_ended() -> None:
    world = make({"mu": 1, "num_steps": 9}, 3, scale=2.0)
    ask(world, 20.0, DRAIN)

    def watch(state: JobState, body: Body, now: float) -> None:
        if isinstance(body, sched.PhaseStarted) and body.phase == "heldout_after":
            assert state.training.waterlevel == 0
            assert all(cell.serving for cell in state.everyone)

    world.on_fact = watch
    assert world.run().reason.startswith("drained after step")


def test_a_drain_while_booting_ends_the_job_at_once() -> None:
    world = make({}, 4)
    ask(world, 0.5, DRAIN)
    state = world.run()
    assert (state.status, state.reason) == ("succeeded", "drained after step 0")
    assert (world.now, state.heldout.dispatched) == (0.5, 0)


@pytest.mark.parametrize(
    ("moment", "num_measured"), [(sched.StartOrdered, 3), (sched.SupplyTimerStarted, 6)]
)
def test_a_drain_before_the_first_burst(moment: type[Body], num_measured: int) -> None:
    """While measuring: when the scores are in, which hold for the same weights. In training: the
    job is measured again as ever."""
    world = make({"tau_s": 5.0}, 4)
    asked: list[bool] = []

    def watch(state: JobState, body: Body, now: float) -> None:
        if isinstance(body, moment) and not asked:
            asked.append(True)
            world.later(0.0, partial(world.fact, DRAIN))

    world.on_fact = watch
    state = world.run()
    assert (state.status, state.reason) == ("succeeded", "drained after step 0")
    assert state.num_heldout_scored == num_measured


def test_a_drain_after_the_last_step_changes_nothing() -> None:
    world = make({"num_steps": 2, "mu": 2}, 4)

    def watch(state: JobState, body: Body, now: float) -> None:
        if isinstance(body, sched.PhaseStarted) and body.phase == "heldout_after":
            world.later(0.0, partial(world.fact, DRAIN))

    world.on_fact = watch
    assert world.run().reason == "all steps done"


def test_a_cancellation_ends_a_drain() -> None:
    world = make({"mu": 3, "num_steps": 9}, 6)
    asked: list[bool] = []

    def watch(state: JobState, body: Body, now: float) -> None:
        if isinstance(body, sched.BatchOpened) and not asked:
            asked.append(True)
            world.later(0.0, partial(world.fact, DRAIN))
            world.later(0.1, partial(world.fact, CANCEL))

    world.on_fact = watch
    state = world.run()
    assert (state.status, state.reason) == ("cancelled", "c")


def test_a_paused_job_drains_when_it_is_resumed() -> None:
    """Paused inside a burst it cannot reach the burst's end; drained, it does no step beyond it."""
    world = make({"mu": 3, "num_steps": 9}, 7)
    asked: list[bool] = []

    def watch(state: JobState, body: Body, now: float) -> None:
        if isinstance(body, sched.BatchOpened) and not asked:
            asked.append(True)
            for at, request in ((0.0, PAUSE), (0.1, DRAIN), (80.0, RESUME)):
                world.later(at, partial(world.fact, request))

    world.on_fact = watch
    assert world.run().reason == "drained after step 3"
