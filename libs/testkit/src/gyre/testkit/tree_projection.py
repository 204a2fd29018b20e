"""The projection of trees into Postgres, run by a test, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncEngine

from gyre.adapters.eventlog import Stream
from gyre.adapters.eventlog.base import EventLog
from gyre.adapters.journal import Journal
from gyre.adapters.postgres import Projector
from gyre.adapters.tables import projection_checkpoints, tree_nodes
from gyre.contracts import subjects
from gyre.contracts.envelope import Body
from gyre.core.tree import Tree
from gyre.testkit.execution_world import until
from gyre.trajectory.projections import Projection
from gyre.trajectory.tree_reading import read_tree
from gyre.trajectory.tree_rows import TreeRows

NAME = "trajectory.tree_nodes"
DEADLINE_S = 60.0


@asynccontextmanager
async def projecting(
    journal: Journal, engine: AsyncEngine, writer: TreeRows | None = None
) -> AsyncIterator[None]:
    """The service's projection, while the block lasts; its errors are the test's."""
    projection = Projection(
        NAME,
        Stream.CALLS,
        (),
        writer or TreeRows(),
        journal=journal,
        projector=Projector(engine),
    )
    running = asyncio.create_task(projection.run())
    try:
        yield
    finally:
        running.cancel()
        [ended] = await asyncio.gather(running, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError), ended


async def until_projected(log: EventLog, engine: AsyncEngine) -> None:
    """Waits for what lies in the log now. Raises TimeoutError."""
    head = await log.head(Stream.CALLS)

    async def there() -> bool:
        return await Projector(engine).checkpoint(NAME) == head

    await until(there, DEADLINE_S)


async def forget_checkpoint(engine: AsyncEngine) -> None:
    """As a user does who wants the rows made anew."""
    async with engine.begin() as connection:
        await connection.execute(delete(projection_checkpoints))


async def rows_of_tree(engine: AsyncEngine, execution: str) -> Tree:
    """Read back. Raises TreeError where they are no tree."""
    async with engine.connect() as connection:
        return await read_tree(connection, execution)


def assert_same_tree(found: Tree, wanted: Tree) -> None:
    """Node by node, in the same order."""
    assert list(found.nodes) == list(wanted.nodes)
    for node in wanted.nodes.values():
        assert found.nodes[node.id] == node
        assert found.children(node.id) == wanted.children(node.id)
    assert found.children(None) == wanted.children(None)
    assert (found.calls, found.sealed) == (wanted.calls, wanted.sealed)


async def caused(engine: AsyncEngine, execution: str) -> dict[str, tuple[str, str]]:
    """By node that has a cause: the causing one and the kind."""
    column = tree_nodes.c
    wanted = select(column.node_id, column.caused_by, column.cause).where(
        column.execution == execution, column.caused_by.is_not(None)
    )
    async with engine.connect() as connection:
        return {node: (by, kind) for node, by, kind in await connection.execute(wanted)}


async def say_calls(
    journal: Journal, execution: str, events: Sequence[Body], *, job: str = "job-test"
) -> None:
    """Appends them, unguarded, as the execution's calls."""
    for number, event in enumerate(events):
        await journal.append(
            subjects.calls(job, execution),
            event,
            job=job,
            cause=(execution, number),
            expected=None,
        )
