"""A snapshot and the rest of the log are the whole log, wherever it is cut."""

from __future__ import annotations

from dataclasses import fields

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.subjects import CLUSTER
from gyre.core.scheduling import next_decision, next_wake
from gyre.core.scheduling.cluster import ClusterState, evolve_cluster
from gyre.core.scheduling.snapshot import DERIVED, dump_cluster, load_cluster
from gyre.core.scheduling.state import JobState
from gyre.testkit.eventful_jobs import eventful_jobs
from gyre.testkit.scheduling_strategies import live
from gyre.testkit.scheduling_world import World

Log = list[tuple[str, float, Body]]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(world=eventful_jobs(), cuts=st.lists(st.floats(0, 1), min_size=1, max_size=3))
def test_a_snapshot_and_the_rest_are_the_whole_log(world: World, cuts: list[float]) -> None:
    log = _cluster_log(world)
    places = {round(cut * len(log)) for cut in cuts}
    whole, cut = ClusterState(), ClusterState()
    for place, (job, now, body) in enumerate(log):
        if place in places:
            cut = load_cluster(dump_cluster(cut))
        for state in (whole, cut):
            evolve_cluster(state, place + 1, job, body)
        for name, job_state in whole.jobs.items():
            assert next_decision(cut.jobs[name], now) == next_decision(job_state, now)
            assert next_wake(cut.jobs[name]) == next_wake(job_state)
    assert cut == whole
    assert dump_cluster(cut) == dump_cluster(whole)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(world=eventful_jobs(), cut=st.floats(0, 1))
def test_what_a_state_derives_is_the_same_after_a_snapshot(world: World, cut: float) -> None:
    log = _cluster_log(world)
    state = ClusterState()
    for place, (job, _, body) in enumerate(log[: round(cut * len(log))]):
        evolve_cluster(state, place + 1, job, body)
    loaded = load_cluster(dump_cluster(state))
    for name, job_state in state.jobs.items():
        for field in DERIVED:
            assert getattr(loaded.jobs[name], field) == getattr(job_state, field), field
        for cell in loaded.jobs[name].everyone:
            assert cell is loaded.jobs[name].cells[cell.cell]


def test_a_finished_job_keeps_no_groups_and_no_executions() -> None:
    world = live({"num_steps": 3, "heldout": False}, seed=1)
    state = ClusterState()
    for place, (job, _, body) in enumerate(_cluster_log(world)):
        evolve_cluster(state, place + 1, job, body)
    job_state = state.jobs["job"]
    assert job_state.settled
    assert job_state.training == world.state.training
    bulky = {"executions", "groups", "queue", "train_tasks", "heldout_tasks", "unclaimed"}
    for field in fields(JobState):
        value = getattr(job_state, field.name)
        assert field.name not in bulky or not value, field.name
    assert len(dump_cluster(state)) < 6_000


def _cluster_log(world: World) -> Log:
    """The world's facts, between its agents' registrations and what comes late."""
    online = [
        cell_events.AgentOnline(cell=cell, incarnation="i", host="h", pid=1)
        for cell in world.state.cells
    ]
    log: Log = [(CLUSTER, 0.0, body) for body in online]
    log += [("job", now, body) for _, now, body in world.log]
    late = [body for _, _, body in world.log if type(body).TYPE in ("terminated", "group_ready")]
    return log + [("job", world.now, body) for body in late[-3:]]
