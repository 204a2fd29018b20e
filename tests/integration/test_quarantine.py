"""Records of calls that are damaged, out of order, doubled or missing: the error names the record,
its execution alone trains nothing, its siblings do, its group counts, and whoever asks is told."""

from __future__ import annotations

import asyncio
import io
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from gyre.adapters.blobs import BlobStore, DirectoryBlobStore
from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog import EventLog, Stream
from gyre.adapters.eventlog.jetstream import JetStreamEventLog
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Fact, Journal
from gyre.adapters.microsteps import decode_microstep
from gyre.cli.report_delivery import quarantine_table
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallRecorded, CallsSealed
from gyre.contracts.events.groups import (
    ExecutionQuarantined,
    GroupReady,
    MicroStepEmitted,
    StreamClosed,
)
from gyre.contracts.events.scores import Evaluated
from gyre.core.report import RunReport
from gyre.testkit.execution_world import until
from gyre.testkit.nats_server import NatsServer
from gyre.testkit.trajectory_world import Caller, World, small_spec
from gyre.trajectory.handlers import Trajectories

JOB, BATCH, N, VICTIM = "job", "l1-s0000", 4, 1
# More than one event of the log holds.
LARGE = 100_000

Spoil = Callable[[list[CallRecorded], CallsSealed], list[Body]]


def seal_of(execution: str, num_calls: int) -> CallsSealed:
    return CallsSealed(execution=execution, num_calls=num_calls, last_seq=0)


def changed(call: CallRecorded, /, **fields: object) -> CallRecorded:
    return call.model_copy(update=fields)


def other_tokens(call: CallRecorded) -> CallRecorded:
    first, *others = call.output_ids
    return changed(call, output_ids=((first + 1) % 500, *others))


def other_input(call: CallRecorded) -> CallRecorded:
    first, *others = call.segments
    moved = first.model_copy(update={"token_ids": first.token_ids[::-1]})
    return changed(call, segments=(moved, *others))


def with_version(call: CallRecorded, version: int) -> CallRecorded:
    [span] = call.spans
    return changed(call, spans=(span.model_copy(update={"version": version}),))


def without_number(call: CallRecorded) -> CallRecorded:
    return changed(call, output_logprobs=(float("-inf"), *call.output_logprobs[1:]))


# What becomes of an execution's three calls and their seal, and what is said of it.
FAULTS: dict[str, tuple[Spoil, str]] = {
    "a call is missing": (
        lambda c, seal: [c[0], c[2], seal],
        r"record \d+, call .*-c2: node .* is not in the tree",
    ),
    "the last call is missing": (
        lambda c, seal: [*c[:2], seal],
        r"record \d+, calls_sealed: sealed with 3 calls, 2 are recorded",
    ),
    "two calls are out of order": (
        lambda c, seal: [c[0], c[2], c[1], seal],
        r"record \d+, call .*-c2: node .* is not in the tree",
    ),
    "a call is recorded twice": (
        lambda c, seal: [*c, c[1], seal],
        r"record \d+, call .*-c1: it is recorded twice",
    ),
    "a call comes behind the seal": (
        lambda c, seal: [*c[:2], seal_of(seal.execution, 2), c[2]],
        r"record \d+, call .*-c2: it comes behind the seal",
    ),
    "a sampled token is another": (
        lambda c, seal: [c[0], other_tokens(c[1]), c[2], seal],
        r"record \d+, call .*-c1: the tokens of node .* are not those it is named for",
    ),
    "tokens that were read are others": (
        lambda c, seal: [c[0], other_input(c[1]), c[2], seal],
        r"record \d+, call .*-c1: the tokens of node .* are not those it is named for",
    ),
    "a logprob is missing": (
        lambda c, seal: [*c[:2], changed(c[2], output_logprobs=c[2].output_logprobs[1:]), seal],
        r"record \d+, call .*-c2: .*one logprob per output token is needed",
    ),
    "a logprob is no number": (
        lambda c, seal: [*c[:2], without_number(c[2]), seal],
        r"call .*-c2: a behaviour logprob is not finite",
    ),
    "a call has another temperature": (
        lambda c, seal: [*c[:2], changed(c[2], temperature=0.5), seal],
        r"sampled at temperature 0\.5: call .*-c2; 1\.0: call .*-c0",
    ),
    "the temperature is none": (
        lambda c, seal: [*(changed(call, temperature=0.0) for call in c), seal],
        r"call .*-c0: 0\.0 is no temperature",
    ),
    "the temperature is no number": (
        lambda c, seal: [*(changed(call, temperature=float("nan")) for call in c), seal],
        r"call .*-c0: nan is no temperature",
    ),
    "a policy version is none": (
        lambda c, seal: [*c[:2], with_version(c[2], 2**40), seal],
        r"call .*-c2: 1099511627776 is no policy version",
    ),
    "a record is another execution's": (
        lambda c, seal: [*c[:2], changed(c[2], execution="somebody"), seal],
        r"record \d+, call .*-c2: it is of another execution, 'somebody'",
    ),
    # These three are done to the log and to the blob store.
    "bytes are no event": (
        lambda c, seal: [*c, seal],
        r"GYRE_CALLS event \d+ on calls\.job\.exec\..*: event cannot be read: .*",
    ),
    "the seal is no event": (
        lambda c, seal: [*c],
        r"GYRE_CALLS event \d+ on calls\.job\.exec\..*: event cannot be read: .*",
    ),
    "a body is lost": (
        lambda c, seal: [*c[:2], long(c[2], seal.execution), seal],
        r"GYRE_CALLS event \d+ on calls\.job\.exec\..*, call_recorded .*: .* no blob .*",
    ),
}
B = len(FAULTS)


