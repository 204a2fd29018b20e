"""Laws `transition` and `staleness`, and replay: the log gives the state again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.contracts.envelope import Body
from gyre.contracts.events import groups as group_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import steps as step_events
from gyre.core.scheduling import JobState, evolve, ledger, next_decision, transitions
from gyre.core.staleness import expected_staleness, group_staleness, mean_staleness
from gyre.testkit.scheduling_strategies import SCHEDULES, every_job, live
from gyre.testkit.scheduling_world import Timings, World
from gyre.testkit.specs import job_spec


@every_job
@given(schedule=SCHEDULES, seed=st.integers(0, 10_000))
def test_a_transition_starts_only_below_the_waterlevel_of_eq_2(schedule: dict, seed: int) -> None:
    world = live(schedule, seed)
    for event in world.decisions(sched.TransitionStarted):
        assert event.waterlevel <= event.capacity_after


@every_job
@given(schedule=SCHEDULES, seed=st.integers(0, 10_000))
def test_supply_held_for_tau_without_a_break_before_each_transition(
    schedule: dict, seed: int
) -> None:
    """Recomputed from ready and claimed groups alone, not from the timer's own events."""
    held_since: list[float | None] = [None]

    def check(state: JobState, body: Body, now: float) -> None:
        if isinstance(body, sched.TransitionStarted):
            assert held_since[0] is not None
            assert now - held_since[0] >= schedule["tau_s"] - 1e-9
            held_since[0] = None
        if isinstance(body, sched.BatchOpened):
            held_since[0] = None
        if state.phase == "training":
            if not transitions.supplied(state):
                held_since[0] = None
            elif held_since[0] is None:
                held_since[0] = now

    live(schedule, seed, check)


@every_job
@given(schedule=SCHEDULES, seed=st.integers(0, 10_000))
def test_training_cells_are_a_growing_prefix_and_transitions_are_serial(
    schedule: dict, seed: int
) -> None:
    def check(state: JobState, body: Body, now: float) -> None:
        roles = [cell.role for cell in state.in_order]
        assert roles.count("to_training") <= 1
        training = [cell.index for cell in state.in_order if cell.role == "training"]
        assert training == list(range(len(training)))
        if isinstance(body, sched.JoinWindowClosed):
            assert body.members == state.order[: len(body.members)]

    live(schedule, seed, check)


@every_job
@given(schedule=SCHEDULES, seed=st.integers(0, 10_000))
def test_the_core_stays_only_under_eq_3(schedule: dict, seed: int) -> None:
    world = live(schedule, seed)
    for event in world.decisions(sched.BurstEnded):
        if event.core_stays:
            assert event.waterlevel + event.next_dispatch <= event.capacity_without_core


@every_job
@given(schedule=SCHEDULES, seed=st.integers(0, 10_000))
def test_staleness_is_v_t_minus_v_d_for_every_group_from_the_log_alone(
    schedule: dict, seed: int
) -> None:
    world = live(schedule, seed)
    dispatched: dict[str, int] = {}
    consumed: dict[str, int] = {}
    version = 0
    for _, _, body in world.log:
        match body:
            case sched.Dispatched(kind="training"):
                dispatched.update({plan.group: body.version for plan in body.groups})
            case group_events.GroupClaimed():
                consumed[body.group] = version
            case step_events.StepCompleted():
                version = body.version
            case _:
                pass
    assert len(consumed) == schedule["num_steps"] * schedule["groups_per_step"]
    for name, group in world.state.groups.items():
        if not group.dropped:
            assert group_staleness(group) == consumed[name] - dispatched[name]


@pytest.mark.parametrize(("phi", "mu"), [(0.5, 2), (0.5, 3), (1.5, 1), (0.0, 4)])
def test_mean_staleness_meets_the_identity_in_the_long_run(phi: float, mu: int) -> None:
    spec = job_spec(phi=phi, mu=mu, num_steps=60, heldout=False)
    state = World(spec, lambda i: 1.0 + (i * 7919 % 13) / 13, Timings()).run()
    assert mean_staleness(state.groups.values()) == pytest.approx(
        expected_staleness(phi, mu), abs=0.1
    )


@every_job
@given(schedule=SCHEDULES, seed=st.integers(0, 10_000))
def test_replaying_the_log_gives_the_state_and_every_decision_again(
    schedule: dict, seed: int
) -> None:
    world = live(schedule, seed)
    state = JobState(job="job")
    for sequence, _, body in world.log:
        if isinstance(body, sched.Decision) and not isinstance(body, sched.JobStarted):
            assert body.based_on == state.sequence
            assert next_decision(state, body.now) == body
        evolve(state, sequence, body)
    assert world.state == state


def test_colocate_one_cell_without_a_pool_switches_at_waterlevel_zero() -> None:
    spec = job_spec(cells=1, capacity=8, phi=0.0, mu=2, num_steps=4, heldout=False)
    world = World(spec, lambda i: 1.0)
    world.run()
    transitions_in = [e for e in world.decisions(sched.TransitionStarted) if e.to == "training"]
    assert transitions_in
    assert {event.waterlevel for event in transitions_in} == {0}


def test_every_cell_trains_in_the_quickstart_schedule() -> None:
    """The schedule run in the pure decider first, as slow as a laptop trains."""
    world = World(job_spec(), lambda i: 1.0 + (i * 7919 % 17) / 5, Timings(micro_step=2.0))
    world.run()
    assert {event.cell for event in world.decisions(sched.TransitionStarted)} == {0, 1, 2}


def test_moves_go_to_rollout_cells_in_reverse_index_order() -> None:
    world = World(job_spec(cells=4, capacity=4), lambda i: 2.0 + i % 3)
    moved: list[tuple[sched.TransitionStarted, list[int]]] = []

    def check(state: JobState, body: Body, now: float) -> None:
        if isinstance(body, sched.TransitionStarted) and body.moves:
            moved.append((body, [move.destination for move in body.moves]))

    world.on_fact = check
    world.run()
    assert moved
    for event, destinations in moved:
        assert destinations == sorted(destinations, reverse=True)
        assert event.cell not in destinations
    assert ledger.free_capacity(world.state) >= 0
