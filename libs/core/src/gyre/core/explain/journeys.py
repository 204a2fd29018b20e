"""Where each group's time went, folded from the log with its times.

Folding one fact is O(1). Times are unix seconds on the writers' clocks: between machines whose
clocks differ, a part of a group's time may come out that much too long or short, even negative.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre.contracts.envelope import Envelope
from gyre.contracts.events import calls as call_events
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import groups as group_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import scores as score_events
from gyre.core.scheduling import JobState, evolve


@dataclass(slots=True, kw_only=True)
class ExecutionTimes:
    """None: has not happened. num_tokens and the two below: of its committed calls' spans."""

    ordered: float | None = None
    started: float | None = None
    terminated: float | None = None
    scored: float | None = None
    num_tokens: int = 0
    sum_token_versions: int = 0
    oldest_version: int | None = None


@dataclass(slots=True, kw_only=True)
class GroupTimes:
    """claimed: by the batch that holds it now; None again when a restore returned it."""

    group: str
    task: str
    executions: tuple[str, ...]
    dispatched: float
    ready: float | None = None
    claimed: float | None = None


@dataclass(slots=True)
class Journeys:
    """Fold of one job. Mutated by `fold_fact` and `fold_call` only; calls come after the facts.

    groups: the training groups by name, in the order of dispatch. executions: theirs alone.
    """

    job: str
    state: JobState = field(init=False)
    groups: dict[str, GroupTimes] = field(default_factory=dict)
    executions: dict[str, ExecutionTimes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = JobState(job=self.job)

    def fold_fact(self, sequence: int, envelope: Envelope) -> None:
        body, time = envelope.body, envelope.time
        evolve(self.state, sequence, body)
        match body:
            case sched.Dispatched() if body.kind == "training":
                self._dispatched(body, time)
            case sched.StartOrdered():
                for order in body.orders:
                    if order.execution in self.executions:
                        self.executions[order.execution].ordered = time
            case run_events.Started() if body.execution in self.executions:
                self.executions[body.execution].started = time
            case run_events.Terminated() if body.execution in self.executions:
                self.executions[body.execution].terminated = time
            case (
                score_events.Evaluated()
                | score_events.ExecutionExcluded()
                | score_events.PlaceholderScored()
            ) if body.execution in self.executions:
                self.executions[body.execution].scored = time
            case group_events.GroupReady() if body.group in self.groups:
                self.groups[body.group].ready = time
            case group_events.GroupClaimed() if body.group in self.groups:
                # The state says whether this claim stands: one behind a restore is void.
                if self.state.groups[body.group].batch == body.batch:
                    self.groups[body.group].claimed = time
            case sched.Restored():
                for name, group in self.groups.items():
                    known = self.state.groups.get(name)
                    if known is not None and known.claimed_version is None:
                        group.claimed = None
            case _:
                pass

    def fold_call(self, envelope: Envelope) -> None:
        """Which versions sampled the tokens that were committed."""
        body = envelope.body
        if not isinstance(body, call_events.CallRecorded) or body.outcome != "committed":
            return
        execution = self.executions.get(body.execution)
        if execution is None:
            return
        for span in body.spans:
            num = span.end - span.start
            execution.num_tokens += num
            execution.sum_token_versions += num * span.version
            oldest = execution.oldest_version
            execution.oldest_version = span.version if oldest is None else min(oldest, span.version)

    def _dispatched(self, body: sched.Dispatched, time: float) -> None:
        for plan in body.groups:
            self.groups[plan.group] = GroupTimes(
                group=plan.group, task=plan.task, executions=plan.executions, dispatched=time
            )
            for execution in plan.executions:
                self.executions[execution] = ExecutionTimes()
