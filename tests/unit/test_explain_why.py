"""`gyre why`: its numbers are the recorded decisions' own, under every policy, at every moment."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from gyre.contracts.envelope import Body
from gyre.contracts.events import scheduling as sched
from gyre.core.explain import (
    UnknownCell,
    Waiting,
    before_each_decision,
    explain,
    turning_point,
    waiting_for,
)
from gyre.core.scheduling import JobState
from gyre.core.scheduling.policies import policy_of
from gyre.core.scheduling.rules import roles
from gyre.scheduler.views import job_view
from gyre.testkit.scheduling_world import Timings, World
from gyre.testkit.specs import job_spec

JOBS: dict[str, dict[str, Any]] = {
    "gyre": {"num_steps": 6},
    "gyre with a pool": {"num_steps": 6, "pool_count": 1, "pool_capacity": 40},
    "gyre whose core stays": {
        "num_steps": 6,
        "phi": 0.0,
        "mu": 1,
        "executions_per_group": 2,
        "pool_count": 1,
        "pool_capacity": 40,
    },
    "gyre, no streaming": {"num_steps": 4, "streaming": False},
    "gyre+": {"num_steps": 8, "policy": "gyre+", "mu": 3},
    "gyre+, no streaming": {"num_steps": 8, "policy": "gyre+", "mu": 3, "streaming": False},
    "async": {"num_steps": 4, "policy": "async", "training_cells": 1},
    "async, no streaming": {
        "num_steps": 4,
        "policy": "async",
        "training_cells": 2,
        "streaming": False,
    },
    "colocate": {"num_steps": 4, "policy": "colocate", "phi": 0.0},
    "colocate, coarse": {
        "num_steps": 4,
        "policy": "colocate",
        "pool_count": 1,
        "pool_capacity": 30,
    },
}
every_job = pytest.mark.parametrize("name", JOBS)


@cache
def _world(name: str) -> World:
    world = World(
        job_spec(heldout=False, **JOBS[name]),
        lambda number: 1.0 + 3.0 * (number * 7919 % 13) / 13,
        Timings(micro_step=0.4),
    )
    world.run()
    return world


def _facts(name: str) -> list[tuple[int, Body]]:
    return [(sequence, body) for sequence, _, body in _world(name).log]


@every_job
def test_the_numbers_of_a_transition_are_its_own(name: str) -> None:
    num = 0
    for state, _, decision in before_each_decision("job", _facts(name)):
        if not isinstance(decision, sched.TransitionStarted):
            continue
        num += 1
        told = explain(state, decision.now)
        assert told.starts
        assert (told.cell, told.obstacle) == (decision.cell, None)
        equation = told.checks[2]
        assert (equation.left, equation.right) == (decision.waterlevel, decision.capacity_after)
        assert told.due is not None
        assert told.due <= decision.now
        assert told.numbers["w"] == told.numbers["d"] - told.numbers["f"] == decision.waterlevel
        assert told.numbers["C_next"] == state.cells[decision.cell].capacity
    assert num > 0


@every_job
def test_the_numbers_of_a_bursts_end_are_its_own(name: str) -> None:
    num = 0
    for state, sequence, decision in before_each_decision("job", _facts(name)):
        if not isinstance(decision, sched.BurstEnded):
            continue
        num += 1
        end = explain(state, decision.now).burst_end
        assert end is not None
        assert end.final
        assert end.burst == decision.burst
        assert end.core_stays == decision.core_stays
        assert end.staying_satellites == decision.staying_satellites
        assert (end.waterlevel, end.next_dispatch) == (decision.waterlevel, decision.next_dispatch)
        assert (end.capacity, end.ready) == (decision.capacity_without_core, decision.ready)
        point = turning_point(state, sequence, decision)
        assert point is not None
        assert (point.left, point.right) == (end.left, end.capacity)
        assert end.checks
        assert all(check.holds for check in end.checks) == end.core_stays
    assert num > 0


def test_in_these_jobs_a_core_stays_and_a_core_goes_back() -> None:
    ends = [
        body.core_stays
        for name in JOBS
        for _, body in _facts(name)
        if isinstance(body, sched.BurstEnded)
    ]
    assert set(ends) == {True, False}


@every_job
def test_a_transition_starts_exactly_when_every_check_holds(name: str) -> None:
    """Asked after every fact, a little later, and of every cell."""

    def look(state: JobState, body: Body, now: float) -> None:
        if state.spec is None:
            return
        for later in (now, now + 0.3):
            due = _transition(state, later)
            told = explain(state, later)
            assert told.starts == (due is not None)
            for cell in state.cells:
                of_cell = explain(state, later, cell)
                starts = due is not None and due.cell == cell  # type: ignore[attr-defined]
                assert of_cell.starts == starts
                assert (of_cell.obstacle is None) == (cell == told.cell and told.obstacle is None)
            turn = policy_of(state).next_cell(state) if state.status == "running" else None
            assert told.cell == (turn.cell if turn else None)

    world = _world(name)
    again = World(world.spec, world.durations, world.timings, on_fact=look)
    again.run()


def _transition(state: JobState, now: float) -> Body | None:
    """What the decider's rules on roles would do, the timer's before the transition's."""
    if state.status != "running" or roles.supply_timer(state, now) is not None:
        return None
    return roles.transition(state, now)


