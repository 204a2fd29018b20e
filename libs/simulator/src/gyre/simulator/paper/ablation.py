"""Table 2 of the paper: the first 12 steps under 11 schedules, one parameter set for all.

What differs between rows is what the table says of them: phi, mu, streaming, and how 32 nodes are
split. A table's time is that of the 12th optimizer update of a job of 48 steps: the dispatch of a
longer training is not cut at step 12.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from gyre.simulator.spec import SimulationSpec, checked
from gyre.simulator.summary import mean_and_error, simulate, summarize

NUM_STEPS = 48
MEASURED_STEPS = 12
# Nodes of one cell where the table gives only how many nodes train and how many serve.
NODES_PER_CELL = 4


@cache
def paper() -> dict[str, Any]:
    """The figures, as published; `source` says where."""
    return load("ablation.json")


@cache
def parameters() -> dict[str, Any]:
    """The fitted set: workload, training, speeds, and the schedule's rho_min and tau_s."""
    return load("parameters.json")


def load(name: str) -> dict[str, Any]:
    """A data file of this package."""
    text = files("gyre.simulator.paper").joinpath(name).read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """error: simulated over published, less one. standard_error_h: of the mean over the seeds."""

    id: str
    simulated_h: float
    paper_h: float
    error: float
    standard_error_h: float

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def simulation(row: dict[str, Any], fitted: dict[str, Any], until_step: int) -> SimulationSpec:
    """The row's schedule and nodes with the fitted parameters."""
    raw = {
        "schedule": {
            "executions_per_group": 16,
            "groups_per_step": 32,
            "num_steps": NUM_STEPS,
            "phi": row["phi"],
            "mu": row["mu"],
            "streaming": row["streaming"],
            **fitted["schedule"],
            **_policy(row),
        },
        "cells": {"nodes": _nodes(row), "pool_nodes": _pool_nodes(row), "executions_per_node": 36},
        "workload": fitted["workload"],
        "training": fitted["training"],
        "speeds": fitted["speeds"],
        "until_step": until_step,
    }
    return checked(SimulationSpec, raw)


def _policy(row: dict[str, Any]) -> dict[str, Any]:
    """The table's granularity in our words; none of it means a fixed split."""
    match row["granularity"]:
        case None:
            return {
                "policy": "async",
                "training_cells": row["training_nodes"] // NODES_PER_CELL,
            }
        case "fine":
            return {"policy": "gyre"}
        case _:
            return {"policy": "colocate"}


def _nodes(row: dict[str, Any]) -> list[int]:
    if row["cells"]:
        return list(row["cells"])
    total = row["training_nodes"] + row["rollout_nodes"]
    return [NODES_PER_CELL] * (total // NODES_PER_CELL)


def _pool_nodes(row: dict[str, Any]) -> int:
    """Beside cells that the table names, its rollout nodes only ever serve."""
    return int(row["rollout_nodes"]) if row["cells"] else 0


def simulate_row(row: dict[str, Any], fitted: dict[str, Any], seeds: range) -> Row:
    spec = simulation(row, fitted, MEASURED_STEPS)
    prepared = spec.job()
    hours = [
        summarize(prepared.spec, simulate(prepared, spec.drawn(prepared.spec, seed)), seed).total_h
        for seed in seeds
    ]
    mean, error = mean_and_error(hours)
    return Row(
        id=row["id"],
        simulated_h=mean,
        paper_h=row["total_h"],
        error=mean / row["total_h"] - 1,
        standard_error_h=error,
    )


def simulate_rows(fitted: dict[str, Any], seeds: range) -> list[Row]:
    """All rows on common random numbers: group n of a seed is the same in each."""
    return [simulate_row(row, fitted, seeds) for row in paper()["rows"]]
