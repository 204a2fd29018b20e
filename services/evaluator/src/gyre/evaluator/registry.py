"""What the evaluator knows, folded from the log: jobs, and executions that are not final yet.

Mutable by design (one owner, the service's loop); the rules are in `gyre.core.evaluation`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gyre.contracts.envelope import Body, Envelope
from gyre.contracts.events.calls import CallsSealed
from gyre.contracts.events.executions import AttemptStarted, Started, Terminated
from gyre.contracts.events.lost import FactLost
from gyre.contracts.events.scheduling import (
    Dispatched,
    ExecutionsCancelled,
    GroupDropped,
    JobSubmitted,
    SurplusCancelled,
)
from gyre.contracts.events.scores import (
    Evaluated,
    EvaluationFailed,
    ExecutionExcluded,
    PlaceholderScored,
)
from gyre.contracts.job import JobSpec
from gyre.core.evaluation import Pending, evolve, is_closed


class Registry:
    """Fold of facts and seals. O(1) an event; a final execution keeps its id and no more."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobSpec] = {}
        self._pending: dict[tuple[str, str], Pending] = {}
        self._final: set[tuple[str, str]] = set()
        self._heldout_groups: set[tuple[str, str]] = set()
        self._lost_jobs: set[str] = set()

    def fold(self, envelope: Envelope, sequence: int) -> tuple[Pending, ...]:
        """Mutates the state; the executions that this event makes ready to be decided on."""
        job, body = envelope.job, envelope.body
        if job in self._lost_jobs:
            return ()
        match body:
            case JobSubmitted():
                self.jobs[job] = body.spec
            case Dispatched() if body.kind == "heldout":
                self._heldout_groups.update((job, plan.group) for plan in body.groups)
            case FactLost():
                self._lose_fact(job, body)
            case ExecutionsCancelled() | SurplusCancelled() | GroupDropped():
                return tuple(self._cancel_queued(job, body.queued))
            case (
                Started()
                | AttemptStarted()
                | Terminated()
                | CallsSealed()
                | EvaluationFailed()
                | Evaluated()
                | ExecutionExcluded()
                | PlaceholderScored()
            ):
                key = (job, body.execution)
                return tuple(self._fold_execution(key, body, envelope.time, sequence))
            case _:
                pass
        return ()

    def lose(self, job: str, execution: str, record: str) -> tuple[Pending, ...]:
        """A record of its calls cannot be read, the seal perhaps. Mutates and returns as `fold`."""
        key = (job, execution)
        before = self._pending.get(key) or Pending(job=job, execution=execution)
        if job in self._lost_jobs or key in self._final:
            return ()
        if before.sealed is not None or before.lost:
            return ()
        after = self._pending[key] = replace(before, lost=record)
        return (after,) if is_closed(after) and not is_closed(before) else ()

    def _lose_fact(self, job: str, body: FactLost) -> None:
        """The execution counts as excluded, for everybody; nobody says it. A job ends with its own:
        nothing of it is scored any more."""
        if body.execution is not None:
            self._final.add((job, body.execution))
            self._pending.pop((job, body.execution), None)
            return
        self._lost_jobs.add(job)
        self._pending = {key: state for key, state in self._pending.items() if key[0] != job}

    def get(self, job: str, execution: str) -> Pending | None:
        """The execution as it stands, None when unknown or final."""
        return self._pending.get((job, execution))

    def closed(self) -> list[Pending]:
        """Everything that waits for a decision, oldest first."""
        return [state for state in self._pending.values() if is_closed(state)]

    def unsealed(self) -> list[Pending]:
        """Terminated executions whose seal has not been folded."""
        return [
            state
            for state in self._pending.values()
            if state.terminated is not None and state.sealed is None
        ]

    def task_dir(self, state: Pending) -> Path:
        """The task's directory: held-out groups have their own set.

        Raises KeyError when the job is unknown.
        """
        tasks = self.jobs[state.job].tasks
        if (state.job, state.group) in self._heldout_groups and tasks.heldout is not None:
            return Path(tasks.heldout) / state.task
        return Path(tasks.train) / state.task

    def _fold_execution(
        self, key: tuple[str, str], body: Body, time: float, sequence: int
    ) -> Iterator[Pending]:
        if key in self._final:
            return
        before = self._pending.get(key) or Pending(job=key[0], execution=key[1])
        after = evolve(before, body, time=time, sequence=sequence)
        if after.is_final:
            self._final.add(key)
            self._pending.pop(key, None)
            return
        self._pending[key] = after
        if is_closed(after) and (not is_closed(before) or isinstance(body, EvaluationFailed)):
            yield after

    def _cancel_queued(self, job: str, executions: tuple[str, ...]) -> Iterator[Pending]:
        for execution in executions:
            key = (job, execution)
            if key in self._final:
                continue
            before = self._pending.get(key) or Pending(job=job, execution=execution)
            self._pending[key] = replace(before, cancelled_in_queue=True)
            if not is_closed(before):
                yield self._pending[key]
