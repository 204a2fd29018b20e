"""SPEC.yaml: what it accepts, and one clear line for what it does not."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from gyre.simulator.spec import SpecError, parse

SPEC: dict[str, Any] = {
    "schedule": {
        "executions_per_group": 4,
        "groups_per_step": 4,
        "num_steps": 6,
        "phi": 0.5,
        "mu": 2,
        "training_cells": 1,
    },
    "policies": {"async": {"phi": 1.0, "mu": 1}, "colocate": {"phi": 0, "mu": 3}},
    "cells": {"nodes": [2, 2, 1], "executions_per_node": 6},
    "workload": {"median_h": 1.0},
    "training": {"node_hours_per_step": 1.0},
}


def with_value(path: str, value: object) -> dict[str, Any]:
    raw = copy.deepcopy(SPEC)
    *sections, name = path.split(".")
    section = raw
    for part in sections:
        section = section[part]
    section[name] = value
    return raw


def without(section: str) -> dict[str, Any]:
    return {name: value for name, value in SPEC.items() if name != section}


def test_cells_of_more_nodes_hold_more() -> None:
    cells = parse(SPEC).job().spec.cells
    assert cells.capacities == (12, 12, 6)
    assert cells.pool_count == 0


def test_pool_nodes_make_one_pool_cell() -> None:
    prepared = parse(with_value("cells.pool_nodes", 3)).job()
    assert (prepared.spec.cells.pool_count, prepared.spec.cells.pool_capacity) == (1, 18)
    assert prepared.nodes == (2, 2, 1, 3)


def test_a_policy_changes_what_the_file_says_for_it() -> None:
    spec = parse(SPEC)
    assert spec.job().spec.schedule.training_cells is None
    fixed = spec.job("async").spec.schedule
    assert (fixed.policy, fixed.phi, fixed.mu, fixed.training_cells) == ("async", 1.0, 1, 1)
    assert spec.job("colocate").spec.schedule.mu == 3


def test_deadlines_never_pass() -> None:
    schedule = parse(with_value("schedule.transition_deadline_s", 1.0)).job().spec.schedule
    assert schedule.transition_deadline_s > 1e9


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "schedule: is missing; set it"),
        ([], "file: Input should be a valid dictionary"),
        (with_value("cells.nodez", 3), "cells.nodez: unknown field"),
        (with_value("cells.nodes", []), "cells.nodes: Tuple should have at least 1 item"),
        (with_value("workload.median_h", -1), "workload.median_h: Input should be greater than 0"),
        (with_value("schedule.mu", 0), "schedule.mu: Input should be greater than 0"),
        (with_value("schedule.phi", 0.3), "schedule: phi: phi \\* groups_per_step is 1.2 groups"),
        (with_value("schedule.nu", 1), "schedule.nu: unknown field"),
        (with_value("until_step", 9), "until_step: is 9, more than schedule.num_steps 6"),
        (with_value("workload.overall_share", 0.1), "workload: overall_timeout_h: set it"),
        (with_value("policies.best", {}), "policies.best.*: Input should be 'gyre'"),
        (with_value("trace", "run.gz"), "file: trace: it stands in for training, workload"),
        (without("workload"), "file: workload, training: set both"),
    ],
)
def test_a_fault_is_one_line_that_names_the_field(raw: object, message: str) -> None:
    with pytest.raises(SpecError, match=f"^{message}") as caught:
        parse(raw)
    assert "\n" not in str(caught.value)
