"""Did a finished run measure its held-out set while it trained? What its log alone can show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gyre.adapters.blobs import BlobStore
from gyre.adapters.journal import Fact
from gyre.adapters.microsteps import decode_microstep
from gyre.contracts.envelope import Body
from gyre.contracts.events import calls as call_events
from gyre.contracts.events import executions as run_events
from gyre.contracts.events import groups as group_events
from gyre.contracts.events import scheduling as sched
from gyre.contracts.events import scores as score_events
from gyre.core.scheduling import JobState, evolve, ledger


@dataclass(slots=True, kw_only=True)
class Measurement:
    """The held-out set under one published version. rewards: by execution, as they were scored."""

    version: int
    executions: tuple[str, ...]
    rewards: dict[str, float] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        return sum(self.rewards.values()) / len(self.rewards)


@dataclass(slots=True)
class HeldoutAudit:
    """Fold of one job's facts; raises AssertionError at the first that breaks a law.

    due: the published version whose measurement is to come next. kinds: of each execution. slots:
    executions that hold one, in the order of their orders. most_training, most_measuring: the most
    that held slots at once while the job trained. num_blocked: facts behind which a training
    execution waits and a reserved slot is free. trained: executions and groups that batches took.
    """

    state: JobState
    measurements: list[Measurement] = field(default_factory=list)
    due: int | None = None
    kinds: dict[str, str] = field(default_factory=dict)
    heldout_groups: set[str] = field(default_factory=set)
    slots: dict[str, None] = field(default_factory=dict)
    most_training: int = 0
    most_measuring: int = 0
    num_blocked: int = 0
    trained: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, facts: Sequence[Fact], blobs: BlobStore) -> HeldoutAudit:
        """The audit of a run that ended as it should, its micro-steps read from `blobs`."""
        audit = cls(JobState(job=facts[0].job))
        for fact in facts:
            audit.fold(fact.sequence, fact.body, blobs)
        assert audit.due is None, f"version {audit.due} was never measured"
        for one in audit.measurements:
            assert set(one.rewards) == set(one.executions), f"version {one.version}: not all scored"
        held_out = {name for name, kind in audit.kinds.items() if kind == "heldout"}
        trained = audit.trained & (held_out | audit.heldout_groups)
        assert not trained, f"trained, though held out: {sorted(trained)}"
        return audit

    def fold(self, sequence: int, body: Body, blobs: BlobStore) -> None:
        num_publications = self.state.num_publications
        evolve(self.state, sequence, body)
        match body:
            case sched.Dispatched():
                self._dispatched(body)
            case sched.StartOrdered():
                self.slots |= dict.fromkeys(order.execution for order in body.orders)
            case run_events.Terminated():
                del self.slots[body.execution]
            case score_events.Evaluated():
                self._scored(body.execution, body.reward)
            case group_events.GroupReady() | group_events.GroupClaimed():
                self.trained.add(body.group)
            case group_events.MicroStepEmitted():
                micro_step = decode_microstep(blobs.get(body.digest))
                self.trained |= {info.execution for info in micro_step.executions}
        if self.state.num_publications > num_publications:
            self._published()
        if self.state.phase == "training":
            self._slots_are_kept_apart()

    def _published(self) -> None:
        """Each `heldout_every`-th publication is measured unless the measurement before it still
        runs; the last one has a phase of its own."""
        spec, counters = self.state.required_spec, self.state.heldout
        assert self.due is None, f"version {self.due} was never measured"
        every = spec.evaluation.heldout_every
        its_turn = every is not None and self.state.num_publications % every == 0
        over = counters.dispatched == counters.terminated
        if its_turn and over and self.state.num_steps_done < spec.schedule.num_steps:
            self.due = self.state.published

    def _dispatched(self, body: sched.Dispatched) -> None:
        executions = tuple(name for plan in body.groups for name in plan.executions)
        self.kinds |= dict.fromkeys(executions, body.kind)
        if body.kind == "training":
            return
        self.heldout_groups |= {plan.group for plan in body.groups}
        tasks = tuple(plan.task for plan in body.groups for _ in plan.executions)
        assert tasks == self.state.heldout_tasks, f"one execution a task, not {tasks}"
        if self.state.phase == "training":
            assert body.version == self.due, f"version {body.version} was not due, {self.due} was"
            self.due = None
            self.measurements.append(Measurement(version=body.version, executions=executions))

    def _scored(self, execution: str, reward: float) -> None:
        for one in self.measurements:
            if execution in one.executions:
                one.rewards[execution] = reward

    def _slots_are_kept_apart(self) -> None:
        """Training holds at most C_R less the reserve, measurements at most the reserve."""
        reserved = self.state.required_spec.evaluation.heldout_capacity
        kinds = [self.kinds[execution] for execution in self.slots]
        training, measuring = kinds.count("training"), kinds.count("heldout")
        capacity = ledger.rollout_capacity(self.state)
        assert training <= capacity - reserved, f"{training} of {capacity}, {reserved} reserved"
        assert measuring <= reserved, f"{measuring} measure, {reserved} reserved"
        self.most_training = max(self.most_training, training)
        self.most_measuring = max(self.most_measuring, measuring)
        full, free = training == capacity - reserved, reserved - measuring
        self.num_blocked += bool(self.state.queue) and full and free > 0


def sampled_versions(calls: Iterable[Fact], measurement: Measurement) -> list[int]:
    """The versions that sampled its tokens, one for each span of its committed calls, in order."""
    return [
        span.version
        for fact in calls
        if isinstance(fact.body, call_events.CallRecorded)
        and fact.body.outcome == "committed"
        and fact.body.execution in measurement.executions
        for span in fact.body.spans
    ]
