"""Rows of tree_nodes and trees, on a real Postgres: the tree, node by node, whatever happens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

import gyre.adapters.journal as journal_module
import gyre.trajectory.projections as projections_module
from gyre.adapters.blobs import DirectoryBlobStore
from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog import Stream
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import EventLost, Fact, Journal
from gyre.adapters.postgres import DatabaseError, connect, migrate
from gyre.adapters.tables import tree_nodes, trees
from gyre.contracts import subjects
from gyre.contracts.codec import BodyElsewhere, decode
from gyre.contracts.envelope import Body
from gyre.contracts.events.calls import CallsSealed
from gyre.core.causes import causes
from gyre.core.records import RecordError, fold_record
from gyre.core.tree import Tree, TreeError, fold
from gyre.embedded import postgres
from gyre.testkit.branching_calls import calls_of_contexts
from gyre.testkit.proxy_world import JOB
from gyre.testkit.trajectory_world import Caller, calls_of
from gyre.testkit.tree_case import TREE_CASE
from gyre.testkit.tree_projection import (
    assert_same_tree,
    caused,
    projecting,
    rows_of_tree,
    say_calls,
    until_projected,
)
from gyre.trajectory.tree_rows import TreeRows


async def count(database: AsyncEngine) -> int:
    async with database.connect() as connection:
        return int(await connection.scalar(select(func.count()).select_from(tree_nodes)) or 0)


class Failing(TreeRows):
    """Every other write fails when everything is written and nothing committed."""

    writes = 0

    async def write(
        self, connection: AsyncConnection, facts: Sequence[Fact], lost: Sequence[EventLost] = ()
    ) -> None:
        await super().write(connection, facts, lost)
        self.writes += 1
        if self.writes % 2:
            raise DatabaseError("the disk is full")


async def test_a_write_that_could_not_commit_is_made_again_whole(
    database: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projections_module, "MOST_IN_ONE_COMMIT", 3)
    log = MemoryEventLog()
    journal, writer = Journal(log, SystemClock()), Failing()
    events = {f"e{seed}": calls_of(f"e{seed}", seed) for seed in range(5)}
    for name, calls in events.items():
        await say_calls(journal, name, calls)
    async with projecting(journal, database, writer):
        await until_projected(log, database)
    assert writer.writes > 10
    for name, calls in events.items():
        assert_same_tree(await rows_of_tree(database, name), fold(calls))


async def test_two_projections_of_one_log_write_each_row_once(database: AsyncEngine) -> None:
    log = MemoryEventLog()
    journal = Journal(log, SystemClock())
    events = {f"e{seed}": calls_of(f"e{seed}", seed) for seed in range(8)}
    async with projecting(journal, database), projecting(journal, database):
        for name, calls in events.items():
            await say_calls(journal, name, calls)
            await until_projected(log, database)
        await until_projected(log, database)
        for name, calls in events.items():
            assert_same_tree(await rows_of_tree(database, name), fold(calls))
    assert await count(database) == sum(len(fold(calls).nodes) for calls in events.values())


async def test_a_restart_between_any_two_calls_changes_nothing(
    database: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every commit by a process of its own, which knows no more than the rows."""
    monkeypatch.setattr(projections_module, "MOST_IN_ONE_COMMIT", 1)
    log = MemoryEventLog()
    journal = Journal(log, SystemClock())
    calls = calls_of("e", 0, attempt=2)
    for number, event in enumerate(calls):
        await journal.append(
            subjects.calls(JOB, "e"), event, job=JOB, cause=("e", number), expected=None
        )
        async with projecting(journal, database):
            await until_projected(log, database)
    assert_same_tree(await rows_of_tree(database, "e"), fold(calls))


async def test_the_papers_case_comes_back_with_its_causes(database: AsyncEngine) -> None:
    log = MemoryEventLog()
    journal = Journal(log, SystemClock())
    calls = calls_of_contexts("f3ad38e5", TREE_CASE)
    await say_calls(journal, "f3ad38e5", calls)
    async with projecting(journal, database):
        await until_projected(log, database)
    tree = fold(calls)
    assert_same_tree(await rows_of_tree(database, "f3ad38e5"), tree)
    wanted = {node: (one.node, one.kind) for node, one in causes(tree).items()}
    assert await caused(database, "f3ad38e5") == wanted
    assert wanted


def first_error(execution: str, facts: list[Fact]) -> str | None:
    tree = Tree()
    for fact in facts:
        try:
            fold_record(tree, execution, fact.sequence, fact.body)
        except RecordError as error:
            return str(error)
    return None


def without_parent(calls: list[Body]) -> list[Body]:
    return calls[1:]


def twice(calls: list[Body]) -> list[Body]:
    return [calls[0], *calls]


