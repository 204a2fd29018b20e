"""The scheduler's snapshots: one that fits its log is gone on from, any other is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.base import Stream
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.adapters.snapshots import NUM_KEPT, SnapshotStore
from gyre.contracts import subjects
from gyre.contracts.events import scheduling as sched
from gyre.core.scheduling import JobState, evolve
from gyre.scheduler.folded import Folded, dump_folded, load_folded
from gyre.scheduler.snapshots import Snapshots
from gyre.scheduler.views import job_view
from gyre.testkit.scheduling_world import World
from gyre.testkit.specs import job_spec


async def lived(log: MemoryEventLog, *, job: str = "job", num_facts: int | None = None) -> None:
    """The first facts of one job's whole life, appended to `log`."""
    world = World(job_spec(heldout=False, num_steps=2), lambda number: 1.0 + number % 3)
    world.run()
    journal = Journal(log, SystemClock())
    for place, (_, _, body) in enumerate(world.log[:num_facts]):
        subject = subjects.sched(job)
        await journal.append(subject, body, job=job, cause=(job, place), expected=None)


async def folded_of(log: MemoryEventLog, *, until: int | None = None) -> Folded:
    folded = Folded()
    async for fact in Journal(log, SystemClock()).read(Stream.FACTS, until=until):
        folded.fold(fact)
    return folded


async def with_snapshot(directory: Path, log: MemoryEventLog, *, until: int) -> Path:
    snapshots = Snapshots(SnapshotStore(directory), log)
    await snapshots.write(*snapshots.take(await folded_of(log, until=until)))
    return SnapshotStore(directory).newest_first()[0]


async def test_a_restart_goes_on_from_the_newest_snapshot(tmp_path: Path) -> None:
    log = MemoryEventLog()
    await lived(log, num_facts=60)
    for until in (20, 45):
        await with_snapshot(tmp_path, log, until=until)
    found = await Snapshots(SnapshotStore(tmp_path), log).newest()
    assert found.sequence == 45
    assert dump_folded(found) == dump_folded(await folded_of(log, until=45))
    async for fact in Journal(log, SystemClock()).read(Stream.FACTS, after=45):
        found.fold(fact)
    assert dump_folded(found) == dump_folded(await folded_of(log))


async def test_without_snapshots_the_state_is_empty(tmp_path: Path) -> None:
    found = await Snapshots(SnapshotStore(tmp_path / "none"), MemoryEventLog()).newest()
    assert found.sequence == 0


async def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    log = MemoryEventLog()
    await lived(log, num_facts=60)
    for until in (10, 20, 30, 40):
        await with_snapshot(tmp_path, log, until=until)
    assert [int(path.stem) for path in SnapshotStore(tmp_path).newest_first()] == [40, 30]
    assert NUM_KEPT == 2
    assert len(os.listdir(tmp_path)) == NUM_KEPT


def _flipped(path: Path) -> None:
    data = path.read_bytes()
    _overwrite(path, data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])


def _cut(path: Path) -> None:
    _overwrite(path, path.read_bytes()[:-100])


def _emptied(path: Path) -> None:
    _overwrite(path, b"")


def _headless(path: Path) -> None:
    _overwrite(path, path.read_bytes().partition(b"\n")[2])


def _header(path: Path, **changed: object) -> None:
    first, _, body = path.read_bytes().partition(b"\n")
    _overwrite(path, json.dumps({**json.loads(first), **changed}).encode() + b"\n" + body)


def _overwrite(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_flipped, "digest"),
        (_cut, "digest"),
        (_emptied, "not readable"),
        (_headless, "not readable"),
        (lambda path: _header(path, format=99), "format 99"),
        (lambda path: _header(path, code="0"), "other code"),
        (lambda path: _header(path, sequence=12), "another event at 12"),
        (lambda path: _header(path, origin="0"), "another event at 1"),
        (lambda path: _header(path, sequence=10_000), "ends at 60"),
        (lambda path: _header(path, sequence=0), "no event at 0"),
        (lambda path: _header(path, stream="OTHER"), "not readable"),
    ],
)
async def test_a_snapshot_that_does_not_fit_is_refused_with_its_reason(
    tmp_path: Path, damage: Callable[[Path], None], reason: str
) -> None:
    log = MemoryEventLog()
    await lived(log, num_facts=60)
    await with_snapshot(tmp_path, log, until=20)
    damage(await with_snapshot(tmp_path, log, until=45))
    with capture_logs() as lines:
        found = await Snapshots(SnapshotStore(tmp_path), log).newest()
    assert found.sequence == 20
    refused = [line for line in lines if line["event"] == "snapshot_refused"]
    assert len(refused) == 1
    assert reason in refused[0]["reason"]