@every_job
def test_what_is_missing_is_said_exactly_when_a_check_fails(name: str) -> None:
    for state, _, decision in before_each_decision("job", _facts(name)):
        for check in explain(state, decision.now, state.order[0] if state.order else None).checks:
            assert bool(check.missing) != check.holds


def test_why_not_says_whose_turn_it_is_and_who_is_in_the_way() -> None:
    world = World(job_spec(heldout=False, num_steps=4), lambda number: 2.0)
    said: set[str] = set()

    def look(state: JobState, body: Body, now: float) -> None:
        if state.spec is not None:
            said.update(str(explain(state, now, cell).obstacle) for cell in state.cells)

    world.on_fact = look
    world.run()
    assert {
        "it is cell 0's turn: core first, then satellites in index order, one at a time",
        "it trains already",
        "cell 0 is on its way into training, and one goes at a time",
        "burst 0 is over and its weights are being published",
        "the job's cells are still booting",
        "the job is over (succeeded: all steps done)",
    } <= said


def test_a_cell_of_another_job_is_refused() -> None:
    with pytest.raises(UnknownCell, match="cell 7 is not the job's; its cells: 0, 1, 2"):
        explain(_world("gyre").state, 0.0, 7)


def test_a_paused_job_says_so() -> None:
    for state, _, decision in before_each_decision("job", _facts("gyre")):
        if isinstance(decision, sched.TransitionStarted):
            state.paused = True
            told = explain(state, decision.now)
            assert (told.starts, told.obstacle) == (False, "the job is paused")
            return


def waits_of(world: World) -> list[Waiting]:
    """What is waited for at each fact of a whole run at which something is."""
    said: list[Waiting] = []

    def look(state: JobState, body: Body, now: float) -> None:
        waiting = waiting_for(state) if state.spec is not None else None
        if waiting is not None:
            said.append(waiting)

    world.on_fact = look
    world.run()
    return said


def test_a_starving_batch_names_the_oldest_group_and_its_unfinished_executions() -> None:
    """One execution of group 3 runs on for long: the second step cannot do without it."""
    slow = 3 * 4 + 1
    world = World(
        job_spec(heldout=False, num_steps=4, executions_per_group=4, phi=0.0, capacity=20),
        lambda number: 60.0 if number == slow else 1.0,
    )
    said = waits_of(world)
    assert "its executions have ended, scores are not in" in said[-1].text()
    waiting = next(one for one in said if len(one.unfinished) == 1 and one.group == "job-g0003")
    assert waiting.what == "batch l1-s0001"
    assert (waiting.num_missing, waiting.group, waiting.version) == (1, "job-g0003", 0)
    assert [(one.execution, one.standing) for one in waiting.unfinished] == [
        ("job-g0003-e1", "running")
    ]
    assert waiting.text() == (
        "batch l1-s0001 waits for 1 more ready group; the oldest unfinished is job-g0003 of "
        "version 0: job-g0003-e1 running on cell 2"
    )


def test_a_core_without_streaming_waits_for_the_whole_burst() -> None:
    world = World(
        job_spec(
            heldout=False, num_steps=4, policy="async", training_cells=1, streaming=False, phi=0.0
        ),
        lambda number: 1.0 + number % 5,
    )
    said = waits_of(world)
    assert {waiting.what for waiting in said} >= {"burst 0", "burst 1"}
    assert max(waiting.num_missing for waiting in said) == 12


def test_policies_say_it_in_their_own_terms() -> None:
    said: dict[str, set[str]] = {}
    for name in JOBS:
        words = said[name] = set()
        for state, _, decision in before_each_decision("job", _facts(name)):
            told = explain(state, decision.now)
            words.add(str(told.obstacle))
            words.update(check.terms for check in told.checks)
    assert "training_cells is 1: the other cells serve for good" in said["async"]
    assert "policy async asks for none" in said["async"]
    assert "it follows the core" in said["colocate"]
    assert any("against C_s = 30: all cells leave as one" in t for t in said["colocate, coarse"])
    assert any("against C_R - C_next = 24 - 8" in text for text in said["gyre"])
    assert any("all of the burst's: no streaming" in t for t in said["gyre, no streaming"])
    lonely = "cell 1, the next in order, is a satellite, and no batch is open to join"
    assert lonely in said["gyre"]
    assert not any(lonely in said[name] for name in JOBS if not name.startswith("gyre"))


def test_the_jobs_view_says_what_a_starving_burst_waits_for() -> None:
    spec = job_spec(heldout=False, num_steps=4, policy="async", training_cells=1, phi=0.0)
    seen: set[str | None] = set()

    def look(state: JobState, body: Body, now: float) -> None:
        if state.spec is not None:
            waiting = waiting_for(state)
            shown = job_view(state).waiting_for
            assert shown == (waiting.text() if waiting else None)
            seen.add(shown)

    World(spec, lambda number: 1.0 + number % 5, on_fact=look).run()
    assert None in seen
    assert len(seen) > 1
