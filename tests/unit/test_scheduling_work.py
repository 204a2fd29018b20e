"""Folding a fact and deciding after it is the same work however many executions a job has.

Work is what the interpreter does, lines and calls, not time: the same on every machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from gyre.contracts.envelope import Body
from gyre.contracts.events import groups as group_events
from gyre.core.scheduling import evolve, next_decision
from gyre.testkit.busy_job import BusyJob, busy_job, started
from gyre.testkit.facts import terminated

FACTS: dict[str, Callable[[BusyJob, str], Body]] = {
    "started": started,
    "terminated": lambda busy, execution: terminated(execution),
    "group_ready": lambda busy, execution: group_events.GroupReady(
        group=busy.state.executions[execution].group,
        task="t",
        version=0,
        lineage=1,
        outcomes=(),
        zero_weight=False,
    ),
}


@pytest.mark.parametrize("name", list(FACTS))
def test_a_fact_is_the_same_work_with_few_executions_and_with_many(name: str) -> None:
    few, many = (
        busy_job(num_cells=4, capacity=num // 4, num_groups=num // 10, group_size=10)
        for num in (200, 20_000)
    )
    assert len(many.state.executions) == 100 * len(few.state.executions)
    assert _work_of(few, FACTS[name]) == _work_of(many, FACTS[name]) > 10


def _work_of(busy: BusyJob, fact: Callable[[BusyJob, str], Body]) -> int:
    """Lines and calls of folding one fact, in the middle of the job, and of the decision after."""
    execution = list(busy.state.executions)[len(busy.state.executions) // 2]
    body, num = fact(busy, execution), 0

    def lines(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal num
        num += 1
        return lines

    def calls(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal num
        num += 1

    tracing, profiling = sys.gettrace(), sys.getprofile()
    sys.settrace(lines)
    sys.setprofile(calls)
    try:
        evolve(busy.state, busy.state.sequence + 1, body)
        next_decision(busy.state, 0.0)
    finally:
        sys.settrace(tracing)
        sys.setprofile(profiling)
    return num
