"""What the runner knows, folded from the log: jobs, its executions, and what is cancelled.

Mutable by design (one owner, the service's loop); the rules are in `gyre.core.execution`.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from gyre.adapters.journal import Fact
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events.executions import (
    AttemptFailed,
    AttemptStarted,
    Started,
    Terminated,
    TerminationReason,
)
from gyre.contracts.events.lost import FactLost
from gyre.contracts.events.scheduling import (
    Dispatched,
    ExecutionsCancelled,
    GroupDropped,
    JobFinished,
    JobSubmitted,
    SurplusCancelled,
)
from gyre.contracts.job import JobSpec
from gyre.core.execution import Execution, Phase, evolve

Key = tuple[str, str]


class Registry:
    """Fold of facts, O(1) an event. Keys are (job, execution).

    A cancellation is an event that a running execution waits for; it may come before the order.
    ended_as: what `terminated` will say of the cancelled ones.

    An execution of which a fact is lost is cancelled: everybody counts it as ended. What its other
    facts say is taken as it is, so that its harness is found and ended.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, JobSpec] = {}
        self._finished_jobs: set[str] = set()
        self._cancelled_in_queue: set[Key] = set()
        self._lost: set[Key] = set()
        self._is_heldout: dict[Key, bool] = {}
        self._unfinished: dict[Key, Execution] = {}
        self._claimed: set[Key] = set()
        self._cancellations: dict[Key, asyncio.Event] = {}
        self._ended_as: dict[Key, TerminationReason] = {}

    def fold_history(self, fact: Fact) -> None:
        """A fact from before this process: the executions' own facts are folded too."""
        body = fact.body
        match body:
            case Started() | AttemptStarted() | AttemptFailed() | Terminated():
                key = (fact.job, body.execution)
                before = self._unfinished.get(key) or Execution(execution=body.execution)
                if key in self._lost:
                    after = _without_order(before, body, fact.sequence)
                else:
                    after = evolve(before, body, time=fact.envelope.time, sequence=fact.sequence)
                self._claimed.add(key)
                self._unfinished[key] = after
                if after.phase is Phase.TERMINATED:
                    self.forget(key)
            case FactLost(execution=str(execution)):
                self._lose((fact.job, execution), fact)
            case _:
                self.fold(fact)

    def fold(self, fact: Fact) -> None:
        """A fact of the scheduler. Mutates the state; wakes executions that are cancelled."""
        job, body = fact.job, fact.body
        match body:
            case JobSubmitted():
                self.jobs[job] = body.spec
            case Dispatched():
                for plan in body.groups:
                    self._is_heldout[job, plan.group] = body.kind == "heldout"
            case ExecutionsCancelled():
                self._cancel(job, body, "cancelled")
            case SurplusCancelled():
                self._cancel(job, body, "surplus")
            case GroupDropped():
                self._cancel(job, body, "dropped")
            case JobFinished() | FactLost(execution=None):
                self._finished_jobs.add(job)
                for key, event in self._cancellations.items():
                    if key[0] == job:
                        event.set()
            case _:
                pass

    def _lose(self, key: Key, fact: Fact) -> None:
        self._lost.add(key)
        self._claimed.add(key)
        self.cancellation(key).set()
        before = self._unfinished.get(key)
        if before is not None and fact.envelope.aggregate == subjects.run(*key):
            # It may have been the next attempt's start: a harness that nobody started is not found.
            next_attempt = before.attempt + (before.phase is not Phase.RUNNING)
            self._unfinished[key] = replace(
                before, phase=Phase.RUNNING, attempt=next_attempt, sequence=fact.sequence
            )

    def _cancel(
        self,
        job: str,
        body: ExecutionsCancelled | SurplusCancelled | GroupDropped,
        reason: TerminationReason,
    ) -> None:
        self._cancelled_in_queue.update((job, execution) for execution in body.queued)
        for execution in body.running:
            self._ended_as.setdefault((job, execution), reason)
            self.cancellation((job, execution)).set()

    def ended_as(self, key: Key) -> TerminationReason:
        """Why a cancelled execution ends: the first reason that was given, else its job's end."""
        return self._ended_as.get(key, "cancelled")

    def unfinished(self) -> list[tuple[str, Execution]]:
        """Executions that an earlier life of the runner started and did not end, with their job.
        Without those that cannot be taken up: their job's submission is lost."""
        known = ((key[0], state) for key, state in self._unfinished.items())
        return [(job, state) for job, state in known if job in self.jobs]

    def knows(self, job: str, group: str) -> bool:
        """Whether the facts that an order of this group relies on have been folded."""
        return job in self.jobs and (job, group) in self._is_heldout

    def never_starts(self, key: Key) -> bool:
        """Whether nobody waits for the execution: cancelled in the queue, or its job is over.

        One that was cancelled after its order holds a slot: it starts and terminates at once.
        """
        return key in self._cancelled_in_queue or key[0] in self._finished_jobs

    def claim(self, key: Key) -> bool:
        """Mutates: the execution is known from here on. False if it was already."""
        if key in self._claimed:
            return False
        self._claimed.add(key)
        return True

    def cancellation(self, key: Key) -> asyncio.Event:
        """Set once the scheduler wants the execution to end, or its job is over."""
        if key not in self._cancellations:
            self._cancellations[key] = asyncio.Event()
            if key[0] in self._finished_jobs:
                self._cancellations[key].set()
        return self._cancellations[key]

    def task_dir(self, job: str, state: Execution) -> Path:
        """The task's directory; held-out groups have their own set. KeyError unless `knows`."""
        tasks = self.jobs[job].tasks
        if self._is_heldout[job, state.group] and tasks.heldout is not None:
            return Path(tasks.heldout) / state.task
        return Path(tasks.train) / state.task

    def forget(self, key: Key) -> None:
        """Drops what a terminated execution needs no more; that it was claimed stays known."""
        self._unfinished.pop(key, None)
        self._cancellations.pop(key, None)
        self._ended_as.pop(key, None)


def _without_order(before: Execution, body: Body, sequence: int) -> Execution:
    """An execution after one of its facts, where those between may be missing."""
    match body:
        case AttemptStarted():
            return replace(
                before,
                phase=Phase.RUNNING,
                attempt=body.attempt,
                workspace=body.workspace,
                sequence=sequence,
            )
        case AttemptFailed():
            return replace(before, phase=Phase.BETWEEN, attempt=body.attempt, sequence=sequence)
        case Terminated():
            return replace(before, phase=Phase.TERMINATED, sequence=sequence)
        case _:
            return replace(before, phase=Phase.STARTED, sequence=sequence)
