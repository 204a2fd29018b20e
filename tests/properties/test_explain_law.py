"""Explanations hold for any job: they agree with the decider at every fact, and never fail."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.contracts.codec import make_envelope
from gyre.contracts.envelope import Body
from gyre.contracts.events import scheduling as sched
from gyre.core.explain import (
    Journeys,
    Recheck,
    before_each_decision,
    explain,
    staleness_report,
    waiting_for,
)
from gyre.core.scheduling import JobState
from gyre.core.scheduling.rules import roles
from gyre.testkit.scheduling_strategies import SCHEDULES, live

SEEDS = st.integers(0, 2**32 - 1)
some_jobs = settings(max_examples=20)


@some_jobs
@given(schedule=SCHEDULES, policy=st.sampled_from(["gyre", "gyre+"]), seed=SEEDS)
def test_why_agrees_with_the_decider(schedule: dict[str, Any], policy: str, seed: int) -> None:
    def look(state: JobState, body: Body, now: float) -> None:
        if state.spec is None or state.status != "running":
            return
        due = None
        if roles.supply_timer(state, now) is None:
            due = roles.transition(state, now)
        told = explain(state, now)
        assert told.starts == (due is not None)
        waiting = waiting_for(state)
        if waiting is not None:
            assert state.num_ready_unclaimed < state.required_spec.schedule.groups_per_step * 3
            assert waiting.text()

    world = live({**schedule, "policy": policy}, seed, look)
    for state, _, decision in before_each_decision("job", ((n, b) for n, _, b in world.log)):
        if isinstance(decision, sched.BurstEnded):
            end = explain(state, decision.now).burst_end
            assert end is not None
            assert end.final
            assert all(check.holds for check in end.checks) == end.core_stays
            assert end.left == decision.waterlevel + decision.next_dispatch
            assert (end.capacity, end.core_stays, end.ready) == (
                decision.capacity_without_core,
                decision.core_stays,
                decision.ready,
            )


@some_jobs
@given(schedule=SCHEDULES, seed=SEEDS)
def test_no_decision_differs_and_the_parts_of_each_groups_time_add_up(
    schedule: dict[str, Any], seed: int
) -> None:
    world = live(schedule, seed)
    recheck, journeys = Recheck("job"), Journeys("job")
    for sequence, time, body in world.log:
        recheck.see(sequence, body)
        envelope = make_envelope(
            body, identity="i", job="job", aggregate="facts.x", time=time, causation=""
        )
        journeys.fold_fact(sequence, envelope)
    assert recheck.first is None, str(recheck.first)
    told = staleness_report(journeys)
    numbers = world.spec.schedule
    assert len(told.rows) == numbers.num_steps * numbers.groups_per_step
    assert told.num_unclaimed == 0
    for row in told.rows:
        group = journeys.groups[row.group]
        assert group.claimed is not None
        assert abs(row.total_s - (group.claimed - group.dispatched)) < 1e-6
        assert min(row.queued_s, row.running_s, row.scoring_s, row.ready_s) > -1e-6
