"""A fact that lies in the log and cannot be read: every reader is given the same in its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gyre.adapters.archive import Hider, read_archive, write_archive
from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.base import Stream
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import BodyLost, EventDamaged, Fact, Journal
from gyre.contracts import subjects
from gyre.contracts.codec import NewerEvent, encode
from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallUndelivered
from gyre.contracts.events.lost import FactLost
from gyre.contracts.events.requests import CancelRequested

SCHED = "facts.j.sched"


def asked(reason: str) -> Body:
    return CancelRequested(reason=reason)


async def append(journal: Journal, reason: str, subject: str = SCHED) -> int:
    return await journal.append(
        subject, asked(reason), job="j", cause=(reason[:80],), expected=None
    )


async def facts(journal: Journal) -> list[Fact]:
    return [fact async for fact in journal.read(Stream.FACTS)]


@pytest.mark.parametrize("data", [b"no JSON", b'{"id": 7}', b""])
@pytest.mark.parametrize(
    ("subject", "job", "execution"),
    [
        (SCHED, "j", None),
        ("facts.j.cell.3", "j", None),
        ("facts.j.group.g-1", "j", None),
        ("facts.j.batch.l1-s0001.claims", "j", None),
        ("facts.j.exec.e-1.run", "j", "e-1"),
        ("facts.j.exec.e-1.score", "j", "e-1"),
        ("facts.cluster.cell.3", subjects.CLUSTER, None),
        ("facts.j.no_such_place", subjects.CLUSTER, None),
    ],
)
async def test_bytes_that_are_no_event_are_given_as_a_lost_fact_in_their_place(
    subject: str, job: str, execution: str | None, data: bytes
) -> None:
    log = MemoryEventLog()
    journal = Journal(log, SystemClock())
    await append(journal, "before")
    sequence = await log.append(subject, data, event_id="garbage", expected=None)
    await append(journal, "after")
    before, lost, after = await facts(journal)
    assert (before.body, after.body) == (asked("before"), asked("after"))
    assert (lost.sequence, lost.job, lost.envelope.aggregate) == (sequence, job, subject)
    assert isinstance(lost.body, FactLost)
    assert lost.body.execution == execution
    assert lost.body.error.startswith(f"GYRE_FACTS event {sequence} on {subject}: event cannot be")
    [raw] = [r async for r in log.read(Stream.FACTS, after=sequence - 1, until=sequence)]
    assert (lost.envelope.id, lost.envelope.time) == (raw.event_id, raw.time)
    assert await facts(Journal(log, SystemClock())) == [before, lost, after]


async def test_a_fact_whose_body_is_gone_is_lost_to_all_who_share_the_store(tmp_path: Path) -> None:
    log, blobs = MemoryEventLog(), DirectoryBlobStore(tmp_path / "blobs")
    journal = Journal(log, SystemClock(), blobs)
    await append(journal, "x" * 300_000)
    [blob] = [path for path in blobs.root.rglob("*") if path.is_file()]
    blob.unlink()
    [lost] = await facts(journal)
    assert isinstance(lost.body, FactLost)
    assert f"GYRE_FACTS event 1 on {SCHED}" in lost.body.error
    assert blob.name in lost.body.error
    with pytest.raises(BodyLost, match="without a blob store"):  # others may have it
        await facts(Journal(log, SystemClock()))


async def test_an_event_that_names_another_subject_is_none() -> None:
    log = MemoryEventLog()
    journal = Journal(log, SystemClock())
    await append(journal, "once")
    [fact] = await facts(journal)
    await log.append("facts.j.exec.e.run", encode(fact.envelope), event_id="x", expected=None)
    _, lost = await facts(journal)
    assert lost.body == FactLost(
        execution="e", error=f"GYRE_FACTS event 2 on facts.j.exec.e.run: it is an event of {SCHED}"
    )


async def test_a_call_that_names_another_subject_is_damaged() -> None:
    log = MemoryEventLog()
    journal = Journal(log, SystemClock())
    call = CallUndelivered(call="c", execution="e", reason="gone")
    await journal.append("calls.j.exec.e", call, job="j", cause=("c",), expected=0)
    [raw] = [r async for r in log.read(Stream.CALLS)]
    await log.append("calls.j.exec.f", raw.data, event_id="x", expected=0)
    with pytest.raises(EventDamaged, match=r"on calls\.j\.exec\.f: it is an event of calls"):
        [fact async for fact in journal.read(Stream.CALLS)]


@pytest.mark.parametrize("change", [{"type": "not_invented_yet"}, {"version": 99}])
async def test_a_fact_of_a_later_release_is_not_lost_and_its_place_is_named(
    change: dict[str, object],
) -> None:
    log = MemoryEventLog()
    journal = Journal(log, SystemClock())
    await append(journal, "now")
    [fact] = await facts(journal)
    later = json.dumps(json.loads(encode(fact.envelope)) | change).encode()
    await log.append(SCHED, later, event_id="later", expected=None)
    with pytest.raises(NewerEvent, match=rf"GYRE_FACTS event 2 on {SCHED}: .*this release"):
        await facts(journal)


async def test_a_lost_fact_is_logged_once_however_often_it_is_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = MemoryEventLog()
    journal = Journal(log, SystemClock())
    await log.append(SCHED, b"no JSON", event_id="garbage", expected=None)
    for _ in range(3):
        await facts(journal)
    said = capsys.readouterr()
    assert (said.out + said.err).count("fact_lost") == 1


async def test_an_exported_run_holds_it_as_it_was_given(tmp_path: Path) -> None:
    log = MemoryEventLog()
    journal = Journal(log, SystemClock())
    await append(journal, "before")
    await log.append(SCHED, b"no JSON", event_id="0" * 32, expected=None)
    path = tmp_path / "run.gz"
    await write_archive(
        path,
        job="j",
        release="1",
        facts=journal.read(Stream.FACTS),
        calls=journal.read(Stream.CALLS),
        hider=Hider(),
    )
    assert [fact for _, fact in read_archive(path)] == await facts(journal)


def test_what_names_no_place_of_the_table_is_the_clusters() -> None:
    for subject in ("facts.j", "facts.j.exec.e.fate", "facts.j.cell.x", "work.j.sched", "facts"):
        assert subjects.owner_of(subject) == (subjects.CLUSTER, None)
    assert subjects.owner_of(subjects.calls("j", "e")) == ("j", "e")
