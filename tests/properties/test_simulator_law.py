"""The simulator obeys the live decider: what it skips changes nothing, what it decided is decided
again, and its long runs meet the identity."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gyre.contracts.envelope import Body, Decision
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import JobState, evolve, next_decision
from gyre.core.staleness import expected_staleness
from gyre.simulator import Simulation
from gyre.simulator.speeds import Speeds
from gyre.simulator.workload import Drawn, Fixed, Lognormal, Training
from gyre.testkit.specs import job_spec

# Schedules of each policy that its own rules allow.
SHAPES: list[dict[str, Any]] = [
    {"policy": "gyre"},
    {"policy": "gyre", "streaming": False},
    {"policy": "gyre+"},
    {"policy": "gyre", "pool_count": 1, "pool_capacity": 5},
    {"policy": "async", "training_cells": 1},
    {"policy": "async", "training_cells": 2, "streaming": False},
    {"policy": "gyre", "executions_started": 6},
    {"policy": "gyre", "executions_started": 5, "keep": "drawn"},
    {"policy": "gyre", "max_staleness": 4},
    {"policy": "gyre", "max_staleness": 4, "on_stale": "drop"},
    {"policy": "colocate", "phi": 0.0, "streaming": False},
    {"policy": "colocate", "pool_count": 1, "pool_capacity": 20},
]
SCHEDULES = st.fixed_dictionaries(
    {
        "cells": st.integers(3, 4),
        "capacity": st.integers(3, 9),
        "groups_per_step": st.sampled_from([2, 4, 6]),
        "executions_per_group": st.integers(2, 4),
        "phi": st.sampled_from([0.0, 0.5, 1.5]),
        "mu": st.integers(1, 3),
        "num_steps": st.integers(1, 5),
        "rho_min": st.sampled_from([0.2, 0.5, 1.0]),
        "tau_s": st.sampled_from([0.0, 0.5, 2.0]),
    }
)


def simulation(
    schedule: dict[str, Any], seed: int, kind: type[Simulation] = Simulation, **options: Any
) -> Any:
    """Random lengths and speeds; half-second steps make events coincide."""
    source = random.Random(seed)
    lengths = [source.choice([0.5, 1.0, source.expovariate(0.3)]) for _ in range(500)]
    speeds = Speeds(
        start_s=source.choice([0.0, 0.5]),
        scoring_s=source.choice([0.0, 0.5]),
        ready_s=source.choice([0.0, 1.0]),
        pull_s=source.choice([0.0, 0.5]),
        publish_s=source.choice([0.0, 0.5]),
        to_training_s=source.choice([0.1, 2.0]),
    )
    workload = Fixed(
        duration=lambda group, place: lengths[(group * 7 + place) % 500],
        micro_steps=tuple(source.choice([0.1, 0.5, 4.0]) for _ in range(source.choice([1, 3]))),
        num_tasks=source.choice([None, 5]),
    )
    spec = job_spec(heldout=False, **schedule)
    nodes = (1.0,) * spec.cells.num_cells
    return kind(spec, workload, speeds, nodes, **{"keep_log": True, **options})


every_shape = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@every_shape
@given(SCHEDULES, st.sampled_from(SHAPES), st.integers(0, 10_000))
def test_not_asking_after_quiet_facts_never_changes_the_run(
    numbers: dict[str, Any], shape: dict[str, Any], seed: int
) -> None:
    schedule = numbers | shape
    skipping, asking = simulation(schedule, seed), simulation(schedule, seed, ask_always=True)
    skipping.run()
    asking.run()
    assert skipping.log == asking.log


@every_shape
@given(SCHEDULES, st.sampled_from(SHAPES), st.integers(0, 10_000))
def test_a_run_is_the_same_whether_its_log_is_kept_or_not(
    numbers: dict[str, Any], shape: dict[str, Any], seed: int
) -> None:
    kept = simulation(numbers | shape, seed)
    forgotten = simulation(numbers | shape, seed, keep_log=False)
    assert kept.run() == forgotten.run()
    assert kept.state == forgotten.state


@every_shape
@given(SCHEDULES, st.sampled_from(SHAPES), st.integers(0, 10_000))
def test_every_decision_of_a_simulated_log_is_decided_again(
    numbers: dict[str, Any], shape: dict[str, Any], seed: int
) -> None:
    world = simulation(numbers | shape, seed)
    world.run()
    assert world.log is not None
    state = JobState(job="job")
    for sequence, _, body in world.log:
        if isinstance(body, Decision) and not isinstance(body, sched.JobStarted):
            assert next_decision(state, body.now) == body
        evolve(state, sequence, body)
    assert state.status == "succeeded"
    assert state == world.state


class Killed(Simulation):
    """Loses the scheduler after the facts of `kills`: its state is folded again from the log."""

    kills: frozenset[int] = frozenset()

    def fact(self, body: Body) -> None:
        super().fact(body)
        if self.log is not None and self.log[-1][0] in self.kills:
            self.state = JobState(job="job")
            for sequence, _, logged in self.log:
                evolve(self.state, sequence, logged)


def test_a_job_with_a_thousand_kill_points_ends_as_the_undisturbed_one() -> None:
    schedule = {"cells": 3, "capacity": 9, "executions_per_group": 4, "num_steps": 12, "mu": 2}
    undisturbed = simulation(schedule, seed=5)
    undisturbed.run()
    assert undisturbed.log is not None
    num = len(undisturbed.log)
    kills = frozenset(random.Random(1).sample(range(1, num), 1000))
    killed = simulation(schedule, seed=5, kind=Killed)
    killed.kills = kills
    killed.run()
    assert killed.log == undisturbed.log
    assert killed.state == undisturbed.state


@pytest.mark.parametrize("mu", [1, 2, 3, 4])
@pytest.mark.parametrize("phi", [0.0, 0.5, 1.0, 1.5, 2.0])
def test_the_long_run_mean_staleness_is_phi_plus_half_of_mu_minus_one(phi: float, mu: int) -> None:
    """Within 1 %; the first steps, which are fresher, weigh less than that in 400."""
    spec = job_spec(
        cells=3,
        capacity=12,
        heldout=False,
        executions_per_group=2,
        groups_per_step=4,
        phi=phi,
        mu=mu,
        num_steps=400,
    )
    lengths = Lognormal(median_h=0.01, group_sigma=0.3, individual_sigma=0.3)
    workload = Drawn(lengths=lengths, training=Training(node_hours=0.01, groups_per_step=4), seed=1)
    outcome = Simulation(spec, workload, Speeds(), (1.0,) * 3).run()
    assert outcome.mean_staleness == pytest.approx(expected_staleness(phi, mu), rel=0.01)
