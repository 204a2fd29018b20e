"""`gyre plan`: what it recommends, and what it refuses."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from gyre.simulator.plan import Plan, Planner, cell_layouts, schedules_at
from gyre.simulator.planfile import PlanSection, parse_plan
from gyre.simulator.spec import SpecError

RAW: dict[str, Any] = {
    "name": "ignored",
    "schedule": {
        "executions_per_group": 4,
        "groups_per_step": 4,
        "num_steps": 6,
        "phi": 0.5,
        "mu": 2,
    },
    "plan": {
        "nodes": 8,
        "min_nodes_per_cell": 2,
        "executions_per_node": 3,
        "staleness": 1.0,
        "workload": {"median_h": 1.0, "group_sigma": 0.3, "individual_sigma": 0.2},
        "training": {"node_hours_per_step": 3.0},
    },
}


def planned(**changes: Any) -> Plan:
    raw = copy.deepcopy(RAW)
    for name, value in changes.items():
        raw["schedule" if name in raw["schedule"] else "plan"][name] = value
    given = parse_plan(raw)
    return Planner(
        section=given.section,
        schedule=given.schedule,
        workload=given.section.given_workload(),
        speeds=given.section.given_speeds,
    ).plan()


def test_schedules_meet_the_staleness_with_whole_groups() -> None:
    assert schedules_at(1.5, 32) == [(1.5, 1), (1.0, 2), (0.5, 3), (0.0, 4)]
    assert schedules_at(1.0, 3) == [(1.0, 1), (0.0, 3)]
    assert schedules_at(0.0, 8) == [(0.0, 1)]


def test_cells_use_the_nodes_and_none_is_below_the_smallest() -> None:
    def layouts(nodes: float, smallest: float) -> list[tuple[int, float]]:
        section = PlanSection.model_validate(
            RAW["plan"] | {"nodes": nodes, "min_nodes_per_cell": smallest}
        )
        return [(len(cells), cells[0]) for cells in cell_layouts(section)]

    assert layouts(32, 4) == [(8, 4), (4, 8), (2, 16)]
    assert layouts(31, 4) == [(7, 4)]


def test_the_best_is_the_fastest_of_what_was_tried() -> None:
    plan = planned()
    hours = [option.hours for option in plan.options]
    assert hours == sorted(hours)
    assert plan.best.hours <= hours[0]
    assert plan.best.hours <= min(option.hours for _, option in plan.sensitivity)
    assert {option.candidate.staleness for option in plan.options} == {1.0}
    assert {option.candidate.policy for option in plan.baselines} == {"async", "colocate"}


def test_a_global_shuffle_leaves_single_step_bursts() -> None:
    plan = planned(shuffle="global", mu=1)
    assert {option.candidate.mu for option in plan.options} == {1}
    assert any("global shuffle" in warning for warning in plan.warnings)


def test_few_cells_are_warned_of() -> None:
    assert any("cells: the paper" in warning for warning in planned(nodes=4).warnings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": 3}, "plan.nodes: 3 nodes make no two cells of 2"),
        ({"shuffle": "global"}, "plan.shuffle: global, but the schedule streams with mu 2"),
        ({"staleness": 0.9}, r"plan.staleness: 0.9 is no phi \+ \(mu - 1\)/2"),
        ({"workload": None}, "plan.workload: is missing"),
        ({"training": None}, "plan.training: is missing"),
        ({"nodes": -1}, "plan.nodes: Input should be greater than 0"),
    ],
)
def test_what_cannot_work_is_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=f"^{message}"):
        planned(**changes)


def test_a_file_without_the_section_is_refused() -> None:
    with pytest.raises(SpecError, match=r"^plan: is missing"):
        parse_plan({"schedule": RAW["schedule"]})
