"""The words of `gyre why` under each policy: their numbers come to the sides they stand for, and
their names to the same."""

from __future__ import annotations

import re

import pytest

from gyre.contracts.events import scheduling as sched
from gyre.core.explain import Check, before_each_decision, explain, turning_point
from gyre.core.scheduling import JobState
from gyre.core.scheduling.ledger import pool_capacity, reserved_capacity, rollout_capacity
from gyre.testkit.policy_jobs import JOBS, facts_of, next_fact

every_job = pytest.mark.parametrize("name", JOBS)

# names (or w, d - f), "=", numbers; the next clause begins with a colon, a semicolon or a comma
SIDE = re.compile(r"(?:^|against )(?P<names>[^=]+) = (?P<numbers>[\d+*() max,-]*[\d)])(?=$|[:;,])")


def _value_of(state: JobState, names: str) -> int:
    """What the names stand for, counted here from the cells and the job file."""
    schedule, w = state.required_spec.schedule, state.training.waterlevel
    elastic = [cell.capacity for cell in state.in_order]
    split = schedule.training_cells or 0
    turn = next((cell for cell in state.in_order if cell.role == "rollout"), state.core)
    values = {
        "all cells but the core": sum(elastic[1:]),
        "all cells outside the split": sum(elastic[split:]),
        "capacity of the cells that serve for good": (
            pool_capacity(state) + sum(elastic[split:]) - reserved_capacity(state)
        ),
        "C_next": turn.capacity,
        "C_R": rollout_capacity(state),
        "C_s": pool_capacity(state),
        "reserved": reserved_capacity(state),
        "d - f": w,
    }
    for words, value in values.items():
        names = names.replace(words, str(value))
    return int(eval(names, {"w": w, "max": max}))


def _right(check: Check) -> tuple[str, int]:
    """Names and value of the numbers of a check's right side."""
    *_, side = SIDE.finditer(check.terms)
    return side["names"], eval(side["numbers"])


@every_job
def test_a_transitions_words_come_to_its_numbers(name: str) -> None:
    num = 0
    for state, _, decision in before_each_decision("job", facts_of(name)):
        if not isinstance(decision, sched.TransitionStarted) or decision.to != "training":
            continue
        num += 1
        supply, _, equation = explain(state, decision.now).checks
        names, value = _right(equation)
        assert value == _value_of(state, names) == equation.right == decision.capacity_after
        counters = state.training
        w = f"w = d - f = {counters.dispatched} - {counters.terminated}, against "
        assert equation.terms.startswith(w)
        assert counters.waterlevel == equation.left == decision.waterlevel
        assert supply.holds
        assert supply.left is None or (supply.right or 0) <= supply.left
    assert num > 0


@every_job
def test_a_burst_ends_words_come_to_its_numbers(name: str) -> None:
    for state, _, decision in before_each_decision("job", facts_of(name)):
        if not isinstance(decision, sched.BurstEnded):
            continue
        told = explain(state, decision.now)
        assert told.burst_end is not None
        end = told.burst_end
        assert all(check.holds for check in end.checks) == decision.core_stays
        for check in end.checks:
            assert bool(check.missing) != check.holds
            if check.left is not None and check.right is not None:
                low, high = sorted((check.left, check.right))
                sides = (low, high) if check.relation == "<=" else (high, low)
                assert check.holds == ((check.left, check.right) == sides)
        equations = [check for check in end.checks if check.name == "eq. (3)"]
        assert bool(equations) == (told.policy != "async")
        for equation in equations:
            names, value = _right(equation)
            assert value == _value_of(state, names) == decision.capacity_without_core
            left = re.match(r"w \+ (.+?) = (\d+) \+ ([\d *]+), against", equation.terms)
            assert left is not None
            assert int(left[2]) == decision.waterlevel
            assert eval(left[3]) == decision.next_dispatch
            assert equation.left == decision.waterlevel + decision.next_dispatch


@pytest.mark.parametrize("name", [name for name in JOBS if "no streaming" in name])
def test_without_streaming_the_core_asks_for_the_groups_of_the_burst_that_follows(
    name: str,
) -> None:
    asked = []
    for state, sequence, decision in before_each_decision("job", facts_of(name)):
        burst = next_fact(name, sequence, sched.BurstStarted)
        core_joins = isinstance(decision, sched.TransitionStarted) and decision.cell == 0
        if not (core_joins or isinstance(decision, sched.BurstEnded)) or burst is None:
            continue
        told = explain(state, decision.now)
        checks = told.checks if core_joins else told.burst_end.checks  # type: ignore[union-attr]
        for check in checks:
            if check.name != "supply" or check.right is None:
                continue
            asked.append(burst.num_steps)
            assert check.right == burst.num_steps * 6
            assert check.left == state.num_ready_unclaimed
            assert f"against {burst.num_steps} * 6, all of the burst's" in check.terms
    assert bool(asked) != name.startswith("async")
    if name.startswith("gyre+, "):
        assert set(asked) == {1, 3, 4}


@every_job
def test_a_turning_point_names_an_equation_only_where_it_was_asked(name: str) -> None:
    fixed = name.startswith("async")
    for state, sequence, decision in before_each_decision("job", facts_of(name)):
        point = turning_point(state, sequence, decision)
        match decision:
            case sched.TransitionStarted():
                assert point is not None
                assert (point.what == "eq. (2)") == (decision.to == "training" and not fixed)
            case sched.BurstEnded():
                assert point is not None
                assert (point.what == "eq. (3)") != fixed
                assert state.burst is not None
                short = state.burst.num_steps != JOBS[name].get("mu", 2)
                assert ("(mu is" in point.outcome) == short
            case _:
                assert point is None
