"""The scheduler's world without any order: what is due happens whenever somebody picks it.

Facts come early or late, in any order that their causes allow, and again after they were folded.
The scheduler dies between any two of them, with its decision appended or not, and comes back by
folding the log. Time passes by itself, so that its timers run out at any moment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gyre.contracts.envelope import Body
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import groups as group_events
from gyre.contracts.events import scores as score_events
from gyre.contracts.events import steps as step_events
from gyre.core.scheduling import JobState, evolve, next_decision, next_wake
from gyre.testkit.scheduling_world import World

# Facts whose writers work at least once. An agent's own aggregate is not among them: each of its
# appends expects the last sequence, so that an old role cannot come again behind a new one.
REPEATABLE: tuple[type[Body], ...] = (
    run_events.Started,
    run_events.Terminated,
    score_events.Evaluated,
    group_events.GroupReady,
    group_events.GroupClaimed,
    group_events.StreamClosed,
    step_events.MicroStepClaimed,
    cell_events.BatchJoined,
    step_events.StepCompleted,
    cell_events.WeightsPublished,
)


@dataclass
class ShuffledWorld(World):
    """due: what may happen next, in no order."""

    due: list[Callable[[], None]] = field(default_factory=list)

    def later(self, delay: float, action: Callable[[], None]) -> None:
        self.due.append(action)

    def happen(self, place: int) -> None:
        """One of the things that are due, `place` modulo their number."""
        self.due.pop(place % len(self.due))()

    def repeat(self, kind: type[Body], place: int) -> None:
        """An earlier fact of an at-least-once writer is in the log a second time."""
        earlier = [body for _, _, body in self.log if isinstance(body, kind)]
        if earlier:
            self.append(earlier[place % len(earlier)])

    def append(self, body: Body) -> None:
        """Into the log and into the state; nobody reacts to it."""
        sequence = len(self.log) + 1
        self.log.append((sequence, self.now, body))
        evolve(self.state, sequence, body)

    def decide(self) -> Body | None:
        """One decision, if one is due."""
        decision = next_decision(self.state, self.now)
        if decision is not None:
            self.fact(decision)
        return decision

    def die(self, *, after_append: bool) -> None:
        """The scheduler dies with a decision on its lips; the next one folds the log."""
        decision = next_decision(self.state, self.now)
        self.state = self.replayed()
        if after_append and decision is not None:
            # It is in the log, so the others act on it as ever.
            self.fact(decision)

    def replayed(self) -> JobState:
        """The state as a scheduler finds it that has just started."""
        state = JobState(job="job")
        for sequence, _, body in self.log:
            evolve(state, sequence, body)
        return state

    def finish(self, max_events: int = 50_000) -> JobState:
        """Let everything happen, first come first served, until the job ends."""
        for _ in range(max_events):
            while self.decide() is not None:
                pass
            if self.state.finished:
                return self.state
            wake = next_wake(self.state)
            if self.due:
                self.happen(0)
            elif wake is not None and wake > self.now:
                self.now = wake
            else:
                raise AssertionError(f"stalled in {self.state.phase}: {self.state.batch}")
        raise AssertionError(f"no end after {max_events} events")
