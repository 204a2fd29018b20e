"""`gyre staleness` and `gyre compare`: where each group's time went adds up, under restores too."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path

import pytest

from gyre.adapters.journal import Fact
from gyre.contracts.codec import make_envelope
from gyre.contracts.envelope import Body, Envelope
from gyre.contracts.events import calls as call_events
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import groups as group_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import steps as step_events
from gyre.core.explain import Journeys, RunClock, staleness_report, waiting_for
from gyre.core.staleness import mean_staleness
from gyre.testkit.scheduling_world import Timings, World
from gyre.testkit.specs import job_spec
from gyre.testkit.training_world import JOB, Strike, TrainingWorld
from gyre.testkit.virtual_time import run_virtual


def _envelope(body: Body, time: float, job: str = "job") -> Envelope:
    return make_envelope(body, identity="i", job=job, aggregate="facts.x", time=time, causation="")


@cache
def _world() -> World:
    world = World(
        job_spec(heldout=False, num_steps=6),
        lambda number: 1.0 + (number * 7919 % 13) / 4,
        Timings(micro_step=0.4, scoring=0.25),
    )
    world.run()
    return world


def _journeys(world: World) -> Journeys:
    journeys = Journeys("job")
    for sequence, time, body in world.log:
        journeys.fold_fact(sequence, _envelope(body, time))
    return journeys


@cache
def _restored() -> tuple[Fact, ...]:
    """A run whose core is lost once, so that groups return to the buffer."""
    with tempfile.TemporaryDirectory() as home:
        world = TrainingWorld(
            spec=job_spec(
                capacity=4,
                executions_per_group=2,
                groups_per_step=3,
                phi=1 / 3,
                num_steps=4,
                tau_s=0.0,
                heldout=False,
            ),
            home=Path(home),
            seed=3,
            strikes=(Strike(after="stream_closed", nth=2, delay_s=0.0, victim="trainer", cell=0),),
            micro_step_s=4.0,
            execution_s=1.0,
        )
        run_virtual(world.run())
    return tuple(fact for fact in world.log if fact.job == JOB)


def test_the_parts_of_a_groups_time_add_up_to_dispatch_to_claim() -> None:
    world = _world()
    told = staleness_report(_journeys(world))
    assert len(told.rows) == 36
    dispatched, claimed, ended = {}, {}, {}
    for _, time, body in world.log:
        match body:
            case sched.Dispatched():
                dispatched |= {plan.group: time for plan in body.groups}
            case group_events.GroupClaimed():
                claimed[body.group] = time
            case run_events.Terminated():
                ended[body.execution] = time
            case _:
                pass
    for row in told.rows:
        assert row.total_s == pytest.approx(claimed[row.group] - dispatched[row.group])
        assert min(row.queued_s, row.running_s, row.scoring_s, row.ready_s) >= 0
        assert row.scoring_s == pytest.approx(0.25)
        assert row.slowest is not None
        of_group = [end for name, end in ended.items() if name.startswith(f"{row.group}-e")]
        assert ended[row.slowest] == max(of_group)


def test_staleness_is_the_states_own_and_its_mean_stands_by_the_identity() -> None:
    world = _world()
    told = staleness_report(_journeys(world))
    assert told.mean == mean_staleness(world.state.groups.values())
    assert told.expected == 0.5 + (2 - 1) / 2
    assert told.maximum == max(row.staleness for row in told.rows)
    assert all(r.staleness == r.trained_version - r.dispatched_version for r in told.rows)
    assert (told.num_unclaimed, told.num_dropped) == (0, 0)


def test_the_worst_come_stalest_first() -> None:
    told = staleness_report(_journeys(_world()))
    assert len(told.worst) == 10
    assert told.worst[0].staleness == told.maximum
    keys = [(row.staleness, row.total_s) for row in told.worst]
    assert keys == sorted(keys, reverse=True)


def test_it_is_json_with_every_group() -> None:
    told = staleness_report(_journeys(_world()))
    read = json.loads(json.dumps(told.as_json()))
    assert read["job"] == "job"
    assert len(read["groups"]) == 36
    assert read["worst"] == [row.group for row in told.worst]
    assert sum(read["mean_parts"].values()) == pytest.approx(
        sum(row["total_s"] for row in read["groups"]) / 36
    )


def test_the_lag_of_tokens_is_weighted_by_them() -> None:
    journeys = _journeys(_world())
    trained = {row.group: row.trained_version for row in staleness_report(journeys).rows}
    group = max(trained, key=lambda name: trained[name])
    journeys.fold_call(_envelope(_call(f"{group}-e0", ((0, 3, 0), (3, 10, 2))), 0.0))
    journeys.fold_call(_envelope(_call(f"{group}-e1", ((0, 10, 3),)), 0.0))
    journeys.fold_call(_envelope(_call(f"{group}-e1", ((0, 50, 0),), "aborted"), 0.0))
    journeys.fold_call(_envelope(_call("job-hb0000-e0", ((0, 50, 0),)), 0.0))
    told = staleness_report(journeys)
    expected = trained[group] - (3 * 0 + 7 * 2 + 10 * 3) / 20
    row = next(row for row in told.rows if row.group == group)
    assert row.token_lag == told.token_lag == pytest.approx(expected)
    assert row.max_token_lag == told.max_token_lag == trained[group]


def _call(
    execution: str, spans: tuple[tuple[int, int, int], ...], outcome: str = "committed"
) -> call_events.CallRecorded:
    return call_events.CallRecorded.model_validate(
        {
            "call": "c",
            "execution": execution,
            "attempt": 1,
            "request_role": "main",
            "parent": None,
            "segments": (),
            "node": "n",
            "output_ids": (),
            "output_logprobs": (),
            "spans": [
                {"start": start, "end": end, "version": version, "lineage": 1, "cell": 0}
                for start, end, version in spans
            ],
            "num_input_tokens": 1,
            "num_cached_tokens": 0,
            "temperature": 1.0,
            "max_new_tokens": 8,
            "finish_reason": "stop",
            "outcome": outcome,
            "duration_s": 0.1,
        }
    )


def test_a_group_that_a_restore_returned_counts_once_with_its_second_claim() -> None:
    journeys, claims, clock = Journeys(JOB), 0, RunClock(JOB)
    for fact in _restored():
        journeys.fold_fact(fact.sequence, fact.envelope)
        clock.fold_fact(fact.sequence, fact.envelope)
        claims += isinstance(fact.body, group_events.GroupClaimed)
    told = staleness_report(journeys)
    assert len(told.rows) == 12 < claims
    assert told.mean == mean_staleness(journeys.state.groups.values())
    assert all(row.total_s >= 0 for row in told.rows)
    assert len(clock.times().step_s) == 4


def test_a_run_that_has_only_begun_has_no_rows() -> None:
    journeys = Journeys("job")
    for sequence, time, body in _world().log[:60]:
        journeys.fold_fact(sequence, _envelope(body, time))
    told = staleness_report(journeys)
    assert (told.rows, told.mean, told.maximum, told.mean_parts()) == ((), None, None, {})
    json.dumps(told.as_json())


def test_with_the_logs_times_a_starving_batch_says_since_when_and_what_is_unscored() -> None:
    spec = job_spec(heldout=False, num_steps=4, policy="async", training_cells=1, phi=0.0)
    world, journeys = World(spec, lambda number: 1.0 + number % 5), Journeys("job")
    world.run()
    said = set()
    for sequence, time, body in world.log:
        journeys.fold_fact(sequence, _envelope(body, time))
        if journeys.state.spec is not None:
            waiting = waiting_for(journeys.state, journeys.executions)
            unfinished = waiting.unfinished if waiting else ()
            said |= {(one.standing, one.since is not None) for one in unfinished}
    assert {("running", True), ("unscored", True)} <= said


def test_steps_are_timed_from_the_one_before_and_sum_up_to_the_training() -> None:
    world, clock = _world(), RunClock("job")
    for sequence, time, body in world.log:
        clock.fold_fact(sequence, _envelope(body, time))
    times = clock.times()
    steps = [time for _, time, body in world.log if isinstance(body, step_events.StepCompleted)]
    start = next(time for _, time, body in world.log if isinstance(body, sched.Dispatched))
    published = [time for _, time, b in world.log if isinstance(b, cell_events.WeightsPublished)]
    assert sum(times.step_s) == pytest.approx(steps[-1] - start)
    assert times.step_s[1] == pytest.approx(steps[1] - steps[0])
    assert times.training_s == pytest.approx(published[-1] - start)
    assert times.total_s == world.log[-1][1]
    assert (times.policy, times.streaming, times.emulation) == ("gyre", True, {})
    assert (times.status, times.expected_staleness) == ("succeeded", 1.0)
