"""What the paper says of its workload, measured in simulated runs of its elastic layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gyre.simulator.outcome import GroupRun, Outcome
from gyre.simulator.paper.ablation import MEASURED_STEPS, NUM_STEPS, paper, simulation
from gyre.simulator.summary import simulate

LONG_QUERY_H = 4.0
QUERY = (
    "a group, from the start of its first execution to its readiness: scoring is in it, queueing"
    " is not"
)
SLACK = (
    "of the node-time of cells that are in training or on their way to it, the share in which they"
    " compute no micro-step, over the 12 steps of the paper's elastic row"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """error: simulated over published, less one."""

    name: str
    simulated: float
    paper: float

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "simulated": self.simulated,
            "paper": self.paper,
            "error": self.simulated / self.paper - 1,
        }


def elastic_row() -> dict[str, Any]:
    """The table's first fine-grained row: the paper's own layout."""
    row: dict[str, Any] = next(r for r in paper()["rows"] if r["granularity"] == "fine")
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """slack: as SLACK defines it."""

    statistics: list[Statistic]
    slack: float
    paper_slack: float


def measure(fitted: dict[str, Any], seeds: range) -> Measured:
    """The workload's figures are of whole jobs, so that no long execution is cut off by the end of
    the measurement; the slack is of the table's own steps."""
    measured, published = _runs(fitted, MEASURED_STEPS, seeds), paper()["workload"]
    return Measured(
        statistics=[
            Statistic(name=name, simulated=value, paper=published[name])
            for name, value in workload_statistics(_runs(fitted, NUM_STEPS, seeds)).items()
        ],
        slack=sum(slack(run) for run in measured) / len(measured),
        paper_slack=paper()["e0_slack"]["rollout_masks_training_with_slack"],
    )


def _runs(fitted: dict[str, Any], until_step: int, seeds: range) -> list[Outcome]:
    spec = simulation(elastic_row(), fitted, until_step)
    prepared = spec.job()
    return [simulate(prepared, spec.drawn(prepared.spec, seed)) for seed in seeds]


def slack(run: Outcome) -> float:
    """See SLACK."""
    return 1 - run.busy_node_s / run.training_node_s


def workload_statistics(runs: list[Outcome]) -> dict[str, float]:
    """Over all groups that became ready. Hours, and shares of queries or of executions."""
    groups = [group for run in runs for group in run.groups.values() if group.ready_s is not None]
    lengths = [length / 3600 for group in groups for length in group.durations]
    endings = [ending for group in groups for ending in group.endings]
    queries = [query_h(group) for group in groups]
    return {
        "mean_execution_h": sum(lengths) / len(lengths),
        "mean_query_h": sum(queries) / len(queries),
        "queries_over_4h": sum(hours > LONG_QUERY_H for hours in queries) / len(queries),
        "harness_timeout_rate": endings.count("harness") / len(endings),
        "overall_timeout_rate": endings.count("overall") / len(endings),
    }


def query_h(group: GroupRun) -> float:
    """First start to readiness, hours. Raises ValueError for a group that is not ready."""
    if group.ready_s is None or group.started_s is None:
        raise ValueError("the group is not ready")
    return (group.ready_s - group.started_s) / 3600
