"""The paper's table 2 by the live decider, with one parameter set for all of its rows."""

from __future__ import annotations

import pytest

from gyre.core import scheduling
from gyre.simulator import engine
from gyre.simulator.paper.ablation import paper, parameters, simulate_row, simulation
from gyre.simulator.paper.speedups import cases
from gyre.simulator.paper.statistics import Measured, measure

SEEDS = range(1)
# Overall time-outs come in few groups: their rate needs more draws than a row's hours.
STATISTICS_SEEDS = range(2)
ROWS = {row["id"]: row for row in paper()["rows"]}


def test_the_simulator_has_no_decider_of_its_own() -> None:
    assert engine.next_decision is scheduling.next_decision
    assert engine.evolve is scheduling.evolve


@pytest.mark.parametrize("name", list(ROWS))
def test_a_row_is_within_five_percent_of_the_paper(name: str) -> None:
    assert abs(simulate_row(ROWS[name], parameters(), SEEDS).error) < 0.05


def test_a_row_is_what_the_table_says_of_it_whatever_it_is_called() -> None:
    for row in ROWS.values():
        renamed = row | {"id": "another"}
        assert simulation(renamed, parameters(), 12) == simulation(row, parameters(), 12)


@pytest.fixture(scope="module")
def measured() -> Measured:
    return measure(parameters(), STATISTICS_SEEDS)


@pytest.mark.parametrize(
    "name",
    [
        "mean_execution_h",
        "mean_query_h",
        "queries_over_4h",
        "harness_timeout_rate",
        "overall_timeout_rate",
    ],
)
def test_a_statistic_of_the_workload_is_within_a_tenth(measured: Measured, name: str) -> None:
    (statistic,) = [s for s in measured.statistics if s.name == name]
    assert statistic.simulated == pytest.approx(statistic.paper, rel=0.1)


def test_the_slack_is_within_three_points(measured: Measured) -> None:
    assert measured.slack == pytest.approx(measured.paper_slack, abs=0.03)


def test_every_comparison_of_the_paper_is_at_one_mean_staleness() -> None:
    for case in cases(parameters()):
        spec = case.simulation(parameters(), seed=0)
        for policy in ("gyre", "async", "colocate"):
            schedule = spec.job(policy).spec.schedule
            assert schedule.phi + (schedule.mu - 1) / 2 == case.staleness
