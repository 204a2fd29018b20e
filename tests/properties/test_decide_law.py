"""The rules that `next_decision` leaves out after a fact are those the fact cannot make due."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from gyre.core.scheduling import JobState, evolve, next_decision
from gyre.core.scheduling.decide import AFTER
from gyre.core.scheduling.rules import ORDER
from gyre.testkit.eventful_jobs import eventful_jobs
from gyre.testkit.scheduling_world import World


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(world=eventful_jobs())
def test_the_rules_asked_after_a_fact_are_those_it_can_make_due(world: World) -> None:
    state = JobState(job="job")
    for sequence, now, body in world.log:
        due_before = next_decision(state, now)
        evolve(state, sequence, body)
        if due_before is None:
            assert next_decision(state, now, after=body) == next_decision(state, now), body


def test_the_rules_after_a_fact_keep_their_order() -> None:
    for rules in AFTER.values():
        assert [rule for rule in ORDER if rule in rules] == list(rules)
