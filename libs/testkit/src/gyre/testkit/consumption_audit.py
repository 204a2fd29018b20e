"""Did the trainers consume exactly what admission chose? Token by token, from a finished run's log.

One side is made from the recorded calls by `admission_oracle`. The other is read back from the
micro-steps that cells were given, by the digests in the log, and from what the trainers said of
them. Compared are, for each execution: every path with its tokens; every target with its token, the
context that it is trained in, its log-probability and its version, once; what the objective divides
and multiplies by. So nothing is trained twice, nothing is left out, and nothing else is in a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gyre.adapters.blobs import BlobStore
from gyre.adapters.journal import Fact
from gyre.adapters.microsteps import decode_microstep
from gyre.contracts.envelope import Body
from gyre.contracts.events.groups import (
    ExecutionQuarantined,
    GroupClaimed,
    GroupReady,
    MicroStepEmitted,
    StreamClosed,
)
from gyre.contracts.events.scheduling import JobSubmitted
from gyre.contracts.events.scores import Evaluated
from gyre.contracts.events.steps import StepCompleted
from gyre.contracts.job import JobSpec
from gyre.contracts.step_record import StepRecord
from gyre.core.microstep import MicroStep
from gyre.testkit.admission_oracle import Expected, expected_of
from gyre.testkit.carried_tokens import assert_carried


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainee:
    """An execution that a batch should train."""

    execution: str
    group: str
    advantage: float
    expected: Expected


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedBatch:
    """One step's batch, found right. trainees: those with targets. micro_steps: by index."""

    step: StepCompleted
    trainees: tuple[Trainee, ...]
    micro_steps: tuple[MicroStep, ...]

    @property
    def roles(self) -> Counter[str]:
        """Paths by the role of their last call."""
        return Counter(path.role for one in self.trainees for path in one.expected.paths)

    @property
    def num_targets(self) -> int:
        return sum(one.expected.num_targets for one in self.trainees)


@dataclass(slots=True)
class _Log:
    """One job's facts and calls, by what they are about. Mutated by `fact` and `call` alone.
    closed: by batch, with the executions that were in quarantine by then."""

    spec: JobSpec | None = None
    attempts: dict[str, int] = field(default_factory=dict)
    ready: dict[str, GroupReady] = field(default_factory=dict)
    claimed: dict[str, list[str]] = field(default_factory=dict)
    quarantined: set[str] = field(default_factory=set)
    emitted: dict[str, list[MicroStepEmitted]] = field(default_factory=dict)
    closed: dict[str, tuple[StreamClosed, frozenset[str]]] = field(default_factory=dict)
    steps: list[StepCompleted] = field(default_factory=list)
    calls: dict[str, list[Body]] = field(default_factory=dict)

    def fact(self, body: Body) -> None:
        match body:
            case JobSubmitted():
                self.spec = body.spec
            case Evaluated():
                self.attempts.setdefault(body.execution, body.attempt)
            case GroupReady():
                self.ready[body.group] = body
            case GroupClaimed():
                self.claimed.setdefault(body.batch, []).append(body.group)
            case ExecutionQuarantined():
                self.quarantined.add(body.execution)
            case MicroStepEmitted():
                self.emitted.setdefault(body.batch, []).append(body)
            case StreamClosed():
                self.closed[body.batch] = (body, frozenset(self.quarantined))
            case StepCompleted():
                self.steps.append(body)
            case _:
                pass

    def call(self, fact: Fact) -> None:
        execution = fact.envelope.aggregate.rpartition(".")[2]
        self.calls.setdefault(execution, []).append(fact.body)

    @property
    def job(self) -> JobSpec:
        assert self.spec is not None, "the log has no job_submitted"
        return self.spec


def audit_consumption(
    facts: Sequence[Fact], calls: Sequence[Fact], blobs: BlobStore
) -> tuple[ConsumedBatch, ...]:
    """Every completed step of the log, in order. Raises AssertionError, which names the execution
    and the first token that differs."""
    log = _Log()
    for fact in facts:
        log.fact(fact.body)
    for fact in calls:
        log.call(fact)
    return tuple(_consumed(log, step, blobs) for step in log.steps)


def _consumed(log: _Log, step: StepCompleted, blobs: BlobStore) -> ConsumedBatch:
    closed, quarantined = log.closed[step.batch]
    emitted, claimed = log.emitted.get(step.batch, []), log.claimed[step.batch]
    # A claim behind the batch's end is void.
    assert list(closed.groups) == claimed[: len(closed.groups)], f"{step.batch}: {claimed}"
    assert [body.index for body in emitted] == list(range(closed.num_micro_steps))
    micro_steps = tuple(decode_microstep(blobs.get(body.digest)) for body in emitted)
    for body, micro_step in zip(emitted, micro_steps, strict=True):
        _assert_as_announced(body, micro_step, log.job)
    trainees = tuple(one for one in _trainees(log, closed, quarantined) if one.expected.num_targets)
    _assert_each_is_in_one(trainees, micro_steps, step.batch)
    for one in trainees:
        _assert_trained(one, micro_steps)
    batch = ConsumedBatch(step=step, trainees=trainees, micro_steps=micro_steps)
    _assert_the_trainers_say_so(batch, closed, blobs)
    return batch


