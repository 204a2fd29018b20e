"""Table 1 of the paper and its 48-step figures, simulated: reported, not fitted.

The digest leaves open how long executions of DeepSWE, TerminalBench and 2.4T run and what a step of
theirs costs to train; `ASSUMPTIONS` says what stands in for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gyre.contracts.schedule import PolicyName
from gyre.simulator.paper.ablation import load, paper
from gyre.simulator.spec import SimulationSpec, checked
from gyre.simulator.summary import mean_and_error, simulate, summarize

ASSUMPTIONS = (
    (
        "the baselines are table 2's vanilla ones, which do not stream; async gives half of the"
        " cells to training, colocate switches all cells together"
    ),
    (
        "DeepSWE, TerminalBench: lengths of executions, training work of a group and all speeds are"
        " those fitted to NL2RepoBench 122B; only nodes, slots, B, phi and mu are theirs"
    ),
    "2.4T: N = 16, B = 32, mean staleness 1.5; lengths and training work as in large_model.json",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One comparison. paper_vs_async, paper_vs_colocate: (low, high), alike where one is given."""

    name: str
    num_steps: int
    staleness: float
    groups_per_step: int
    nodes: tuple[float, ...]
    executions_per_node: float
    phi: float
    mu: int
    workload: dict[str, Any]
    training: dict[str, Any]
    paper_vs_async: tuple[float, float]
    paper_vs_colocate: tuple[float, float]

    def simulation(self, fitted: dict[str, Any], seed: int) -> SimulationSpec:
        """Gyre's schedule, and the baselines' at the same mean staleness."""
        raw = {
            "schedule": {
                "executions_per_group": 16,
                "groups_per_step": self.groups_per_step,
                "num_steps": self.num_steps,
                "phi": self.phi,
                "mu": self.mu,
                **fitted["schedule"],
            },
            "policies": {
                "async": {
                    "phi": self.staleness,
                    "mu": 1,
                    "streaming": False,
                    "training_cells": len(self.nodes) // 2,
                },
                "colocate": {"phi": 0, "mu": round(2 * self.staleness) + 1, "streaming": False},
            },
            "cells": {"nodes": self.nodes, "executions_per_node": self.executions_per_node},
            "workload": self.workload,
            "training": self.training,
            "speeds": fitted["speeds"],
            "until_step": self.num_steps,
            "seed": seed,
        }
        return checked(SimulationSpec, raw)


def cases(fitted: dict[str, Any]) -> list[Case]:
    figures = paper()
    both = [_model_122b(fitted, staleness, mu) for staleness, mu in ((1.0, 2), (1.5, 3))]
    table = [
        _from_table(row, fitted) for row in figures["speedups"] if row["staleness"] is not None
    ]
    return [*table, *both, _model_2_4t()]


def simulate_case(case: Case, fitted: dict[str, Any], seeds: range) -> dict[str, Any]:
    """Hours of each policy and gyre's speedups beside the published ones."""
    hours: dict[PolicyName, float] = {}
    names: tuple[PolicyName, ...] = ("gyre", "async", "colocate")
    for name in names:
        totals = []
        for seed in seeds:
            spec = case.simulation(fitted, seed)
            prepared = spec.job(name)
            outcome = simulate(prepared, spec.drawn(prepared.spec, seed))
            totals.append(summarize(prepared.spec, outcome, seed).total_h)
        hours[name] = mean_and_error(totals)[0]
    return {
        "workload": case.name,
        "steps": case.num_steps,
        "staleness": case.staleness,
        "hours": hours,
        "vs_async": hours["async"] / hours["gyre"],
        "paper_vs_async": case.paper_vs_async,
        "vs_colocate": hours["colocate"] / hours["gyre"],
        "paper_vs_colocate": case.paper_vs_colocate,
    }


def _from_table(row: dict[str, Any], fitted: dict[str, Any]) -> Case:
    layout = paper()["layouts"][row["workload"].lower()]
    per_cell = layout["nodes"] / layout["cells"]
    return Case(
        name=row["workload"],
        num_steps=row["steps"],
        staleness=row["staleness"],
        groups_per_step=layout["B"],
        nodes=(per_cell,) * layout["cells"],
        executions_per_node=layout["executions_per_cell"] / per_cell,
        phi=row["phi"],
        mu=row["mu"],
        workload=fitted["workload"],
        training=_of_batch(fitted["training"], layout["B"] / 32),
        paper_vs_async=(row["vs_async"],) * 2,
        paper_vs_colocate=(row["vs_colocate"],) * 2,
    )


def _model_122b(fitted: dict[str, Any], staleness: float, mu: int) -> Case:
    published = paper()["nl2repo_122b_48_steps"]
    layout = paper()["layouts"]["nl2repo_122b"]
    per_cell = layout["nodes"] / layout["cells"]
    return Case(
        name="NL2RepoBench 122B",
        num_steps=48,
        staleness=staleness,
        groups_per_step=layout["B"],
        nodes=(per_cell,) * layout["cells"],
        executions_per_node=layout["executions_per_cell"] / per_cell,
        phi=0.5,
        mu=mu,
        workload=fitted["workload"],
        training=fitted["training"],
        paper_vs_async=tuple(published["vs_async"]),
        paper_vs_colocate=tuple(published["vs_colocate"]),
    )


def _model_2_4t() -> Case:
    published, assumed = paper()["nl2repo_2_4t"], load("large_model.json")
    hours = published["hours_48_steps"]
    return Case(
        name="NL2RepoBench 2.4T",
        num_steps=48,
        staleness=1.5,
        groups_per_step=32,
        nodes=(float(published["nodes_per_cell"]),) * published["cells"],
        executions_per_node=published["executions_total"] / published["nodes"],
        phi=0.5,
        mu=3,
        workload=assumed["workload"],
        training=assumed["training"],
        paper_vs_async=(hours["async"] / hours["gyre"],) * 2,
        paper_vs_colocate=(hours["colocate"] / hours["gyre"],) * 2,
    )


def _of_batch(training: dict[str, Any], scale: float) -> dict[str, Any]:
    """The same work for each group, in a step of `scale` times as many."""
    return {**training, "node_hours_per_step": training["node_hours_per_step"] * scale}
