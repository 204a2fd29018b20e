"""The evaluation law: what becomes of an execution's work once it has closed.

An execution has closed when it is `terminated` (its process tree is gone) and its calls are sealed.
Then exactly one of these is its disposition:

| what there is | disposition |
|---|---|
| a valid score, zero included, after a time-out too | evaluated |
| the evaluator failed, budget left | still pending: again on the same artifact |
| the evaluator failed, budget spent | excluded: out of training and out of the baseline |
| no committed call after an infrastructure failure | placeholder: reward 0, L_i = 0 |
| ended by the scheduler (cancelled, surplus, dropped), queued or running | excluded |
| a record of its calls is lost: what was scored would not be known | excluded |

The seal may be the one that is lost. Whichever it was, the execution is out, so once it is
terminated nothing waits for a seal any more.

`decide` reads neither time spent by the harness, nor length, nor exit status: how an execution
ended selects a class, never a reward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallRecorded, CallsSealed
from gyre.contracts.events.executions import AttemptStarted, Started, Terminated
from gyre.contracts.events.scores import (
    Evaluated,
    EvaluationFailed,
    ExecutionExcluded,
    PlaceholderScored,
)
from gyre.contracts.job import EvaluationSection
from gyre.core.execution import ENDED_BY_SCHEDULER

# A scorer that failed may have met a passing shortage: 0.5 s, 1 s, 2 s ... between its tries.
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """An execution as the evaluator sees it.

    attempts: workspace by attempt, below the workspaces directory. lost: which record of its calls
    cannot be read, met before a seal was; "" if none. artifact: digest of the state that failed
    tries have bound, None before the first. first_failed_at, last_failed_at: unix
    seconds on the evaluator's clock. sequence: last stream sequence on the score's subject.
    """

    job: str
    execution: str
    group: str = ""
    task: str = ""
    attempts: Mapping[int, str] = field(default_factory=dict)
    terminated: Terminated | None = None
    sealed: CallsSealed | None = None
    lost: str = ""
    cancelled_in_queue: bool = False
    num_tries: int = 0
    attempt: int = 0
    artifact: str | None = None
    last_error: str = ""
    first_failed_at: float = 0.0
    last_failed_at: float = 0.0
    sequence: int = 0
    is_final: bool = False


def evolve(state: Pending, body: Body, *, time: float, sequence: int) -> Pending:
    """The execution after one of its events; events that say nothing to the evaluator change
    nothing. `time` is the event's, `sequence` its place in the facts stream."""
    match body:
        case Started():
            return replace(state, group=body.group, task=body.task)
        case AttemptStarted():
            return replace(state, attempts={**state.attempts, body.attempt: body.workspace})
        case Terminated():
            return replace(state, terminated=body)
        case CallsSealed():
            return replace(state, sealed=body)
        case EvaluationFailed():
            return replace(
                state,
                num_tries=body.num_tries,
                attempt=body.attempt,
                artifact=body.artifact or None,
                last_error=body.error,
                first_failed_at=state.first_failed_at if state.num_tries else time,
                last_failed_at=time,
                sequence=sequence,
            )
        case Evaluated() | ExecutionExcluded() | PlaceholderScored():
            return replace(state, is_final=True, sequence=sequence)
        case _:
            return state


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSummary:
    """Committed calls of an execution. num_committed: by attempt; tip: the node that the attempt's
    last committed call sampled, by attempt. lost: which record cannot be read, "" if all can."""

    num_committed: Mapping[int, int] = field(default_factory=dict)
    tip: Mapping[int, str] = field(default_factory=dict)
    lost: str = ""

    def with_call(self, call: CallRecorded) -> CallSummary:
        """The summary after one more call; only a committed one counts."""
        if call.outcome != "committed":
            return self
        count = self.num_committed.get(call.attempt, 0) + 1
        return replace(
            self,
            num_committed={**self.num_committed, call.attempt: count},
            tip={**self.tip, call.attempt: call.node},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Not closed yet, or final already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluate:
    """Score this attempt's workspace, not before `not_before` (unix seconds).

    try_number counts from 1. branch: the node where the attempt's committed calls end, "" if it
    made none. timeout_s: what this try may take.
    """

    attempt: int
    workspace: str
    branch: str
    try_number: int
    not_before: float
    timeout_s: float


Decision = Wait | Evaluate | ExecutionExcluded | PlaceholderScored


def is_closed(state: Pending) -> bool:
    """Nothing more will happen in the execution and nothing has been said about it yet."""
    closed = state.terminated is not None and (state.sealed is not None or state.lost != "")
    return not state.is_final and (state.cancelled_in_queue or closed)


def decide(
    state: Pending, calls: CallSummary, settings: EvaluationSection, *, now: float
) -> Decision:
    """What to do with the execution at `now`; `calls` are those before the seal."""
    if not is_closed(state):
        return Wait()
    end = state.terminated
    if state.cancelled_in_queue or end is None:
        return ExecutionExcluded(execution=state.execution, reason="cancelled")
    if end.reason in ENDED_BY_SCHEDULER:
        return ExecutionExcluded(execution=state.execution, reason=end.reason)
    if lost := state.lost or calls.lost:
        return ExecutionExcluded(
            execution=state.execution, reason=f"a record of its calls is lost: {lost}"
        )
    attempt = _attempt_to_score(state, end, calls)
    if attempt is None:
        return PlaceholderScored(execution=state.execution, reason="no evaluable work")
    if state.num_tries and _budget_is_spent(state, settings, now):
        return ExecutionExcluded(
            execution=state.execution,
            reason=f"no valid score in {state.num_tries} tries: {state.last_error}",
        )
    return Evaluate(
        attempt=attempt,
        workspace=state.attempts[attempt],
        branch=calls.tip.get(attempt, ""),
        try_number=state.num_tries + 1,
        not_before=state.last_failed_at + backoff_s(state.num_tries),
        timeout_s=_timeout_s(state, settings, now),
    )


def backoff_s(num_tries: int) -> float:
    """Seconds between a failed try and the next; 0 before the first."""
    if num_tries == 0:
        return 0.0
    return min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** (num_tries - 1))


def failed(
    state: Pending, action: Evaluate, *, evaluation: str, artifact: str, error: str
) -> EvaluationFailed:
    """The evaluator failed at `action`; `artifact` is "" when it got no further than the copy."""
    return EvaluationFailed(
        execution=state.execution,
        attempt=action.attempt,
        evaluation=evaluation,
        artifact=artifact,
        num_tries=action.try_number,
        error=error,
    )


def _attempt_to_score(state: Pending, end: Terminated, calls: CallSummary) -> int | None:
    """The attempt whose workspace is the work: the last one, and after an infrastructure failure
    the last one in which the policy did anything. None when there is none."""
    if state.num_tries:
        return state.attempt
    if end.reason != "infrastructure":
        return end.attempt if end.attempt in state.attempts else None
    touched = [attempt for attempt in state.attempts if calls.num_committed.get(attempt, 0) > 0]
    return max(touched, default=None)


def _budget_is_spent(state: Pending, settings: EvaluationSection, now: float) -> bool:
    # Runs from the first failure by the log's times, so that a restart neither renews nor loses it.
    return state.num_tries >= settings.max_tries or now >= state.first_failed_at + settings.budget_s


def _timeout_s(state: Pending, settings: EvaluationSection, now: float) -> float:
    left = settings.budget_s
    if state.num_tries:
        left = state.first_failed_at + settings.budget_s - now
    return min(settings.scorer_timeout_s, left)