@pytest.mark.parametrize("num_facts", [30, 60])
async def test_the_snapshot_of_another_log_is_refused(tmp_path: Path, num_facts: int) -> None:
    log, other = MemoryEventLog(), MemoryEventLog()
    await lived(log, num_facts=60)
    await lived(other, job="other", num_facts=num_facts)
    await with_snapshot(tmp_path, log, until=45)
    with capture_logs() as lines:
        found = await Snapshots(SnapshotStore(tmp_path), other).newest()
    assert found.sequence == 0
    assert [line["event"] for line in lines] == ["snapshot_refused"]


async def test_a_new_log_pushes_the_snapshots_of_the_old_one_out(tmp_path: Path) -> None:
    old, new = MemoryEventLog(), MemoryEventLog()
    await lived(old, num_facts=60)
    await lived(new, job="new", num_facts=40)
    for until in (50, 60):
        await with_snapshot(tmp_path, old, until=until)
    for until in (10, 20):
        await with_snapshot(tmp_path, new, until=until)
        assert (await Snapshots(SnapshotStore(tmp_path), new).newest()).sequence == until
    assert sorted(int(Path(name).stem) for name in os.listdir(tmp_path)) == [10, 20]


async def test_one_is_due_after_so_many_facts_one_at_a_time_and_not_at_once_after_a_restart(
    tmp_path: Path,
) -> None:
    log = MemoryEventLog()
    await lived(log, num_facts=60)
    snapshots = Snapshots(SnapshotStore(tmp_path), log, every=30)
    assert not snapshots.due(await folded_of(log, until=29))
    assert snapshots.due(await folded_of(log, until=30))
    taken = snapshots.take(await folded_of(log, until=30))
    assert not snapshots.due(await folded_of(log, until=60))  # the first is not on the disk yet
    await snapshots.write(*taken)
    assert snapshots.due(await folded_of(log, until=60))
    await snapshots.write(*snapshots.take(await folded_of(log, until=40)))
    assert not snapshots.due(await folded_of(log, until=60))
    again = Snapshots(SnapshotStore(tmp_path), log, every=30)
    assert not again.due(await again.newest())


async def test_a_disk_that_takes_none_costs_the_snapshot_only(tmp_path: Path) -> None:
    log = MemoryEventLog()
    await lived(log, num_facts=20)
    (tmp_path / "file").write_text("")
    snapshots = Snapshots(SnapshotStore(tmp_path / "file"), log)
    with capture_logs() as lines:
        await snapshots.write(*snapshots.take(await folded_of(log)))
    assert [line["event"] for line in lines] == ["snapshot_failed"]


async def test_a_finished_job_looks_the_same_without_its_groups() -> None:
    log = MemoryEventLog()
    await lived(log)
    kept = JobState(job="job")
    async for fact in Journal(log, SystemClock()).read(Stream.FACTS):
        evolve(kept, fact.sequence, fact.body)
    let_go = (await folded_of(log)).cluster.jobs["job"]
    assert kept.groups
    assert not let_go.groups
    assert job_view(let_go) == job_view(kept)
    assert job_view(let_go).mean_staleness is not None


async def test_orders_that_are_owed_are_sent_again_after_a_restart() -> None:
    log = MemoryEventLog()
    await lived(log)
    folded = Folded()
    async for fact in Journal(log, SystemClock()).read(Stream.FACTS):
        folded.fold(fact)
        if isinstance(fact.body, sched.StartOrdered):
            break
    sent = list(folded.orders.due(folded.cluster.jobs, 0.0))
    assert sent
    loaded = load_folded(dump_folded(folded))
    again = list(loaded.orders.due(loaded.cluster.jobs, 0.0))
    assert [order.message_id() for order in again] == [order.message_id() for order in sent]
