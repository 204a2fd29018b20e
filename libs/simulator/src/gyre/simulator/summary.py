"""A simulated run in figures: hours, staleness, idle shares; several seeds together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from gyre.contracts.job import JobSpec
from gyre.core.staleness import expected_staleness
from gyre.simulator.engine import Simulation
from gyre.simulator.outcome import Outcome
from gyre.simulator.spec import Prepared
from gyre.simulator.speeds import Speeds
from gyre.simulator.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """total_h: the last measured step's update. bound_h: the work done till then over all nodes.
    step_h: each step's time since the one before.

    rollout_idle: share of the serving capacity that no execution held. training_idle: share of the
    node-time in the training role, switches included, in which no micro-step ran.
    mean_execution_h, mean_query_h: an execution's run; a group's from its first start to ready; of
    the groups that ended, so a measurement that stops early leaves long ones out.
    """

    policy: str
    seed: int
    total_h: float
    bound_h: float
    step_h: tuple[float, ...]
    mean_staleness: float | None
    expected_staleness: float
    rollout_idle: float
    training_idle: float
    mean_execution_h: float
    mean_query_h: float
    num_events: int

    @property
    def total_s(self) -> float:
        return 3600 * self.total_h

    def row(self) -> dict[str, Any]:
        """As JSON has it."""
        return {name: getattr(self, name) for name in self.__slots__}


def summarize(spec: JobSpec, outcome: Outcome, seed: int) -> Summary:
    ends = outcome.step_ended_s
    schedule = spec.schedule
    ended = [group for group in outcome.groups.values() if group.ended_s is not None]
    lengths = [length for group in ended for length in group.durations]
    queries = [
        group.ready_s - group.started_s
        for group in ended
        if group.ready_s is not None and group.started_s is not None
    ]
    return Summary(
        policy=schedule.policy,
        seed=seed,
        total_h=ends[-1] / 3600,
        bound_h=outcome.bound_s / 3600,
        step_h=tuple((end - start) / 3600 for start, end in zip((0.0, *ends), ends, strict=False)),
        mean_staleness=outcome.mean_staleness,
        expected_staleness=expected_staleness(schedule.phi, schedule.mu),
        rollout_idle=1 - outcome.slot_s / outcome.capacity_s if outcome.capacity_s else 0.0,
        training_idle=(
            1 - outcome.busy_node_s / outcome.training_node_s if outcome.training_node_s else 0.0
        ),
        mean_execution_h=fmean(lengths) / 3600 if lengths else 0.0,
        mean_query_h=fmean(queries) / 3600 if queries else 0.0,
        num_events=outcome.num_events,
    )


def simulate(prepared: Prepared, workload: Workload, *, record: bool = False) -> Outcome:
    """One run. Raises StalledError."""
    return simulate_job(
        prepared.spec,
        workload,
        prepared.speeds,
        prepared.nodes,
        until_step=prepared.until_step,
        record=record,
    )


def simulate_job(
    spec: JobSpec,
    workload: Workload,
    speeds: Speeds,
    nodes: tuple[float, ...],
    *,
    until_step: int | None = None,
    record: bool = False,
) -> Outcome:
    """As `simulate`, of a job that comes from elsewhere than a SPEC.yaml."""
    world = Simulation(spec, workload, speeds, nodes, until_step=until_step, record=record)
    return world.run()


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Mean and its standard error, 0 for a single value."""
    if len(values) < 2:
        return fmean(values), 0.0
    return fmean(values), stdev(values) / math.sqrt(len(values))
