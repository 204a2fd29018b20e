"""The clock, the calendar and the decider: facts in, decisions out, as in the scheduler's loop.

    take the next event of the calendar, or the decider's own timer if that is earlier
      -> the services that it concerns append facts -> each is folded
      -> ask the decider until it has nothing to say; each decision is folded and reacted to

Time is virtual, in seconds. Nothing is random here: durations come from the workload.
"""

from __future__ import annotations

import gc
import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gyre.contracts.envelope import Body
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.job import JobSpec
from gyre.core.scheduling import JobState, evolve, next_decision, next_wake
from gyre.simulator.asking import TABLE, always, next_level
from gyre.simulator.bodies import Kind, restamped, variants
from gyre.simulator.cells import CellPlayers
from gyre.simulator.outcome import Outcome
from gyre.simulator.rollouts import Rollouts
from gyre.simulator.speeds import Speeds
from gyre.simulator.training import Trainers
from gyre.simulator.workload import Workload

JOB = "job"
# Far above what 48 steps of the paper's largest job take: a run that gets here does not end.
MAX_POPS = 20_000_000
# Later than any job: where the deadlines of a job lie that shall never pass.
NEVER_S = 1e11


class StalledError(Exception):
    """The job waits for something that will not come; the message says where it stands."""


class Simulation:
    """One job, from its first dispatch to its end or to step `until_step`.

    nodes: of each elastic cell, core first, then of each pool cell. ask_always: ask the decider
    after every fact, as if there were no table. keep_log: (sequence, time, body) of every fact.
    record: keep what the plots need.
    """

    def __init__(
        self,
        spec: JobSpec,
        workload: Workload,
        speeds: Speeds,
        nodes: tuple[float, ...],
        *,
        until_step: int | None = None,
        record: bool = False,
        keep_log: bool = False,
        ask_always: bool = False,
    ) -> None:
        self.spec, self.speeds, self.nodes = spec, speeds, nodes
        self.state = JobState(job=JOB)
        cells = spec.cells
        self.outcome = Outcome(
            num_nodes=sum(nodes),
            num_slots=sum(cells.capacities) + cells.pool_count * cells.pool_capacity,
        )
        self.now = 0.0
        self.record = record
        self.log: list[tuple[int, float, Body]] | None = [] if keep_log else None
        self._until, self._num_tasks = until_step, workload.num_tasks
        self._always = ask_always
        self._ask = True
        self._only: Body | None = None
        self._wake: float | None = None
        self._level: int | None = None
        self._sequence = 0
        self._calendar: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._ticket = 0
        self._cells = CellPlayers(self)
        trainers = Trainers(self)
        rollouts = Rollouts(self, workload, trainers.group_ready)
        self._reactions: dict[type[Body], Callable[[Any], None]] = {
            **rollouts.reactions,
            **trainers.reactions,
            **self._cells.reactions,
        }
        self._cells.entered_training = trainers.entered_training

    def fact(self, body: Body) -> None:
        """Append and fold one fact of another service."""
        self._sequence += 1
        if self.log is not None:
            self.log.append((self._sequence, self.now, body))
        evolve(self.state, self._sequence, body)
        enables = always if self._always else TABLE.get(type(body), always)
        if enables is not None and enables(self.state, self._level):
            # Of one fact alone the decider knows which rules it can make due.
            self._only = None if self._ask or self._always else body
            self._ask = True

    def facts_like(self, pattern: Kind) -> Callable[..., Kind]:
        """Makes facts like `pattern`: each its own body where they are kept in the log."""
        return restamped(pattern) if self.log is None else variants(pattern)

    def later(self, delay: float, action: Callable[[Any], None], argument: Any) -> None:
        """`action(argument)` in `delay` seconds. Equal times keep the order of the calls."""
        self._ticket += 1
        heapq.heappush(self._calendar, (self.now + delay, self._ticket, action, argument))

    def run(self) -> Outcome:
        """Live through the job. Raises StalledError."""
        outcome = self.outcome
        with _no_search_for_cycles():
            self._begin()
            while True:
                if self._ask:
                    self._decide()
                if self.state.finished or len(outcome.step_ended_s) == self._until:
                    break
                self._advance()
        outcome.end_s, outcome.num_facts = self.now, self._sequence
        self._cells.settle()
        return outcome

    def _begin(self) -> None:
        schedule, cells = self.spec.schedule, self.spec.cells
        num_tasks = self._num_tasks or schedule.num_steps * schedule.groups_per_step
        tasks = tuple(f"t{place}" for place in range(num_tasks))
        self.fact(sched.JobSubmitted(spec=self.spec, train_tasks=tasks, heldout_tasks=()))
        elastic = tuple(range(cells.count))
        pool = tuple(range(cells.count, cells.num_cells))
        self.fact(sched.JobStarted(based_on=0, now=0.0, cells=elastic, pool=pool, lineage=1))
        self._cells.boot()

    def _decide(self) -> None:
        reactions = self._reactions
        only, self._only = self._only, None
        steady = type(only) is run_events.Terminated
        while (decision := next_decision(self.state, self.now, after=only)) is not None:
            only = decision if type(decision) is sched.StartOrdered else None
            steady = steady and only is not None
            self.fact(decision)
            self.outcome.num_decisions += 1
            reaction = reactions.get(type(decision))
            if reaction is not None:
                reaction(decision)
        # What the reactions said was folded before the decider was asked for the last time.
        self._ask = False
        if not steady:
            self._note_conditions()
        if self.record:
            self._note_level()

    def _note_conditions(self) -> None:
        """What the decider waits for besides facts. An end and the starts it brings leave the timer
        as it is, and can only lower a level that depends on w: the decider is asked too often."""
        # A timer that has run out waits for a fact, like any other condition.
        wake = next_wake(self.state)
        self._wake = wake if wake is not None and self.now < wake < NEVER_S else None
        self._level = next_level(self.state)

    def _advance(self) -> None:
        """Go to the next moment at which something happens."""
        calendar, wake, outcome = self._calendar, self._wake, self.outcome
        outcome.num_pops += 1
        if outcome.num_pops > MAX_POPS:
            raise StalledError(f"no end after {MAX_POPS} events, {self._place()}")
        if wake is not None and (not calendar or wake <= calendar[0][0]):
            self._pass_time(wake)
            self._ask, self._only = True, None
        elif calendar:
            time, _, action, argument = heapq.heappop(calendar)
            self._pass_time(time)
            action(argument)
        else:
            raise StalledError(f"nothing will happen any more, {self._place()}")

    def _pass_time(self, time: float) -> None:
        span = time - self.now
        if span > 0:
            counters = self.state.training
            self.outcome.slot_s += span * (counters.ordered - counters.terminated)
            self.outcome.capacity_s += span * self.state.serving_capacity
            self.now = time

    def _note_level(self) -> None:
        level = self.state.training.waterlevel, self.state.serving_capacity
        series = self.outcome.waterlevel
        if not series or series[-1][1:] != level:
            series.append((self.now, *level))

    def _place(self) -> str:
        state = self.state
        return (
            f"at {self.now / 3600:.2f} h: step {state.num_steps_done} of "
            f"{self.spec.schedule.num_steps}, waterlevel {state.training.waterlevel}, "
            f"C_R {state.serving_capacity}, {state.num_ready_unclaimed} groups ready"
        )


@contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """A run makes objects by the hundred thousand that live to its end and form no cycles: looking
    for some again and again finds none and takes a tenth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
