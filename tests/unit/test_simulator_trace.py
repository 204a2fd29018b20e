"""A recorded run as a workload: what the log gives, and what another schedule would have made."""

from __future__ import annotations

from typing import Any

import pytest

from gyre.contracts.events import scheduling as sched
from gyre.simulator import Simulation
from gyre.simulator.spec import SpecError
from gyre.simulator.speeds import Speeds
from gyre.simulator.trace import Trace, trace
from gyre.simulator.trace_fold import TraceError, TraceFold
from gyre.simulator.whatif import changed_spec, what_if
from gyre.simulator.workload import Drawn, Lognormal, Training
from gyre.testkit.specs import job_spec

SPEEDS = Speeds(
    start_s=0.5,
    scoring_s=2.0,
    ready_s=1.0,
    to_training_s=4.0,
    to_rollout_s=3.0,
    pull_s=1.5,
    join_s=0.7,
    update_s=2.0,
    publish_s=5.0,
)


def recorded(**schedule: Any) -> tuple[Trace, list[float]]:
    """A simulated run's log read back, and when its steps really ended."""
    spec = job_spec(cells=3, capacity=10, heldout=False, num_steps=8, mu=2, **schedule)
    workload = Drawn(
        lengths=Lognormal(median_h=0.05, group_sigma=0.3, individual_sigma=0.4),
        training=Training(node_hours=0.04, groups_per_step=6, num_micro_steps=2),
        seed=4,
    )
    world = Simulation(spec, workload, SPEEDS, (1.0,) * 3, keep_log=True)
    outcome = world.run()
    fold = TraceFold()
    for _, time, body in world.log or ():
        fold.fold(time, body)
    return trace(fold), outcome.step_ended_s


def test_the_log_of_a_run_gives_back_its_delays() -> None:
    speeds = recorded()[0].speeds
    for name in ("start_s", "scoring_s", "ready_s", "to_training_s", "to_rollout_s", "publish_s"):
        assert getattr(speeds, name) == pytest.approx(getattr(SPEEDS, name), abs=1e-6), name
    assert speeds.pull_s == pytest.approx(SPEEDS.pull_s, abs=0.01)
    assert speeds.update_s == pytest.approx(SPEEDS.update_s, abs=1.0)


def test_executions_run_as_long_as_they_did() -> None:
    workload = recorded()[0]
    assert len(workload.groups) == 8 * 6
    assert all(len(group.durations) == 8 for group in workload.groups)
    assert workload.group(48, 8) == workload.group(0, 8)
    assert workload.group(0, 10).durations[8:] == workload.groups[0].durations[:2]


def test_a_runs_own_schedule_is_simulated_close_to_what_happened() -> None:
    workload, really = recorded()
    result = what_if(workload, {})
    assert result.recorded_s == pytest.approx(really[-1])
    assert abs(result.calibration_error) < 0.02
    assert result.changed is None


def test_more_cells_finish_sooner_and_a_change_leaves_the_rest() -> None:
    workload, _ = recorded()
    result = what_if(workload, {"cells.count": 6})
    assert result.changed is not None
    assert result.changed.total_s < 0.8 * result.own.total_s
    spec = changed_spec(workload.spec, {"schedule.mu": 1, "schedule.phi": 1.0})
    assert (spec.schedule.mu, spec.schedule.phi) == (1, 1.0)
    assert spec.cells == workload.spec.cells


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule.nu": 1}, "schedule.nu: no field of the job file's schedule or cells"),
        ({"model.path": "/x"}, "model.path: no field of the job file's"),
        ({"schedule.mu": 0}, "schedule.mu: Input should be greater than 0"),
        ({"schedule.policy": "async"}, "schedule: training_cells: set it for policy async"),
    ],
)
def test_a_change_that_no_job_could_have_is_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=f"^{message}"):
        changed_spec(recorded()[0].spec, changes)


def test_a_run_without_a_step_is_no_workload() -> None:
    fold = TraceFold()
    with pytest.raises(TraceError, match="no job_submitted"):
        trace(fold)
    spec = job_spec(heldout=False)
    fold.fold(0.0, sched.JobSubmitted(spec=spec, train_tasks=("t",), heldout_tasks=()))
    with pytest.raises(TraceError, match="applied no step yet"):
        trace(fold)