def long(call: CallRecorded, execution: str) -> CallRecorded:
    caller = Caller(execution, random.Random(execution))
    caller.call(call.parent, num_input=LARGE)
    [event] = caller.events
    assert isinstance(event, CallRecorded)
    return changed(event, call=call.call)


def three_calls(execution: str) -> list[CallRecorded]:
    caller = Caller(execution, random.Random(execution))
    caller.call(caller.call(caller.call(None)))
    return [event for event in caller.events if isinstance(event, CallRecorded)]


class Bed:
    """One job with a group for each fault; the second of its executions has it."""

    def __init__(self, log: EventLog, root: Path) -> None:
        self.log = log
        self.blobs: BlobStore = DirectoryBlobStore(root / "blobs")
        self.journal = Journal(log, SystemClock(), self.blobs)
        self.spec = small_spec(groups_per_step=B)
        self.world = World(self.journal, JOB, self.spec)

    def victims(self) -> dict[str, str]:
        """Execution -> its fault."""
        return {
            self.world.plan(number).executions[VICTIM]: fault for number, fault in enumerate(FAULTS)
        }

    async def play(self) -> None:
        await self.world.submit()
        await self.world.dispatch(range(B))
        for number, fault in enumerate(FAULTS):
            for place, execution in enumerate(self.world.plan(number).executions):
                calls = three_calls(execution)
                events: list[Body] = [*calls, seal_of(execution, len(calls))]
                if place == VICTIM:
                    events = FAULTS[fault][0](calls, seal_of(execution, len(calls)))
                await self._finish(execution, events, fault if place == VICTIM else "")
        await self.world.open_batch(BATCH)
        await self.world.join(BATCH, 0)

    async def _finish(self, execution: str, events: list[Body], fault: str) -> None:
        subject = subjects.calls(JOB, execution)
        for event in events:
            sequence = await self.world.say(subject, event)
            if fault == "bytes are no event" and isinstance(event, CallRecorded):
                await self._say_garbage(subject, sequence)
            if fault == "a body is lost" and len(event.model_dump_json()) > LARGE:
                self._lose_body()
        if fault == "the seal is no event":
            await self._say_garbage(subject, sequence)
        score = Evaluated(
            execution=execution,
            attempt=1,
            evaluation=f"{execution}-v1",
            artifact="0" * 64,
            branch="main",
            reward=float(execution.endswith(("e0", f"e{VICTIM}"))),
        )
        await self.world.say(subjects.score(JOB, execution), score)

    async def _say_garbage(self, subject: str, sequence: int) -> None:
        garbage = f"garbage-{subject}-{sequence}"
        await self.log.append(subject, b'{"id": 7}', event_id=garbage, expected=sequence)

    def _lose_body(self) -> None:
        assert isinstance(self.blobs, DirectoryBlobStore)
        [body] = [path for path in self.blobs.root.rglob("*") if path.is_file()]
        body.unlink()

    async def facts(self) -> list[Fact]:
        return [fact async for fact in self.journal.read(Stream.FACTS)]

    async def claim_all(self) -> bool:
        """As a cell does; whether there was anything to claim."""
        bodies = [fact.body for fact in await self.facts()]
        claimed = {body.index for body in bodies if body.TYPE == "micro_step_claimed"}
        emitted = {body.index for body in bodies if isinstance(body, MicroStepEmitted)}
        for index in sorted(emitted - claimed):
            await self.world.claim(BATCH, index)
        return bool(emitted - claimed)

    async def closed(self) -> bool:
        await self.claim_all()
        return any(isinstance(fact.body, StreamClosed) for fact in await self.facts())


