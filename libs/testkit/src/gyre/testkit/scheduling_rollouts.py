"""Time, the log and the executions of the scheduler's world, up to groups that are ready.

Virtual time, no I/O: every fact goes through `evolve`; every answer of `next_decision` is folded
too, and kept with its time. Executions take the time that `durations` says and end as `reasons`
says unless the scheduler has them ended; groups become ready after scoring.
"""

from __future__ import annotations

import abc
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from gyre.contracts.envelope import Body
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import groups as group_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import scores as score_events
from gyre.contracts.job import JobSpec
from gyre.core.execution import ended_by_itself
from gyre.core.scheduling import JobState, evolve, next_decision, next_wake
from gyre.testkit.facts import terminated


@dataclass(slots=True, kw_only=True)
class Timings:
    """Seconds of virtual time."""

    start: float = 0.1
    kill: float = 0.3
    scoring: float = 0.2
    switch: float = 0.5
    micro_step: float = 1.0
    micro_steps_per_group: int = 1
    update: float = 0.2
    publish: float = 0.5
    boot: float = 1.0


@dataclass
class Rollouts(abc.ABC):
    """Run one job to its end. durations: execution number (0, 1, ...) -> seconds it runs; reasons:
    how it ends unless it is ended. A subclass says what else the facts bring about."""

    spec: JobSpec
    durations: Callable[[int], float]
    timings: Timings = field(default_factory=Timings)
    on_fact: Callable[[JobState, Body, float], None] = lambda state, body, now: None
    heldout_tasks: tuple[str, ...] = ()
    reasons: Callable[[int], run_events.TerminationReason] = lambda number: "completed"

    state: JobState = field(init=False)
    now: float = 0.0
    log: list[tuple[int, float, Body]] = field(default_factory=list)
    _heap: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _ticket: itertools.count[int] = field(default_factory=itertools.count)
    _left: dict[str, set[str]] = field(default_factory=dict)
    _done: dict[str, int] = field(default_factory=dict)
    _complete: set[str] = field(default_factory=set)
    _ready: list[str] = field(default_factory=list)
    _num_executions: int = 0

    def run(self, max_events: int = 200_000) -> JobState:
        """Live through the job; returns its last state. Raises AssertionError when it stalls."""
        self.begin()
        for _ in range(max_events):
            self._decide()
            if self.state.finished:
                return self.state
            self._advance()
        raise AssertionError(f"no end after {max_events} events")

    def fact(self, body: Body) -> None:
        """Append and fold one fact, then let the world react to it."""
        sequence = len(self.log) + 1
        self.log.append((sequence, self.now, body))
        evolve(self.state, sequence, body)
        self.on_fact(self.state, body, self.now)
        reaction = self._REACTIONS.get(type(body))
        if reaction is not None:
            reaction(self, body)

    def later(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + delay, next(self._ticket), action))

    def decisions(self, kind: type[Body]) -> list[Body]:
        return [body for _, _, body in self.log if isinstance(body, kind)]

    def _decide(self) -> None:
        while (decision := next_decision(self.state, self.now)) is not None:
            self.fact(decision)

    def _advance(self) -> None:
        wake = next_wake(self.state)
        if self._heap and (wake is None or wake <= self.now or self._heap[0][0] <= wake):
            self.now, _, action = heapq.heappop(self._heap)
            action()
        elif wake is not None and wake > self.now:
            self.now = wake
        else:
            raise AssertionError(f"stalled at {self.now}: {self.state.phase} {self.state.batch}")

    @abc.abstractmethod
    def begin(self) -> None:
        """Append what a job begins with."""

    @abc.abstractmethod
    def _pack(self) -> None:
        """Look whether a group may be drawn: one became ready."""

    def _dispatched(self, body: sched.Dispatched) -> None:
        if body.kind == "training":
            self._left.update({plan.group: set(plan.executions) for plan in body.groups})
            self._done.update({plan.group: 0 for plan in body.groups})

    def _ordered(self, body: sched.StartOrdered) -> None:
        for order in body.orders:
            number, self._num_executions = self._num_executions, self._num_executions + 1
            self.later(self.timings.start, partial(self._start, order, number))

    def _start(self, order: sched.StartOrder, number: int) -> None:
        if self.state.executions[order.execution].terminated:
            return
        self.fact(run_events.Started(execution=order.execution, group=order.group, task=order.task))
        reason, seconds = self.reasons(number), self.durations(number)
        self.later(seconds, partial(self._terminate, order.execution, reason, seconds))

    def _terminate(
        self, execution: str, reason: run_events.TerminationReason, seconds: float = 0.0
    ) -> None:
        known = self.state.executions[execution]
        if known.terminated:
            return
        self.fact(terminated(execution, reason, duration_s=seconds))
        if known.kind == "heldout":
            self.later(self.timings.scoring, partial(self._score, execution))
            return
        self._done[known.group] += ended_by_itself(reason)
        self._ended(execution)

    def _ended(self, execution: str) -> None:
        """The group has what it keeps once N are done, or all have ended."""
        schedule, group = self.spec.schedule, self.state.executions[execution].group
        left = self._left[group]
        left.discard(execution)
        enough = schedule.keep == "first_finished"
        enough = enough and self._done[group] >= schedule.executions_per_group
        if (enough or not left) and group not in self._complete:
            self._complete.add(group)
            self.later(self.timings.scoring, partial(self._group_ready, group))

    def _cancelled(
        self, body: sched.ExecutionsCancelled | sched.SurplusCancelled | sched.GroupDropped
    ) -> None:
        """Queued ones are over, running ones end soon."""
        reason: run_events.TerminationReason = "cancelled"
        if isinstance(body, sched.SurplusCancelled):
            reason = "surplus"
        elif isinstance(body, sched.GroupDropped):
            reason = "dropped"
            if body.group in self._ready:
                self._ready.remove(body.group)
        for execution in body.queued:
            if self.state.executions[execution].kind == "training":
                self._ended(execution)
        for execution in body.running:
            self.later(self.timings.kill, partial(self._terminate, execution, reason))

    def _score(self, execution: str) -> None:
        self.fact(
            score_events.Evaluated(
                execution=execution,
                attempt=1,
                evaluation="e",
                artifact="a",
                branch="",
                reward=0.0,
            )
        )

    def _group_ready(self, group: str) -> None:
        if self.state.groups[group].dropped:
            return
        self.fact(
            group_events.GroupReady(
                group=group, task="t", version=0, lineage=1, outcomes=(), zero_weight=False
            )
        )
        self._ready.append(group)
        self._pack()

    _REACTIONS: ClassVar[dict[type[Body], Callable[[Any, Any], None]]] = {
        sched.Dispatched: _dispatched,
        sched.StartOrdered: _ordered,
        sched.ExecutionsCancelled: _cancelled,
        sched.SurplusCancelled: _cancelled,
        sched.GroupDropped: _cancelled,
    }