def sealed_with_others(calls: list[Body]) -> list[Body]:
    return [*calls[:-1], CallsSealed(execution="bad", num_calls=77, last_seq=0)]


def behind_the_seal(calls: list[Body]) -> list[Body]:
    seal = CallsSealed(execution="bad", num_calls=1, last_seq=0)
    return [calls[0], seal, *calls[1:]]


def behind_the_seal_of_a_sub_agent(calls: list[Body]) -> list[Body]:
    caller = Caller("bad", random.Random(7))
    caller.call(None)
    caller.call(None, role="sub-agent")
    seal = CallsSealed(execution="bad", num_calls=2, last_seq=0)
    return [*caller.events, seal, *calls[1:]]


@pytest.mark.parametrize(
    "spoil",
    [
        without_parent,
        twice,
        sealed_with_others,
        behind_the_seal,
        behind_the_seal_of_a_sub_agent,
    ],
)
async def test_records_that_do_not_fit_damage_their_execution_alone(
    database: AsyncEngine, spoil: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    log = MemoryEventLog()
    journal = Journal(log, SystemClock())
    good, bad = calls_of("good", 1), spoil(calls_of("bad", 0))
    await say_calls(journal, "good", good[:2])
    await say_calls(journal, "bad", bad)
    async with projecting(journal, database):
        await until_projected(log, database)
        for number, event in enumerate(good[2:]):
            await journal.append(
                subjects.calls(JOB, "good"), event, job=JOB, cause=("late", number), expected=None
            )
        await until_projected(log, database)
    assert_same_tree(await rows_of_tree(database, "good"), fold(good))
    error = first_error(
        "bad", [f async for f in journal.read(Stream.CALLS, (f"calls.{JOB}.exec.bad",))]
    )
    assert error is not None
    with pytest.raises(TreeError) as raised:
        await rows_of_tree(database, "bad")
    assert str(raised.value) == error
    assert capsys.readouterr().out.count("tree_damaged") == 1
    with pytest.raises(TreeError, match="no call of nobody is in Postgres"):
        await rows_of_tree(database, "nobody")


async def test_a_lost_body_damages_its_execution_alone_and_is_named(
    database: AsyncEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "MAX_EVENT_BYTES", 450)
    log, blobs = MemoryEventLog(), DirectoryBlobStore(tmp_path / "blobs")
    journal = Journal(log, SystemClock(), blobs)
    events = {name: calls_of(name, seed) for seed, name in enumerate(("bad", "good"))}
    for name, calls in events.items():
        await say_calls(journal, name, calls)
    [recorded, *_] = [r async for r in log.read(Stream.CALLS, subjects=(f"calls.{JOB}.exec.bad",))]
    with pytest.raises(BodyElsewhere) as elsewhere:
        decode(recorded.data)
    digest = elsewhere.value.reference.digest
    blobs.path(digest).unlink()
    async with projecting(journal, database):
        await until_projected(log, database)
    assert_same_tree(await rows_of_tree(database, "good"), fold(events["good"]))
    with pytest.raises(TreeError, match=digest):
        await rows_of_tree(database, "bad")
    async with database.connect() as connection:
        [row] = await connection.execute(select(trees).where(trees.c.execution == "bad"))
    assert (row.job, row.num_nodes, row.num_calls, row.sealed) == (JOB, 0, 0, False)


async def test_what_lies_on_no_executions_subject_is_left_alone(database: AsyncEngine) -> None:
    log = MemoryEventLog()
    journal = Journal(log, SystemClock())
    await log.append("calls.x.y", b"not an event", event_id="stray", expected=None)
    calls = calls_of("good", 1)
    await say_calls(journal, "good", calls)
    async with projecting(journal, database):
        await until_projected(log, database)
    assert_same_tree(await rows_of_tree(database, "good"), fold(calls))


async def test_rows_go_on_when_postgres_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projections_module, "LONGEST_PAUSE_S", 0.5)
    log = MemoryEventLog()
    journal = Journal(log, SystemClock())
    events = {f"e{seed}": calls_of(f"e{seed}", seed) for seed in range(4)}
    names = list(events)
    with postgres.running(tmp_path) as server:
        migrate(server.url)
        engine = connect(server.url)
        projection = projecting(journal, engine)
        await projection.__aenter__()
        for name in names[:2]:
            await say_calls(journal, name, events[name])
        await until_projected(log, engine)
    for name in names[2:]:  # while it is gone
        await say_calls(journal, name, events[name])
    with postgres.running(tmp_path):
        await until_projected(log, engine)
        for name, calls in events.items():
            assert_same_tree(await rows_of_tree(engine, name), fold(calls))
        await projection.__aexit__(None, None, None)
        await engine.dispose()
    postgres.remove(server)
