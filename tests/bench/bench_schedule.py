"""The paper's elastic schedule against `gyre+`: 48 steps of the fitted workload, simulated.

    python tests/bench/bench_schedule.py    # writes out/bench/schedule.json, about half a minute

bound_h: the work alone, training and rollout node-hours over all nodes without a gap. e0_h: policy
`gyre` at (phi, mu) = (0.5, 3), the paper's E0. gyre_plus_h: `gyre+` at the same mean staleness, on
the same draws. `gyre+` orders starts by what it has seen of each task, so the size of the task set
matters and is not in the paper's digest: NUM_TASKS, sampled in turn. once_*: no task comes twice.
share_of_bound was to be 0.96 and is not: docs/adr/0013 says what is in the way.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

from gyre.contracts.schedule import PolicyName
from gyre.simulator.paper.ablation import NUM_STEPS, parameters, simulation
from gyre.simulator.paper.statistics import elastic_row
from gyre.simulator.summary import Summary, simulate, summarize
from gyre.testkit.benches import write_report

SEEDS = range(4)
NUM_TASKS = 192


def runs(policy: PolicyName, num_tasks: int | None) -> list[Summary]:
    fitted = parameters()
    workload: dict[str, Any] = fitted["workload"] | {"num_tasks": num_tasks}
    spec = simulation(elastic_row(), fitted | {"workload": workload}, NUM_STEPS)
    prepared = spec.job(policy)
    return [
        summarize(prepared.spec, simulate(prepared, spec.drawn(prepared.spec, seed)), seed)
        for seed in SEEDS
    ]


def staleness(of: list[Summary]) -> float:
    return fmean(run.mean_staleness for run in of if run.mean_staleness is not None)


def main() -> None:
    paper, plus = runs("gyre", NUM_TASKS), runs("gyre+", NUM_TASKS)
    once_paper, once_plus = runs("gyre", None), runs("gyre+", None)
    e0_h, plus_h = (fmean(run.total_h for run in of) for of in (paper, plus))
    bound_h = fmean(run.bound_h for run in plus)
    figures = {
        "bound_h": round(bound_h, 2),
        "e0_h": round(e0_h, 2),
        "gyre_plus_h": round(plus_h, 2),
        "gyre_plus_over_e0": round(plus_h / e0_h, 4),
        "share_of_bound": round(bound_h / plus_h, 4),
        "e0_mean_staleness": round(staleness(paper), 4),
        "gyre_plus_mean_staleness": round(staleness(plus), 4),
        "num_tasks": NUM_TASKS,
        "once_e0_h": round(fmean(run.total_h for run in once_paper), 2),
        "once_gyre_plus_h": round(fmean(run.total_h for run in once_plus), 2),
        "seeds": len(SEEDS),
    }
    # Same staleness: the target's, to one percent.
    fresh = abs(staleness(plus) / plus[0].expected_staleness - 1) < 0.01
    ok = plus_h < e0_h and fresh
    write_report("schedule", figures, {"gyre_plus_over_e0": 1.0}, ok=ok)


if __name__ == "__main__":
    main()