def _trainees(log: _Log, closed: StreamClosed, quarantined: frozenset[str]) -> Iterator[Trainee]:
    """Valid executions of weighted groups whose records are whole."""
    admission, seed = log.job.admission, log.job.seed
    for group in closed.groups:
        ready = log.ready[group]
        for outcome in () if ready.zero_weight else ready.outcomes:
            name = outcome.execution
            if outcome.disposition != "valid" or name in quarantined:
                continue
            expected = expected_of(
                log.calls.get(name, ()),
                attempt=log.attempts[name],
                row_tokens=admission.row_tokens,
                max_trajectories=admission.max_trajectories,
                seed=seed,
                execution=name,
            )
            yield Trainee(
                execution=name, group=group, advantage=outcome.advantage, expected=expected
            )


def _assert_as_announced(body: MicroStepEmitted, step: MicroStep, spec: JobSpec) -> None:
    """The event names what its blob holds; the objective's divisor is B*N, whoever is in it."""
    where = f"micro-step {body.index} of {body.batch}"
    _same(where, (step.batch, step.index), (body.batch, body.index))
    num_raw = spec.schedule.groups_per_step * spec.schedule.executions_per_group
    _same(f"{where}, divisor", step.normalizer, num_raw)
    longest = spec.admission.row_tokens
    assert step.row_tokens <= longest, f"{where}: rows of {step.row_tokens}, {longest} at most"
    named = tuple(info.execution for info in step.executions)
    _same(f"{where}, executions", named, body.executions)
    held = len(step.rows), step.row_tokens, step.num_tokens, step.num_targets, step.num_path_tokens
    announced = body.num_rows, body.row_tokens, body.num_tokens, body.num_targets
    _same(where, held, (*announced, body.num_path_tokens))


def _assert_each_is_in_one(
    trainees: Sequence[Trainee], steps: Sequence[MicroStep], batch: str
) -> None:
    homes = Counter(info.execution for step in steps for info in step.executions)
    _same(f"{batch}, executions", homes, Counter(one.execution for one in trainees))


def _assert_trained(one: Trainee, steps: Sequence[MicroStep]) -> None:
    name, expected = one.execution, one.expected
    [(step, number)] = [
        (step, number)
        for step in steps
        for number, info in enumerate(step.executions)
        if info.execution == name
    ]
    info = step.executions[number]
    _same(f"{name}, group", info.group, one.group)
    _same(f"{name}, advantage", info.advantage, one.advantage)
    _same(f"{name}, temperature", info.temperature, expected.temperature)
    _same(f"{name}, L_i", info.num_targets, expected.num_targets)
    assert_carried(name, expected, [block for block in step.blocks if block.execution == number])


def _same(what: str, found: object, due: object) -> None:
    assert found == due, f"{what}: {found}, not {due}"


def _assert_the_trainers_say_so(
    batch: ConsumedBatch, closed: StreamClosed, blobs: BlobStore
) -> None:
    """Counts of `step_completed` and, by execution, of its record."""
    step, steps, name = batch.step, batch.micro_steps, batch.step.batch
    owned = [owner.index for owner in step.micro_steps]
    _same(f"{name}, micro-steps of the step", owned, list(range(len(steps))))
    trained = step.statistics
    _same(f"{name}, targets that trainers count", trained.num_targets, batch.num_targets)
    _same(f"{name}, targets of the closed stream", closed.num_targets, batch.num_targets)
    _same(f"{name}, targets that were drawn", closed.num_admitted_targets, batch.num_targets)
    num_tokens = sum(one.num_tokens for one in steps)
    _same(f"{name}, tokens", trained.num_tokens, num_tokens)
    num_path_tokens = sum(one.num_path_tokens for one in steps)
    _same(f"{name}, tokens of paths", trained.num_path_tokens, num_path_tokens)
    computed = trained.num_computed_tokens
    assert computed <= num_tokens, f"{name}: {computed} tokens computed, rows have {num_tokens}"
    if step.record is None:
        return
    record = StepRecord.model_validate_json(blobs.get(step.record))
    owners = {owner.index: owner.cell for owner in step.micro_steps}
    said = {
        (one.micro_step, one.cell, one.execution, one.group, one.advantage, one.num_targets)
        for one in record.executions
    }
    held = {
        (each.index, owners[each.index], one.execution, one.group, one.advantage, one.num_targets)
        for each in steps
        for one in each.executions
    }
    assert said == held, f"{step.batch}: the record differs: {sorted(said ^ held)[:2]}"


def job_of(facts: Iterable[Fact]) -> JobSpec:
    """The job's file, as it was submitted."""
    return next(fact.body.spec for fact in facts if isinstance(fact.body, JobSubmitted))
