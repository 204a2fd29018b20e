"""The audit of what trainers consumed passes on what the service emits, and names what is wrong
with anything else: one token, one number, one path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from gyre.adapters.blobs import MemoryBlobStore
from gyre.adapters.clock import ManualClock
from gyre.adapters.eventlog import Stream
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Fact, Journal
from gyre.adapters.microsteps import decode_microstep, encode_microstep
from gyre.contracts import subjects
from gyre.contracts.events.calls import CallRecorded
from gyre.contracts.events.groups import MicroStepEmitted
from gyre.contracts.events.steps import NO_STATISTICS, MicroStepOwner, StepCompleted
from gyre.core.microstep import NO_EDGE, Edge, MicroStep, Row, TreeBlock
from gyre.testkit.consumption_audit import audit_consumption
from gyre.testkit.trajectory_world import World, small_spec
from gyre.trajectory.handlers import Trajectories

JOB, BATCH = "job", "l1-s0000"
Tamper = Callable[[MicroStep], MicroStep]


class Altered(MemoryBlobStore):
    """Gives other micro-steps than it was given, as a trainer that reads them wrong would."""

    def __init__(self) -> None:
        super().__init__()
        self.tamper: Tamper = lambda step: step

    def get(self, digest: str) -> bytes:
        return encode_microstep(self.tamper(decode_microstep(super().get(digest))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A batch that was packed and, so its log says, trained."""

    facts: list[Fact]
    calls: list[Fact]
    blobs: Altered


async def trained_run(trained: int | None = None) -> Run:
    """trained: the targets that the step claims, all if None."""
    blobs = Altered()
    journal = Journal(MemoryEventLog(), ManualClock(), blobs)
    world = World(journal, JOB, small_spec(admission={"max_trajectories": 2}), seed=5)
    await world.submit()
    await world.dispatch(range(3))
    for number in range(3):
        await world.finish_group(number, (0.0, 1.0, 0.5, None))
    await world.open_batch(BATCH)
    await world.join(BATCH, 0)
    steps: list[MicroStep] = []
    while True:
        service = Trajectories(journal, blobs)
        await service.catch_up()
        if await service.pay_one() is not None:
            continue
        emitted = [fact.body async for fact in journal.read(Stream.FACTS)]
        digests = [body.digest for body in emitted if isinstance(body, MicroStepEmitted)]
        if len(digests) == len(steps):
            break
        for index in range(len(steps), len(digests)):
            await world.claim(BATCH, index)
            steps.append(decode_microstep(blobs.get(digests[index])))
    await world.say(subjects.cell(JOB, 0), completed(steps, trained))
    return Run(
        facts=[fact async for fact in journal.read(Stream.FACTS)],
        calls=[fact async for fact in journal.read(Stream.CALLS)],
        blobs=blobs,
    )


def completed(steps: list[MicroStep], trained: int | None) -> StepCompleted:
    num_tokens = sum(step.num_tokens for step in steps)
    targets = sum(step.num_targets for step in steps)
    statistics = NO_STATISTICS.model_copy(
        update={
            "num_targets": targets if trained is None else trained,
            "num_tokens": num_tokens,
            "num_path_tokens": sum(step.num_path_tokens for step in steps),
            "num_computed_tokens": num_tokens,
        }
    )
    return StepCompleted(
        batch=BATCH,
        step=0,
        version=1,
        lineage=1,
        epoch=1,
        members=(0,),
        micro_steps=tuple(MicroStepOwner(index=step.index, cell=0, epoch=1) for step in steps),
        statistics=statistics,
    )


def in_first_block(step: MicroStep, **fields: object) -> MicroStep:
    row, *rows = step.rows
    block, *blocks = row.blocks
    return replace(step, rows=(Row(blocks=(replace(block, **fields), *blocks)), *rows))


def first_block(step: MicroStep) -> TreeBlock:
    return step.rows[0].blocks[0]


def of_first_execution(step: MicroStep, **fields: object) -> MicroStep:
    first, *others = step.executions
    return replace(step, executions=(replace(first, **fields), *others))


