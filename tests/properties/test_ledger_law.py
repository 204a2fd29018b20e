"""Law `ledger`: the counters, the capacity and what may start."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import JobState, evolve, ledger, next_decision
from gyre.testkit.scheduling_strategies import SCHEDULES, every_job, live
from gyre.testkit.scheduling_world import World
from gyre.testkit.specs import job_spec


@every_job
@given(schedule=SCHEDULES, seed=st.integers(0, 10_000))
def test_slots_held_never_exceed_the_capacity_of_serving_cells(schedule: dict, seed: int) -> None:
    def check(state: JobState, body: Body, now: float) -> None:
        if isinstance(body, sched.StartOrdered):
            assert ledger.running(state) <= ledger.rollout_capacity(state)
        if isinstance(body, sched.TransitionStarted):
            assert state.training.waterlevel <= ledger.rollout_capacity(state)
        for cell in state.cells.values():
            assert len(cell.executions) <= cell.capacity

    live(schedule, seed, check)


@every_job
@given(schedule=SCHEDULES, seed=st.integers(0, 10_000))
def test_capacity_is_the_sum_over_cells_in_rollout_and_ready(schedule: dict, seed: int) -> None:
    """A second account of eq. (1), kept from the events alone."""
    serving: set[int] = set()

    def check(state: JobState, body: Body, now: float) -> None:
        match body:
            case cell_events.RoleChanged(role="rollout"):
                serving.add(body.cell)
            case sched.TransitionStarted():
                serving.discard(body.cell)
            case _:
                pass
        if state.cells:
            assert ledger.rollout_capacity(state) == len(serving) * schedule["capacity"]

    live(schedule, seed, check)


@every_job
@given(schedule=SCHEDULES, seed=st.integers(0, 10_000))
def test_waterlevel_never_rises_inside_a_burst_and_dispatch_is_constant(
    schedule: dict, seed: int
) -> None:
    last = {"w": 0, "d": 0}

    def check(state: JobState, body: Body, now: float) -> None:
        if isinstance(body, sched.Dispatched):
            last["w"], last["d"] = state.training.waterlevel, state.training.dispatched
        assert state.training.dispatched == last["d"]
        assert state.training.waterlevel <= last["w"]
        last["w"] = state.training.waterlevel

    live(schedule, seed, check)


@every_job
@given(schedule=SCHEDULES, seed=st.integers(0, 10_000))
def test_dispatch_is_phi_plus_mu_batches_first_then_mu_cut_at_the_jobs_end(
    schedule: dict, seed: int
) -> None:
    world = live(schedule, seed)
    sizes = [len(event.groups) for event in world.decisions(sched.Dispatched)]
    batch, steps = schedule["groups_per_step"], schedule["num_steps"]
    first = round((schedule["phi"] + schedule["mu"]) * batch)
    expected, left = [], steps * batch
    while left > 0:
        size = min(left, schedule["mu"] * batch if expected else first)
        expected.append(size)
        left -= size
    num_dropped = len(world.decisions(sched.GroupDropped))
    if num_dropped == 0:
        assert expected == sizes
    assert sum(sizes) == steps * batch + num_dropped
    assert world.state.training.terminated == sum(sizes) * world.spec.schedule.group_size


@every_job
@given(schedule=SCHEDULES, seed=st.integers(0, 10_000))
def test_free_capacity_with_a_queue_starts_executions_at_once(schedule: dict, seed: int) -> None:
    """After the decider has spoken, no slot is free while an execution is queued."""
    world = live(schedule, seed)
    replayed = JobState(job="job")
    for place, (sequence, now, body) in enumerate(world.log):
        evolve(replayed, sequence, body)
        following = world.log[place + 1][2] if place + 1 < len(world.log) else None
        if next_decision(replayed, now) is None and not isinstance(following, sched.StartOrdered):
            assert not replayed.queue or ledger.free_capacity(replayed) <= 0


def test_a_cancelled_queued_execution_advances_p_and_f_together() -> None:
    world = World(job_spec(num_steps=2), lambda i: 5.0)
    cancelled: list[sched.ExecutionsCancelled] = []

    def cancel_early(state: JobState, body: Body, now: float) -> None:
        if isinstance(body, sched.StartOrdered) and not cancelled and state.queue:
            state.cancel_requested = "test"
        if isinstance(body, sched.ExecutionsCancelled):
            cancelled.append(body)
            assert state.training.waterlevel == ledger.running(state)

    world.on_fact = cancel_early
    state = world.run()
    assert state.status == "cancelled"
    assert cancelled[0].queued
    assert state.training.dispatched == state.training.started == state.training.terminated
