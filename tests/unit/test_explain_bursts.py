"""What `gyre why` says of a burst, its length and its end, is what happens, under each policy."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from gyre.cli.explain_text import why_lines
from gyre.contracts.envelope import Body
from gyre.contracts.events import requests as request_events
from gyre.contracts.events import scheduling as sched
from gyre.core.explain import Explanation, before_each_decision, explain
from gyre.core.scheduling import JobState
from gyre.testkit.policy_jobs import JOBS, facts_of, next_fact, world_of
from gyre.testkit.scheduling_strategies import live

every_job = pytest.mark.parametrize("name", JOBS)


@every_job
def test_the_groups_that_eq_3_counts_are_those_that_go_out_next(name: str) -> None:
    said = set()
    for state, sequence, decision in before_each_decision("job", facts_of(name)):
        if not isinstance(decision, sched.BurstEnded):
            continue
        told = explain(state, decision.now)
        assert told.burst_end is not None
        dispatch, burst = (
            next_fact(name, sequence, k) for k in (sched.Dispatched, sched.BurstStarted)
        )
        groups = () if dispatch is None else dispatch.groups
        schedule = state.required_spec.schedule
        assert told.burst_end.next_groups == len(groups)
        assert decision.next_dispatch == sum(len(group.executions) for group in groups)
        terms = next((c.terms for c in told.burst_end.checks if c.name == "eq. (3)"), None)
        if terms is None:
            continue
        size = "N'" if schedule.executions_started else "N"
        ahead = state.num_groups_dispatched - schedule.groups_per_step * state.num_steps_done
        if len(groups) == schedule.mu * schedule.groups_per_step:
            said.add("mu N B")
            assert f"w + mu {size} B = " in terms
        elif burst is None:
            said.add("none")
            assert terms.endswith("; every group of the job is dispatched")
        elif len(state.groups) + len(groups) == schedule.num_steps * schedule.groups_per_step:
            said.add("last")
            assert f"w + {size} * due groups = " in terms
            assert terms.endswith("; they are the job's last")
        else:
            said.add("level")
            steps = f"{burst.num_steps} step{'s' * (burst.num_steps != 1)}"
            assert terms.endswith(
                f"; the next burst, of {steps}, begins with {ahead + len(groups)} groups in "
                f"flight, {ahead} of them dispatched before"
            )
    assert "level" in said or not name.startswith("gyre+") or "stays" in name


@every_job
def test_the_length_of_a_burst_is_said_when_it_is_not_mu(name: str) -> None:
    num_other = 0
    mu = JOBS[name].get("mu", 2)
    for state, sequence, decision in before_each_decision("job", facts_of(name)):
        told = explain(state, decision.now)
        text = list(why_lines(told, None, ()))
        lines = [line for line in text if line.startswith("burst ") and "instead of mu" in line]
        if told.burst is None:
            assert lines == []
            continue
        begun = state.burst is not None and not state.burst.ended
        burst: Any = state.burst if begun else next_fact(name, sequence - 1, sched.BurstStarted)
        view = told.burst
        assert (view.burst, view.first_step) == (burst.burst, burst.first_step)
        assert (view.num_steps, view.mu, view.begun) == (burst.num_steps, mu, begun)
        assert lines == ([view.text()] if burst.num_steps != mu else [])
        num_other += burst.num_steps != mu
        if lines:
            assert f"{burst.num_steps} step" in lines[0]
            assert f"instead of mu = {mu}" in lines[0]
    sizes = {body.num_steps for _, body in facts_of(name) if isinstance(body, sched.BurstStarted)}
    assert (num_other > 0) == (sizes != {mu})


def test_levelled_bursts_say_why_they_are_short_and_long() -> None:
    said = set()
    for state, _, decision in before_each_decision("job", facts_of("gyre+")):
        told = explain(state, decision.now)
        said.add(told.burst.text() if told.burst else "")
    first = "the first burst is short, since nothing trains while it waits"
    last = "the last burst is long, since nothing waits to be published behind it"
    for verb in ("has", "will have"):
        assert {
            f"burst 0 {verb} 1 step, from step 0, instead of mu = 3: {first}",
            f"burst 1 {verb} 3 steps, from step 1",
            f"burst 2 {verb} 4 steps, from step 4, instead of mu = 3: {last}",
        } <= said


@pytest.mark.parametrize("policy", ["gyre", "gyre+"])
def test_a_burst_that_dropped_groups_cut_short_is_over_and_the_next_has_what_is_left(
    policy: str,
) -> None:
    schedule: dict[str, Any] = {
        "policy": policy,
        "capacity": 6,
        "groups_per_step": 2,
        "executions_per_group": 2,
        "phi": 1.0,
        "num_steps": 6 if policy == "gyre" else 7,
        "max_staleness": 2,
        "on_stale": "drop",
    }
    ends, lengths = set(), set()
    for seed in range(10):
        facts = [(sequence, body) for sequence, _, body in live(schedule, seed).log]
        for state, _, decision in before_each_decision("job", facts):
            told = explain(state, decision.now)
            lengths.add(told.burst.text() if told.burst else "")
            if isinstance(decision, sched.BurstEnded) and state.burst is not None:
                assert told.burst_end is not None
                assert told.burst_end.final
                if state.burst.holds(state.num_steps_done):
                    ends.add(told.burst_end.checks[0].terms)
    done = schedule["num_steps"] - 1
    few = "dropped groups leave too few for another one in this burst"
    assert f"{done} of {done + 1} steps are done; {few}" in ends
    why = {
        "gyre": "the job ends with it",
        "gyre+": "it is what is left of a burst that did not come to its end",
    }
    assert f"burst 3 has 1 step, from step {done}, instead of mu = 2: {why[policy]}" in lengths


def _with(name: str, *asked: Body) -> tuple[Explanation, sched.BurstEnded]:
    """The first burst's end of a job whose core stays, if somebody asks this when it begins."""
    world = world_of(name)

    def ask(state: JobState, body: Body, now: float) -> None:
        if isinstance(body, sched.BurstStarted) and body.burst == 0:
            for request in asked:
                world.later(0.01, partial(world.fact, request))

    world.on_fact = ask
    world.run()
    facts = [(sequence, body) for sequence, _, body in world.log]
    for state, _, decision in before_each_decision("job", facts):
        if isinstance(decision, sched.BurstEnded):
            return explain(state, decision.now), decision
    raise AssertionError(name)


STAYING = ("gyre+ whose core stays", "async", "colocate, coarse")


@pytest.mark.parametrize("name", STAYING)
@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (request_events.DrainRequested(reason="r"), "the job is drained: no further burst begins"),
        (request_events.ReleaseRequested(cell=0), "cell 0, the core, is wanted back"),
    ],
)
def test_a_core_that_may_not_stay_says_so(name: str, request_: Body, words: str) -> None:
    undisturbed, stays = _with(name)
    assert stays.core_stays
    assert undisturbed.burst_end is not None
    assert all(check.holds for check in undisturbed.burst_end.checks)
    told, decision = _with(name, request_)
    assert told.burst_end is not None
    assert not decision.core_stays
    assert not told.burst_end.core_stays
    assert [c.terms for c in told.burst_end.checks if not c.holds] == [words]


def test_a_satellite_that_is_wanted_back_is_not_said_to_stay() -> None:
    told, decision = _with("async", request_events.ReleaseRequested(cell=1))
    assert told.burst_end is not None
    assert told.burst_end.core_stays
    assert told.burst_end.staying_satellites == decision.staying_satellites == ()