def another(values: tuple[int, ...], place: int) -> tuple[int, ...]:
    return (*values[:place], (values[place] + 1) % 500, *values[place + 1 :])


def other_target_token(step: MicroStep) -> MicroStep:
    block = first_block(step)
    return in_first_block(step, token_ids=another(block.token_ids, block.target_positions[0]))


def other_context(step: MicroStep) -> MicroStep:
    return in_first_block(step, token_ids=another(first_block(step).token_ids, 0))


def other_logprob(step: MicroStep) -> MicroStep:
    first, *others = first_block(step).behaviour_logprobs
    return in_first_block(step, behaviour_logprobs=(first - 1e-9, *others))


def other_version(step: MicroStep) -> MicroStep:
    return in_first_block(step, versions=another(first_block(step).versions, 0))


def context_as_target(step: MicroStep) -> MicroStep:
    """The token before the first target is trained in its place."""
    first, *others = first_block(step).target_positions
    return in_first_block(step, target_positions=(first - 1, *others))


def one_path_more(step: MicroStep) -> MicroStep:
    block = first_block(step)
    end = len(block.token_ids)
    edge = Edge(start=end, stop=end + 1, parent=NO_EDGE)
    wider = replace(step, row_tokens=step.row_tokens + 1)
    return in_first_block(wider, token_ids=(*block.token_ids, 7), edges=(*block.edges, edge))


TAMPERS: dict[str, tuple[Tamper, str]] = {
    "a target's token": (other_target_token, "1 admitted paths are in no row"),
    "a context's token": (other_context, "admitted paths are in no row"),
    "a logprob": (other_logprob, "1 targets are not trained, 1 are too many"),
    "a version": (other_version, "1 targets are not trained, 1 are too many"),
    "which token is a target": (context_as_target, "1 targets are not trained, 1 are too many"),
    "a path": (one_path_more, r"micro-step \d of l1-s0000"),
    "an advantage": (lambda step: of_first_execution(step, advantage=7.0), "advantage: 7.0, not"),
    "a temperature": (
        lambda step: of_first_execution(step, temperature=0.5),
        "temperature: 0.5, not",
    ),
    "an execution's name": (
        lambda step: of_first_execution(step, execution="somebody"),
        "somebody",
    ),
    "the divisor": (lambda step: replace(step, normalizer=11), "divisor: 11, not 12"),
}


async def test_the_audit_passes_on_what_was_emitted() -> None:
    run = await trained_run()
    [batch] = audit_consumption(run.facts, run.calls, run.blobs)
    assert batch.num_targets == batch.step.statistics.num_targets > 0
    assert len(batch.micro_steps) > 1
    assert set(batch.roles) > {"main"}


@pytest.mark.parametrize("what", TAMPERS)
async def test_the_audit_finds_a_single_change(what: str) -> None:
    run = await trained_run()
    run.blobs.tamper, message = TAMPERS[what]
    with pytest.raises(AssertionError, match=message):
        audit_consumption(run.facts, run.calls, run.blobs)


async def test_the_audit_finds_a_trainer_that_counts_other_targets() -> None:
    run = await trained_run(trained=3)
    with pytest.raises(AssertionError, match="targets that trainers count: 3, not"):
        audit_consumption(run.facts, run.calls, run.blobs)


async def test_the_audit_finds_a_call_that_was_left_out_of_a_path() -> None:
    """The log has a record more than the tree that was packed."""
    run = await trained_run()
    [(execution, last)] = [
        (fact.body.execution, place)
        for place, fact in enumerate(run.calls)
        if isinstance(fact.body, CallRecorded) and fact.body.execution == f"{JOB}-g0000-e1"
    ][-1:]
    call = run.calls[last]
    body = call.body
    assert isinstance(body, CallRecorded)
    more = body.model_copy(update={"call": f"{execution}-more", "node": "more"})
    run.calls.append(replace(call, envelope=replace(call.envelope, body=more)))
    with pytest.raises(AssertionError, match=execution):
        audit_consumption(run.facts, run.calls, run.blobs)