async def assert_quarantined(bed: Bed) -> None:
    """Each victim once, with its fault; everybody else is trained."""
    facts = await bed.facts()
    bodies = [fact.body for fact in facts]
    said = [body for body in bodies if isinstance(body, ExecutionQuarantined)]
    victims = bed.victims()
    assert sorted(body.execution for body in said) == sorted(victims)
    for body in said:
        assert body.group == body.execution.rpartition("-")[0]
        fault = victims[body.execution]
        assert re.fullmatch(FAULTS[fault][1], body.error), (fault, body.error)
    steps = [
        decode_microstep(bed.blobs.get(body.digest))
        for body in bodies
        if isinstance(body, MicroStepEmitted)
    ]
    trained = [info.execution for step in steps for info in step.executions if info.num_targets]
    everybody = {name for number in range(B) for name in bed.world.plan(number).executions}
    assert sorted(trained) == sorted(everybody - victims.keys())
    assert {step.normalizer for step in steps} == {B * N}
    [closed] = [body for body in bodies if isinstance(body, StreamClosed)]
    assert len(closed.groups) == B
    assert closed.num_admitted_targets == closed.num_targets == len(trained) * 3 * 8
    ready = [body for body in bodies if isinstance(body, GroupReady)]
    assert [one.disposition for body in ready for one in body.outcomes] == ["valid"] * (B * N)
    assert_reported(facts, said)


def assert_reported(facts: list[Fact], said: list[ExecutionQuarantined]) -> None:
    report = RunReport(JOB)
    for fact in facts:
        report.fold_fact(fact.sequence, fact.envelope)
    assert report.summary()["quarantined"] == [body.model_dump() for body in said]
    [alarm] = [line for line in report.alarms() if "quarantine" in line]
    assert alarm.startswith(f"{B} executions are in quarantine")
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(quarantine_table(report.deliveries))
    shown = console.export_text()
    assert all(body.execution in shown for body in said)


@pytest.mark.timeout(120)
def test_each_fault_quarantines_its_execution_alone_as_the_records_come(
    nats: NatsServer, tmp_path: Path
) -> None:
    async def scenario() -> None:
        log = JetStreamEventLog(nats.url)
        bed = Bed(log, tmp_path)
        ready = asyncio.Event()
        running = asyncio.create_task(Trajectories(bed.journal, bed.blobs).run(ready.set))
        try:
            await ready.wait()
            await bed.play()
            await until(bed.closed, 60)
        finally:
            running.cancel()
            [result] = await asyncio.gather(running, return_exceptions=True)
            assert isinstance(result, asyncio.CancelledError), result
            await assert_quarantined(bed)
            await log.close()

    asyncio.run(scenario())


async def test_a_service_that_dies_after_each_event_says_the_same(tmp_path: Path) -> None:
    bed = Bed(MemoryEventLog(), tmp_path)
    await bed.play()
    while True:
        service = Trajectories(bed.journal, bed.blobs)
        await service.catch_up()
        if await service.pay_one() is None and not await bed.claim_all():
            break
    await assert_quarantined(bed)
