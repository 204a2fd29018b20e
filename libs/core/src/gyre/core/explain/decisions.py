"""Recorded decisions, decided again: does the decider still say what the log holds?

A decision carries the sequence it was based on and its `now`. The log may hold facts between that
sequence and the decision's own: they came while it was being appended, and it did not know them.
So facts are folded up to `based_on` only, and wait until then: one pass, and the memory of the
facts in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gyre.contracts.envelope import Body, Decision
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import JobState, evolve, next_decision

# Which cells a job gets is decided over all jobs, which one job's log does not show.
OF_THE_CLUSTER: tuple[type[Body], ...] = (sched.JobStarted, sched.CellJoined)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A decision that does not come out again. sequence: of the recorded one in the log."""

    sequence: int
    recorded: Decision
    decided: Body | None

    def fields(self) -> dict[str, tuple[Any, Any]]:
        """(recorded, decided) of each field that is not the same; empty for two types of event."""
        if self.decided is None or type(self.decided) is not type(self.recorded):
            return {}
        pairs = {
            name: (getattr(self.recorded, name), getattr(self.decided, name))
            for name in type(self.recorded).model_fields
        }
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    def __str__(self) -> str:
        return f"at {self.sequence}: recorded {self.recorded!r}, decided {self.decided!r}"


@dataclass(slots=True)
class BeforeDecision:
    """A job's state as the decider had it, moved along the log by `see` and only forward."""

    job: str
    state: JobState = field(init=False)
    _waiting: deque[tuple[int, Body]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.state = JobState(job=self.job)

    def see(self, sequence: int, body: Body) -> JobState | None:
        """Take in the next fact. For a decision of this job's decider: the state that it was based
        on, good until the next call; None for every other fact."""
        self._waiting.append((sequence, body))
        if not isinstance(body, Decision):
            return None
        while self._waiting and self._waiting[0][0] <= body.based_on:
            evolve(self.state, *self._waiting.popleft())
        return None if self._of_the_cluster(body) else self.state

    def _of_the_cluster(self, decision: Decision) -> bool:
        # A job that is cancelled before it has cells is ended over the head of its own decider.
        unstarted = isinstance(decision, sched.JobFinished) and self.state.status == "queued"
        return unstarted or isinstance(decision, OF_THE_CLUSTER)


@dataclass(slots=True)
class Recheck:
    """Decides every recorded decision of one job again. num: how many so far; first: the first that
    came out otherwise, None while none did."""

    job: str
    num: int = 0
    first: Difference | None = None
    _before: BeforeDecision = field(init=False)

    def __post_init__(self) -> None:
        self._before = BeforeDecision(self.job)

    def see(self, sequence: int, body: Body) -> None:
        """Take in the next fact, in the order of the log."""
        state = self._before.see(sequence, body)
        if state is None or not isinstance(body, Decision):
            return
        self.num += 1
        if self.first is None:
            again = next_decision(state, body.now)
            if again != body:
                self.first = Difference(sequence=sequence, recorded=body, decided=again)


def first_difference(job: str, facts: Iterable[tuple[int, Body]]) -> Difference | None:
    """The first of the job's recorded decisions that is decided otherwise now, None if none is."""
    recheck = Recheck(job)
    for sequence, body in facts:
        recheck.see(sequence, body)
        if recheck.first is not None:
            break
    return recheck.first


def before_each_decision(
    job: str, facts: Iterable[tuple[int, Body]]
) -> Iterator[tuple[JobState, int, Decision]]:
    """(state it was based on, sequence, decision) of each decision of the job's own decider. The
    state is mutated on the way: look at it before asking for the next."""
    before = BeforeDecision(job)
    for sequence, body in facts:
        state = before.see(sequence, body)
        if state is not None and isinstance(body, Decision):
            yield state, sequence, body
