"""Does a finished run's log add up? Every law that the log alone can show, checked afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gyre.adapters.blobs import BlobStore
from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.base import Stream
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.journal import Fact, Journal
from gyre.adapters.microsteps import decode_microstep
from gyre.contracts import subjects
from gyre.contracts.events import calls as call_events
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import groups as group_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import scores as score_events
from gyre.contracts.events import steps as step_events
from gyre.core.explain.decisions import first_difference


@dataclass(slots=True)
class RunLog:
    """One job's facts and calls, sorted by kind."""

    dispatched: list[str] = field(default_factory=list)
    never_started: set[str] = field(default_factory=set)
    terminated: Counter[str] = field(default_factory=Counter)
    scored: Counter[str] = field(default_factory=Counter)
    ready: Counter[str] = field(default_factory=Counter)
    claimed: Counter[tuple[int, str]] = field(default_factory=Counter)
    steps: list[step_events.StepCompleted] = field(default_factory=list)
    emitted: dict[tuple[str, int], group_events.MicroStepEmitted] = field(default_factory=dict)
    closed: dict[str, group_events.StreamClosed] = field(default_factory=dict)
    recorded: Counter[str] = field(default_factory=Counter)
    committed_tokens: Counter[str] = field(default_factory=Counter)
    sealed: dict[str, int] = field(default_factory=dict)
    failed_calls: int = 0
    role_pids: dict[int, set[tuple[int | None, int | None]]] = field(default_factory=dict)

    @classmethod
    def of(cls, facts: Iterable[Fact], calls: Iterable[Fact]) -> RunLog:
        log = cls()
        for fact in facts:
            log._fact(fact.body)
        for fact in calls:
            log._call(fact.body)
        return log

    def _fact(self, body: object) -> None:
        match body:
            case sched.Dispatched():
                self.dispatched += [e for plan in body.groups for e in plan.executions]
            case sched.ExecutionsCancelled() | sched.SurplusCancelled() | sched.GroupDropped():
                self.never_started.update(body.queued)
            case run_events.Terminated():
                self.terminated[body.execution] += 1
            case (
                score_events.Evaluated()
                | score_events.ExecutionExcluded()
                | score_events.PlaceholderScored()
            ):
                self.scored[body.execution] += 1
            case group_events.GroupReady():
                self.ready[body.group] += 1
            case group_events.GroupClaimed():
                self.claimed[_lineage(body.batch), body.group] += 1
            case group_events.MicroStepEmitted():
                assert (body.batch, body.index) not in self.emitted
                self.emitted[body.batch, body.index] = body
            case group_events.StreamClosed():
                self.closed[body.batch] = body
            case step_events.StepCompleted():
                self.steps.append(body)
            case cell_events.RoleChanged() if body.role != "offline":
                pids = self.role_pids.setdefault(body.cell, set())
                pids.add((body.engine_pid, body.trainer_pid))
            case _:
                pass

    def _call(self, body: object) -> None:
        match body:
            case call_events.CallRecorded():
                self.recorded[body.execution] += 1
                self.failed_calls += body.outcome == "failed"
                if body.outcome == "committed":
                    self.committed_tokens[body.execution] += len(body.output_ids)
            case call_events.CallsSealed():
                assert body.execution not in self.sealed
                self.sealed[body.execution] = body.num_calls
            case _:
                pass


def audit(log: RunLog, *, num_steps: int, groups_per_step: int, blobs: BlobStore) -> None:
    """Raises AssertionError at the first law that the log breaks."""
    assert set(log.dispatched) == set(log.scored)
    started = set(log.dispatched) - log.never_started
    assert started == set(log.terminated) == set(log.sealed)
    assert set(log.terminated.values()) == set(log.scored.values()) == {1}
    assert set(log.ready.values()) == {1}
    assert all(log.recorded[execution] == num for execution, num in log.sealed.items())
    assert max(log.claimed.values()) == 1
    _audit_steps(log, num_steps, groups_per_step)
    _audit_targets(log, blobs)


def _audit_steps(log: RunLog, num_steps: int, groups_per_step: int) -> None:
    """Versions count up; each step's owners cover its micro-steps exactly; B groups a batch."""
    surviving = {step.version: step for step in log.steps}
    assert sorted(surviving) == list(range(1, num_steps + 1))
    for step in log.steps:
        closed = log.closed[step.batch]
        assert len(closed.groups) == groups_per_step
        assert sorted(o.index for o in step.micro_steps) == list(range(closed.num_micro_steps))
        assert {owner.cell for owner in step.micro_steps} <= set(step.members)
        assert step.statistics.num_targets == closed.num_targets


def _audit_targets(log: RunLog, blobs: BlobStore) -> None:
    """A sampled token is trained at most once in a lineage: no execution is in two micro-steps, and
    none has more targets than it committed tokens."""
    seen: Counter[tuple[int, str]] = Counter()
    for step in log.steps:
        for owner in step.micro_steps:
            digest = log.emitted[step.batch, owner.index].digest
            micro_step = decode_microstep(blobs.get(digest))
            for execution in micro_step.executions:
                seen[step.lineage, execution.execution] += 1
                assert execution.num_targets <= log.committed_tokens[execution.execution]
    assert not seen or max(seen.values()) == 1


def _lineage(batch: str) -> int:
    return int(batch.removeprefix("l").partition("-")[0])


def first_decision_that_differs(facts: Sequence[Fact]) -> str | None:
    """Decide again from the log before each recorded decision; None when every one comes out."""
    difference = first_difference(facts[0].job, ((fact.sequence, fact.body) for fact in facts))
    return None if difference is None else str(difference)


async def read_run(url: str, job: str, blobs: BlobStore) -> tuple[list[Fact], list[Fact]]:
    """The facts and the calls of `job` from the NATS server at `url`; large bodies from `blobs`."""
    log = JetStreamEventLog(url, name="audit")
    journal = Journal(log, SystemClock(), blobs)
    try:
        facts = [f async for f in journal.read(Stream.FACTS, (subjects.all_facts(job),))]
        calls = [f async for f in journal.read(Stream.CALLS, (subjects.all_calls(job),))]
    finally:
        await log.close()
    return facts, calls
