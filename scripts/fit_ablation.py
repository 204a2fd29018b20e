#!/usr/bin/env python3
"""Fits the simulator's one parameter set to the paper's table 2 and to its workload's statistics.

    scripts/fit_ablation.py [--seeds 2] [--minutes 30] [--state out/fit.json] [--write]

A coordinate search on the live simulator: each parameter is tried a step up and a step down, steps
shrink where neither helps. Every improvement goes to the state file, from which a later call goes
on. --write replaces the package's parameters.json by the best set. All seeds draw the same groups
for every set tried (common random numbers), so small differences are real.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.simulator.paper import ablation
from gyre.simulator.paper.ablation import Row, simulate_rows
from gyre.simulator.paper.statistics import Measured, measure

# What counts as one unit of misfit: relative for hours and statistics, in points for the slack.
ROW_UNIT, STATISTIC_UNIT, SLACK_UNIT = 0.02, 0.05, 0.015
SMALLEST_STEP = 0.004
PACKAGE_FILE = Path(ablation.__file__).with_name("parameters.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """A parameter that the search may move, and how far: a factor's logarithm at first."""

    section: str
    name: str
    step: float = 0.08
    low: float = 0.0
    high: float = math.inf


FREE = (
    Free(section="workload", name="median_h", step=0.03),
    Free(section="workload", name="group_sigma"),
    Free(section="workload", name="individual_sigma"),
    Free(section="workload", name="timeout_h", step=0.03),
    Free(section="workload", name="overall_after_timeout", high=1.0),
    Free(section="workload", name="overall_timeout_h", step=0.03),
    Free(section="training", name="node_hours_per_step"),
    Free(section="training", name="node_exponent", step=0.03, high=1.0),
    Free(section="training", name="length_share", high=1.0),
    Free(section="speeds", name="ready_s"),
    Free(section="speeds", name="update_s", step=0.3),
    Free(section="speeds", name="publish_s", step=0.3),
    Free(section="schedule", name="rho_min", step=0.15, low=0.01, high=1.0),
    Free(section="schedule", name="tau_s", step=0.3),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    parameters: dict[str, Any]
    rows: list[Row]
    measured: Measured

    @property
    def cost(self) -> float:
        misfits = [row.error / ROW_UNIT for row in self.rows]
        misfits += [s.as_json()["error"] / STATISTIC_UNIT for s in self.measured.statistics]
        misfits.append((self.measured.slack - self.measured.paper_slack) / SLACK_UNIT)
        # The fourth power beside the square: what counts in the end is the worst of them.
        return sum(m**2 + 0.1 * m**4 for m in misfits)

    def print(self) -> None:
        for row in self.rows:
            print(f"  {row.id}  {row.simulated_h:6.2f} h  {row.paper_h:6.2f} h  {row.error:+.1%}")
        for statistic in self.measured.statistics:
            shown = statistic.as_json()
            print(f"  {statistic.name}  {statistic.simulated:.4f}  {shown['error']:+.1%}")
        print(f"  slack  {self.measured.slack:.4f}  paper {self.measured.paper_slack:.4f}")
        print(f"  cost {self.cost:.2f}")


def fit(parameters: dict[str, Any], seeds: range) -> Fit:
    return Fit(
        parameters=parameters,
        rows=simulate_rows(parameters, seeds),
        measured=measure(parameters, seeds),
    )


def moved(parameters: dict[str, Any], free: Free, step: float) -> dict[str, Any]:
    """The set with one parameter changed by the factor exp(step), within its bounds."""
    value = parameters[free.section][free.name] * math.exp(step)
    bounded = min(free.high, max(free.low, value))
    return {**parameters, free.section: {**parameters[free.section], free.name: bounded}}


def search(start: Fit, steps: dict[str, float], seeds: range, until: float, state: Path) -> Fit:
    best = start
    while time.monotonic() < until and max(steps.values()) > SMALLEST_STEP:
        for free in FREE:
            size = steps[free.name]
            if size <= SMALLEST_STEP or time.monotonic() >= until:
                continue
            better = _better(best, free, size, seeds)
            if better is None:
                steps[free.name] = size / 2
                continue
            best = better
            steps[free.name] = size * 1.3
            state.write_text(json.dumps({"parameters": best.parameters, "steps": steps}, indent=1))
            print(f"{free.section}.{free.name}: cost {best.cost:.3f}", flush=True)
    return best


def _better(best: Fit, free: Free, size: float, seeds: range) -> Fit | None:
    for step in (size, -size):
        tried = fit(moved(best.parameters, free, step), seeds)
        if tried.cost < best.cost:
            return tried
    return None


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--seeds", type=int, default=2)
    options.add_argument("--minutes", type=float, default=30.0)
    options.add_argument("--state", type=Path, default=Path("out/fit-ablation.json"))
    options.add_argument("--write", action="store_true")
    given = options.parse_args()
    seeds = range(given.seeds)
    given.state.parent.mkdir(parents=True, exist_ok=True)
    parameters, steps = ablation.parameters(), {free.name: free.step for free in FREE}
    if given.state.exists():
        saved = json.loads(given.state.read_text())
        parameters, steps = saved["parameters"], saved["steps"]
    start = fit(parameters, seeds)
    print(f"start: cost {start.cost:.3f}", flush=True)
    best = search(start, steps, seeds, time.monotonic() + 60 * given.minutes, given.state)
    best.print()
    if given.write:
        PACKAGE_FILE.write_text(json.dumps(best.parameters, indent=1) + "\n")


if __name__ == "__main__":
    main()
