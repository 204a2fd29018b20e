"""What a job's facts say of one execution: its group, its score, and whether it is trained.

A fold over the job's facts with the trajectory service's own state (`gyre.core.groups`).
"""

from __future__ import annotations

from dataclasses import dataclass

from gyre.contracts.envelope import Body
from gyre.contracts.events.groups import ExecutionOutcome, MicroStepEmitted
from gyre.contracts.events.scheduling import Dispatched
from gyre.contracts.events.scores import ExecutionExcluded, PlaceholderScored
from gyre.contracts.job import JobSpec
from gyre.core.groups import Group, JobGroups, evolve


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """attempt: the scored one, None while there is none. reward, advantage: None while they are not
    known; the advantage is, once the group is ready. batch: the one that claimed its group;
    micro_step: that it went out in. out: why nothing of it is trained, None where something is or
    will be."""

    job: str
    execution: str
    group: str | None = None
    task: str | None = None
    attempt: int | None = None
    reward: float | None = None
    advantage: float | None = None
    batch: str | None = None
    micro_step: int | None = None
    out: str | None = None


class ExecutionFacts:
    """Fold of one job's facts for one execution. Mutated by `fold` only."""

    def __init__(self, job: str, execution: str) -> None:
        self._execution = execution
        self._groups = JobGroups(job=job)
        self._heldout: tuple[str, str] | None = None
        self._reason: str | None = None
        self._emitted: dict[str, int] = {}

    @property
    def spec(self) -> JobSpec | None:
        """The job's; None before it was submitted."""
        return self._groups.spec

    def fold(self, sequence: int, body: Body) -> None:
        """One fact, in the order of the log."""
        evolve(self._groups, sequence, body)
        match body:
            case Dispatched(kind="heldout"):
                for plan in body.groups:
                    if self._execution in plan.executions:
                        self._heldout = (plan.group, plan.task)
            case ExecutionExcluded() | PlaceholderScored() if body.execution == self._execution:
                self._reason = self._reason or body.reason
            case MicroStepEmitted() if self._execution in body.executions:
                self._emitted[body.batch] = body.index
            case _:
                pass

    def fate(self) -> Fate | None:
        """None for an execution that the job has not dispatched."""
        job = self._groups.job
        group = self._groups.group_of.get(self._execution)
        if group is None:
            if self._heldout is None:
                return None
            name, task = self._heldout
            out = "it measures a held-out score"
            return Fate(job=job, execution=self._execution, group=name, task=task, out=out)
        outcome = _outcome(group, self._execution)
        scored = group.scores.get(self._execution)
        return Fate(
            job=job,
            execution=self._execution,
            group=group.group,
            task=group.task,
            attempt=None if scored is None else scored.attempt,
            reward=None if scored is None else scored.outcome.reward,
            advantage=None if outcome is None else outcome.advantage,
            batch=group.batch,
            micro_step=self._emitted.get(group.batch or ""),
            out=self._out(group, outcome),
        )

    def _out(self, group: Group, outcome: ExecutionOutcome | None) -> str | None:
        error = group.quarantined.get(self._execution)
        if error is not None:
            return f"its records are in quarantine: {error}"
        if group.dropped:
            return "its group was dropped"
        scored = group.scores.get(self._execution)
        if scored is not None and scored.outcome.disposition == "excluded":
            return f"it is excluded: {self._reason or 'it never started'}"
        if scored is not None and scored.outcome.disposition == "placeholder":
            return f"a placeholder stands for it: {self._reason}"
        if outcome is not None and outcome.disposition == "surplus":
            return "it is surplus: its group kept others"
        if group.ready is not None and group.ready.zero_weight:
            return "its group has no weight: fewer than two valid rewards, or all are equal"
        return None


def _outcome(group: Group, execution: str) -> ExecutionOutcome | None:
    outcomes = () if group.ready is None else group.ready.outcomes
    return next((one for one in outcomes if one.execution == execution), None)
