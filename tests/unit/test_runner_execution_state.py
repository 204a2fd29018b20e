"""The execution's state machine and what an attempt's end means."""

from __future__ import annotations

import pytest

from gyre.contracts.envelope import Body
from gyre.contracts.events.executions import (
    AttemptFailed,
    AttemptStarted,
    Started,
    Terminated,
)
from gyre.core.execution import (
    TRANSITIONS,
    AttemptEnd,
    Execution,
    Exit,
    IllegalEvent,
    Phase,
    conclude,
    evolve,
    remaining_s,
)


def started() -> Started:
    return Started(execution="e", group="g", task="t")


def attempt(number: int) -> AttemptStarted:
    return AttemptStarted(execution="e", attempt=number, key_id="k", workspace=f"j/e/a{number}")


def fold(*bodies: Body) -> Execution:
    state = Execution(execution="e")
    for index, body in enumerate(bodies):
        state = evolve(state, body, time=10.0 * index, sequence=index + 1)
    return state


def test_a_whole_life_is_folded() -> None:
    state = fold(started(), attempt(1))
    assert state == Execution(
        execution="e",
        phase=Phase.RUNNING,
        group="g",
        task="t",
        attempt=1,
        workspace="j/e/a1",
        started_at=0.0,
        attempt_started_at=10.0,
        sequence=2,
    )


def test_an_event_outside_the_table_raises() -> None:
    with pytest.raises(IllegalEvent, match="e: started cannot follow in phase started"):
        fold(started(), started())
    with pytest.raises(IllegalEvent, match="attempt 3 cannot follow 1"):
        fold(started(), attempt(1), AttemptFailed(execution="e", attempt=1, error="x"), attempt(3))


def test_terminated_is_final() -> None:
    assert not [pair for pair in TRANSITIONS if pair[0] is Phase.TERMINATED]


def test_only_a_terminated_execution_has_no_way_to_its_end() -> None:
    can_end = {phase for phase, body in TRANSITIONS if body is Terminated}
    assert can_end == {Phase.STARTED, Phase.RUNNING, Phase.BETWEEN}


CLEAN, FAILED, KILLED = (
    Exit(exit_code=0, signal=None),
    Exit(exit_code=1, signal=None),
    Exit(exit_code=None, signal=9),
)


@pytest.mark.parametrize(
    ("end", "reasons"),
    [
        (AttemptEnd(exit=CLEAN), ["completed"]),
        (AttemptEnd(exit=FAILED), ["failed"]),
        (AttemptEnd(exit=KILLED), ["failed"]),
        (AttemptEnd(exit=KILLED, timed_out=True), ["timeout"]),
        (AttemptEnd(exit=CLEAN, timed_out=True), ["timeout"]),
        (AttemptEnd(exit=FAILED, timed_out=True, undelivered=True), ["timeout"]),
        (AttemptEnd(exit=FAILED, undelivered=True), ["attempt_failed"]),
        (AttemptEnd(exit=CLEAN, undelivered=True), ["completed"]),
        (AttemptEnd(broken="no disk"), ["attempt_failed"]),
        (AttemptEnd(), ["attempt_failed"]),
        (AttemptEnd(exit=FAILED, cancelled=True, undelivered=True), ["cancelled"]),
        (AttemptEnd(broken="no disk", cancelled=True), ["cancelled"]),
    ],
)
def test_how_an_attempt_ends(end: AttemptEnd, reasons: list[str]) -> None:
    events = conclude(fold(started(), attempt(1)), end, num_attempts=3, now=30.0)
    assert [
        event.reason if isinstance(event, Terminated) else event.TYPE for event in events
    ] == reasons


def test_the_last_attempt_ends_the_execution() -> None:
    state = fold(
        started(), attempt(1), AttemptFailed(execution="e", attempt=1, error="x"), attempt(2)
    )
    events = conclude(state, AttemptEnd(broken="no disk"), num_attempts=2, now=40.0)
    assert events == (
        AttemptFailed(execution="e", attempt=2, error="no disk"),
        Terminated(
            execution="e",
            attempt=2,
            reason="infrastructure",
            exit_code=None,
            signal=None,
            workspace="j/e/a2",
            duration_s=40.0,
        ),
    )


def test_a_restart_gives_a_harness_no_more_time() -> None:
    state = fold(started(), attempt(1))
    assert remaining_s(state, timeout_s=60.0, now=30.0) == 40.0
    assert remaining_s(state, timeout_s=60.0, now=300.0) == 0.0
