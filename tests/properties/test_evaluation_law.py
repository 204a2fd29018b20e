"""The law of evaluation (`gyre.core.evaluation`): three failure classes, and rewards from the
workspace alone."""

from __future__ import annotations

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from gyre.contracts.events.calls import CallsSealed
from gyre.contracts.events.executions import (
    AttemptStarted,
    Started,
    Terminated,
    TerminationReason,
)
from gyre.contracts.events.scores import (
    Evaluated,
    EvaluationFailed,
    ExecutionExcluded,
    PlaceholderScored,
)
from gyre.contracts.job import EvaluationSection
from gyre.core.evaluation import (
    CallSummary,
    Evaluate,
    Pending,
    Wait,
    decide,
    evolve,
    failed,
    is_closed,
)
from gyre.core.execution import ended_by_itself

SETTINGS = EvaluationSection(scorer_timeout_s=20.0, budget_s=60.0, max_tries=3)
REASONS: tuple[TerminationReason, ...] = get_args(TerminationReason)

reasons = st.sampled_from(REASONS)
durations = st.floats(0, 1e6)
call_counts = st.dictionaries(st.integers(1, 3), st.integers(0, 5), max_size=3)


def closed(
    reason: TerminationReason,
    *,
    num_attempts: int = 1,
    duration_s: float = 1.0,
    exit_code: int | None = 0,
    sealed: bool = True,
) -> Pending:
    """An execution that ran `num_attempts` attempts and terminated."""
    state = Pending(job="j", execution="e")
    bodies: list[Started | AttemptStarted | Terminated | CallsSealed] = [
        Started(execution="e", group="g", task="t")
    ]
    bodies += [
        AttemptStarted(execution="e", attempt=number, key_id="k", workspace=f"j/e/a{number}")
        for number in range(1, num_attempts + 1)
    ]
    bodies.append(
        Terminated(
            execution="e",
            attempt=num_attempts,
            reason=reason,
            exit_code=exit_code,
            signal=None,
            workspace=f"j/e/a{num_attempts}",
            duration_s=duration_s,
        )
    )
    if sealed:
        bodies.append(CallsSealed(execution="e", num_calls=3, last_seq=9))
    for index, body in enumerate(bodies):
        state = evolve(state, body, time=float(index), sequence=index + 1)
    return state


def calls_of(counts: dict[int, int]) -> CallSummary:
    return CallSummary(num_committed=counts, tip={attempt: f"n{attempt}" for attempt in counts})


@given(reasons, call_counts)
def test_nothing_is_scored_before_the_seal(
    reason: TerminationReason, counts: dict[int, int]
) -> None:
    state = closed(reason, sealed=False)
    assert decide(state, calls_of(counts), SETTINGS, now=0.0) == Wait()
    assert not is_closed(state)


@given(
    st.sampled_from([reason for reason in REASONS if ended_by_itself(reason)]),
    durations,
    st.integers(0, 255),
    call_counts,
)
def test_how_it_ended_how_long_it_took_and_how_much_it_said_change_nothing(
    reason: TerminationReason, duration_s: float, exit_code: int, counts: dict[int, int]
) -> None:
    state = closed(reason, duration_s=duration_s, exit_code=exit_code)
    plain = closed("completed")
    action = decide(state, calls_of(counts), SETTINGS, now=0.0)
    assert isinstance(action, Evaluate)
    assert action == decide(plain, calls_of(counts), SETTINGS, now=0.0)


@given(st.integers(1, 4), call_counts)
def test_a_placeholder_only_when_the_policy_did_nothing_and_the_infrastructure_failed(
    num_attempts: int, counts: dict[int, int]
) -> None:
    counts = {attempt: count for attempt, count in counts.items() if attempt <= num_attempts}
    state = closed("infrastructure", num_attempts=num_attempts, exit_code=None)
    action = decide(state, calls_of(counts), SETTINGS, now=0.0)
    touched = [attempt for attempt, count in counts.items() if count > 0]
    if touched:
        assert isinstance(action, Evaluate)
        assert action.attempt == max(touched)
    else:
        assert isinstance(action, PlaceholderScored)


@given(call_counts)
def test_what_was_cancelled_is_excluded(counts: dict[int, int]) -> None:
    queued = Pending(job="j", execution="e", cancelled_in_queue=True)
    for state in (closed("cancelled"), queued):
        action = decide(state, calls_of(counts), SETTINGS, now=0.0)
        assert action == ExecutionExcluded(execution="e", reason="cancelled")


@given(st.lists(st.floats(0.0, 40.0), min_size=1, max_size=8))
def test_a_failing_evaluator_is_retried_on_the_same_artifact_then_excluded(
    gaps: list[float],
) -> None:
    state, calls, now = closed("timeout"), calls_of({1: 2}), 100.0
    first_failed_at, tries = None, 0
    for gap in gaps:
        action = decide(state, calls, SETTINGS, now=now)
        spent = first_failed_at is not None and now >= first_failed_at + SETTINGS.budget_s
        if tries >= SETTINGS.max_tries or spent:
            assert isinstance(action, ExecutionExcluded)
            return
        assert isinstance(action, Evaluate)
        assert action.try_number == tries + 1
        assert 0 < action.timeout_s <= SETTINGS.scorer_timeout_s
        event = failed(state, action, evaluation=f"e-t{tries + 1}", artifact="d1", error="boom")
        state = evolve(state, event, time=now, sequence=20 + tries)
        assert (state.artifact, state.attempt, state.num_tries) == ("d1", 1, tries + 1)
        first_failed_at = now if first_failed_at is None else first_failed_at
        tries, now = tries + 1, now + gap


def test_every_failure_ends_in_an_exclusion_within_the_tries() -> None:
    state, now = closed("completed"), 0.0
    for number in range(1, SETTINGS.max_tries + 1):
        action = decide(state, CallSummary(), SETTINGS, now=now)
        assert isinstance(action, Evaluate)
        event = EvaluationFailed(
            execution="e", attempt=1, evaluation="v", artifact="", num_tries=number, error="boom"
        )
        state, now = evolve(state, event, time=now, sequence=30 + number), now + 2.0
    assert decide(state, CallSummary(), SETTINGS, now=now) == ExecutionExcluded(
        execution="e", reason="no valid score in 3 tries: boom"
    )


@given(st.floats(-1e6, 1e6))
def test_a_score_is_final(reward: float) -> None:
    score = Evaluated(
        execution="e", attempt=1, evaluation="v", artifact="d", branch="n1", reward=reward
    )
    state = evolve(closed("failed"), score, time=9.0, sequence=40)
    assert decide(state, CallSummary(), SETTINGS, now=1e9) == Wait()
