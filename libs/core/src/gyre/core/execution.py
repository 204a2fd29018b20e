"""The life of an execution: which event may follow which, and what the end of an attempt means.

    ordered --started--> started --attempt_started--> running --terminated--> terminated
                                                       |   ^
                                         attempt_failed|   |attempt_started
                                                       v   |
                                                      between

- `terminated` is final and comes from every phase after `started`.
- An attempt keeps the execution's slot: neither `attempt_started` nor `attempt_failed` moves a
  counter of the ledger.
- How an attempt ended never becomes a reward; it only says whether there is another attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from gyre.contracts.envelope import Body
from gyre.contracts.events.executions import (
    AttemptFailed,
    AttemptStarted,
    Started,
    Terminated,
    TerminationReason,
)

# What the runner says of executions that the scheduler had it end.
ENDED_BY_SCHEDULER: frozenset[TerminationReason] = frozenset({"cancelled", "surplus", "dropped"})


def ended_by_itself(reason: TerminationReason) -> bool:
    """It did what it could, a time-out included: nobody ended it and nothing broke under it. Under
    oversampling these are the executions that count as done."""
    return reason in ("completed", "failed", "timeout")


class Phase(Enum):
    """Where an execution stands."""

    ORDERED = "ordered"
    STARTED = "started"
    RUNNING = "running"
    BETWEEN = "between"
    TERMINATED = "terminated"


TRANSITIONS: Mapping[tuple[Phase, type[Body]], Phase] = {
    (Phase.ORDERED, Started): Phase.STARTED,
    (Phase.STARTED, AttemptStarted): Phase.RUNNING,
    (Phase.STARTED, Terminated): Phase.TERMINATED,
    (Phase.RUNNING, AttemptFailed): Phase.BETWEEN,
    (Phase.RUNNING, Terminated): Phase.TERMINATED,
    (Phase.BETWEEN, AttemptStarted): Phase.RUNNING,
    (Phase.BETWEEN, Terminated): Phase.TERMINATED,
}


class IllegalEvent(Exception):
    """An event that cannot follow what the execution's log holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """An execution as its own subject tells it.

    attempt counts from 1, 0 before the first. workspace: path below the workspaces directory, of
    the latest attempt. started_at, attempt_started_at: unix seconds on the runner's clock.
    sequence: stream sequence of the subject's last event, 0 for none: what an append expects.
    """

    execution: str
    phase: Phase = Phase.ORDERED
    group: str = ""
    task: str = ""
    attempt: int = 0
    workspace: str | None = None
    started_at: float = 0.0
    attempt_started_at: float = 0.0
    sequence: int = 0


def evolve(state: Execution, body: Body, *, time: float, sequence: int) -> Execution:
    """The execution after `body`, appended at `time` with `sequence`.

    Raises IllegalEvent for an event the table does not allow, and for an attempt out of order.
    """
    phase = TRANSITIONS.get((state.phase, type(body)))
    if phase is None:
        raise IllegalEvent(
            f"{state.execution}: {body.TYPE} cannot follow in phase {state.phase.value}"
        )
    state = replace(state, phase=phase, sequence=sequence)
    match body:
        case Started():
            return replace(state, group=body.group, task=body.task, started_at=time)
        case AttemptStarted():
            if body.attempt != state.attempt + 1:
                raise IllegalEvent(
                    f"{state.execution}: attempt {body.attempt} cannot follow {state.attempt}"
                )
            return replace(
                state,
                attempt=body.attempt,
                workspace=body.workspace,
                attempt_started_at=time,
            )
        case _:
            return state


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a process ended: with an exit code or by a signal, the other one is None."""

    exit_code: int | None
    signal: int | None

    @property
    def is_clean(self) -> bool:
        return self.exit_code == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """What the runner saw at an attempt's end, its process tree being gone.

    exit: None when there is no exit status. broken: what the surroundings failed at, None if
    nothing. undelivered: the proxy recorded a call of this attempt that did not reach the harness.
    reported_error: what the harness itself says went wrong, whatever its exit status.
    """

    exit: Exit | None = None
    timed_out: bool = False
    cancelled: bool = False
    broken: str | None = None
    undelivered: bool = False
    reported_error: str | None = None

    @property
    def succeeded(self) -> bool:
        """Whether the harness ended well: a clean exit, and nothing else said in its output."""
        return self.exit is not None and self.exit.is_clean and self.reported_error is None


def infrastructure_error(end: AttemptEnd) -> str | None:
    """Why the surroundings, not the harness, ended the attempt; None when they did not.

    A harness that exits by itself with a failure after an undelivered call was cut off; one that
    the time-out or a cancellation ended was not, whatever was undelivered.
    """
    if end.broken is not None:
        return end.broken
    if end.timed_out:
        return None
    if end.exit is None:
        return "the harness left no exit status"
    if end.undelivered and not end.succeeded:
        return "the harness failed after a call whose answer was not delivered"
    return None


def conclude(
    state: Execution,
    end: AttemptEnd,
    *,
    num_attempts: int,
    now: float,
    cancelled_as: TerminationReason = "cancelled",
) -> tuple[AttemptFailed | Terminated, ...]:
    """The events that an attempt's end brings about, in order.

    A cancellation is final, under the name `cancelled_as`. An infrastructure failure is recorded
    with its error and followed by another attempt while there are any left, by `terminated` after
    the last.
    """
    if end.cancelled:
        return (terminated(state, cancelled_as, ending=end.exit, now=now),)
    error = infrastructure_error(end)
    if error is not None:
        failed = AttemptFailed(execution=state.execution, attempt=state.attempt, error=error)
        if state.attempt < num_attempts:
            return (failed,)
        return (failed, terminated(state, "infrastructure", ending=end.exit, now=now))
    if end.timed_out:
        return (terminated(state, "timeout", ending=end.exit, now=now),)
    reason: TerminationReason = "completed" if end.succeeded else "failed"
    return (terminated(state, reason, ending=end.exit, now=now),)


def terminated(
    state: Execution, reason: TerminationReason, *, ending: Exit | None, now: float
) -> Terminated:
    """`terminated` for this state. duration_s counts from `started`, all attempts together."""
    return Terminated(
        execution=state.execution,
        attempt=state.attempt,
        reason=reason,
        exit_code=ending.exit_code if ending else None,
        signal=ending.signal if ending else None,
        workspace=state.workspace,
        duration_s=max(0.0, now - state.started_at),
    )


def remaining_s(state: Execution, *, timeout_s: float, now: float) -> float:
    """Seconds the running attempt may still take, 0 when its time is up.

    Counts from `attempt_started`, so that a runner's restart gives a harness no more time.
    """
    return max(0.0, state.attempt_started_at + timeout_s - now)
