"""Recorded logs of real runs replay for ever: they fold and decide as they did, their figures stay.

A run that fails here shows that a change of the fold or of the decider breaks what is in the logs
of users. See README.md for how to add one.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gyre.adapters.archive import read_archive
from gyre.adapters.journal import Fact
from gyre.contracts.alarms import AlarmsSection
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events.calls import CallRecorded
from gyre.core.explain import (
    Journeys,
    Recheck,
    RunClock,
    before_each_decision,
    explain,
    staleness_report,
)
from gyre.core.forks import Forks
from gyre.core.report import RunReport

RUNS = sorted((Path(__file__).parent / "runs").glob("*.jsonl.gz"))
MAX_BYTES = 400_000
every_run = pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name)


@cache
def _events(path: Path) -> tuple[tuple[Fact, ...], tuple[Fact, ...]]:
    """Facts and calls. The whole file is read, so that its digest is checked too."""
    events = tuple(read_archive(path))
    return tuple(fact for stream, fact in events if stream == "facts"), tuple(
        fact for stream, fact in events if stream == "calls"
    )


def _facts(path: Path) -> tuple[Fact, ...]:
    return _events(path)[0]


def _golden(path: Path) -> dict[str, Any]:
    golden = path.with_name(path.name.removesuffix(".jsonl.gz") + ".golden.json")
    if os.environ.get("GYRE_UPDATE_GOLDENS") and not golden.exists():
        text = json.dumps(figures(*_events(path)), indent=1)
        golden.write_text(text + "\n", encoding="utf-8")
    loaded: dict[str, Any] = json.loads(golden.read_text(encoding="utf-8"))
    return loaded


def figures(facts: tuple[Fact, ...], calls: tuple[Fact, ...]) -> dict[str, Any]:
    """What a run's golden file holds."""
    journeys, clock, recheck = Journeys(facts[0].job), RunClock(facts[0].job), Recheck(facts[0].job)
    for fact in facts:
        journeys.fold_fact(fact.sequence, fact.envelope)
        clock.fold_fact(fact.sequence, fact.envelope)
        recheck.see(fact.sequence, fact.body)
    for fact in calls:
        journeys.fold_call(fact.envelope)
    told, times = staleness_report(journeys), clock.times()
    return {
        "status": times.status,
        "steps": len(times.step_s),
        "decisions": recheck.num,
        "training_s": round(times.training_s or 0.0, 3),
        "mean_staleness": round(told.mean or 0.0, 6),
        "token_lag": None if told.token_lag is None else round(told.token_lag, 6),
        "max_token_lag": told.max_token_lag,
        "worst": [row.group for row in told.worst],
        "groups": [
            [row.group, row.dispatched_version, row.trained_version, row.slowest]
            + [round(s, 3) for s in (row.queued_s, row.running_s, row.scoring_s, row.ready_s)]
            for row in told.rows
        ],
    }


def test_there_are_recorded_runs_and_they_are_small() -> None:
    assert RUNS
    assert all(path.stat().st_size < MAX_BYTES for path in RUNS)


@every_run
def test_no_recorded_decision_differs(path: Path) -> None:
    facts = _facts(path)
    recheck = Recheck(facts[0].job)
    for fact in facts:
        recheck.see(fact.sequence, fact.body)
    assert recheck.num > 0
    assert recheck.first is None, str(recheck.first)


@every_run
def test_its_figures_are_the_golden_ones(path: Path) -> None:
    assert figures(*_events(path)) == _golden(path)


@every_run
def test_why_gives_each_recorded_transitions_own_numbers(path: Path) -> None:
    facts = _facts(path)
    pairs = ((fact.sequence, fact.body) for fact in facts)
    for state, _, decision in before_each_decision(facts[0].job, pairs):
        told = explain(state, decision.now)
        match decision:
            case sched.TransitionStarted():
                sides = told.checks[2].left, told.checks[2].right
                assert told.starts
                assert (told.cell, *sides) == (
                    decision.cell,
                    decision.waterlevel,
                    decision.capacity_after,
                )
            case sched.BurstEnded():
                end = told.burst_end
                assert end is not None
                assert (end.left, end.capacity, end.core_stays) == (
                    decision.waterlevel + decision.next_dispatch,
                    decision.capacity_without_core,
                    decision.core_stays,
                )
            case _:
                assert not told.starts


@every_run
def test_it_has_a_report(path: Path) -> None:
    report = RunReport(_facts(path)[0].job)
    for fact in _facts(path):
        report.fold_fact(fact.sequence, fact.envelope)
    summary, golden = report.summary(), _golden(path)
    assert (summary["status"], summary["steps"]) == (golden["status"], golden["steps"])
    assert round(summary["mean_staleness"], 6) == golden["mean_staleness"]


@every_run
def test_its_forks_are_the_calls_that_leave_a_path(path: Path) -> None:
    """A call goes on where an earlier one of its execution ended, or opens it, or says why not."""
    forks, ends = Forks(), dict[str, set[str | None]]()
    num = 0
    for fact in _events(path)[1]:
        forks.fold(fact.body)
        if isinstance(fact.body, CallRecorded):
            call, known = fact.body, ends.setdefault(fact.body.execution, {None})
            num += call.parent not in known
            known.discard(call.parent)
            known.add(call.node)
    report = forks.report(AlarmsSection())
    assert report.num_forks == num == sum(row.num for row in report.rows)
    assert report.num_calls == sum(report.calls_by_role.values())
    assert report.alarms == ()
