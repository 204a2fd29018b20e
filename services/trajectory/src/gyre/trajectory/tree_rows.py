"""Rows of `tree_nodes` and `trees`: an execution's tree, node by node, as its calls come.

Nodes are added with COPY and never changed, but for the provenance of a call whose answer did not
arrive. What does not fit the tree, or is lost, damages its execution alone: `trees.damaged` says
why, and nothing is added to it from then on. `tree_reading` gives the tree back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Integer, bindparam, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from gyre.adapters.failpoints import failpoint
from gyre.adapters.journal import EventLost, Fact
from gyre.adapters.logging import get_logger
from gyre.adapters.postgres import copy_rows
from gyre.adapters.tables import tree_nodes, trees
from gyre.contracts.subjects import owner_of
from gyre.core.causes import causes
from gyre.core.records import RecordError
from gyre.trajectory.tree_reading import read_outline
from gyre.trajectory.tree_shapes import SAMPLED, UNDELIVERED, Row, Shape, is_plain

_TOKEN_BYTES = 4
# Of shapes that are kept, 250 B each: two thousand executions with as many nodes, a fifth of what
# their trees take. Those of others are read back from their rows.
_MOST_NODES = 4_000_000


@dataclass(slots=True)
class _News:
    """What a write changes beside new rows. undelivered: nodes, by execution, whose call's answer
    did not arrive. sealed: executions that may have causes now."""

    undelivered: list[tuple[str, str]] = field(default_factory=list)
    sealed: list[str] = field(default_factory=list)


class TreeRows:
    """Writes both tables (`projections.Writer`). Keeps the shapes of executions that call."""

    def __init__(self) -> None:
        self._shapes: dict[str, Shape] = {}

    async def clear(self, connection: AsyncConnection) -> None:
        self.forget()
        await connection.execute(text("TRUNCATE tree_nodes, trees"))

    def forget(self) -> None:
        self._shapes.clear()

    async def write(
        self, connection: AsyncConnection, facts: Sequence[Fact], lost: Sequence[EventLost] = ()
    ) -> None:
        # What lies on a subject that is no execution's is nobody's record.
        lost = [error for error in lost if owner_of(error.subject)[1] is not None]
        subjects = [error.subject for error in lost] + [fact.envelope.aggregate for fact in facts]
        concerned = dict(map(_execution_and_job, subjects))
        await self._read_shapes(connection, concerned)
        for error in lost:
            self._damage(_execution_and_job(error.subject)[0], error)
        news = _News()
        await copy_rows(connection, tree_nodes, self._new_rows(facts, news))
        failpoint("trajectory.rows_copied")
        await _undeliver(connection, news.undelivered)
        await _upsert(connection, [self._shapes[execution].row() for execution in concerned])
        for execution in news.sealed:
            if self._shapes[execution].damaged is None:  # by a record behind the seal
                await _write_causes(connection, execution)
        self._drop_some(concerned)

    def _new_rows(self, facts: Sequence[Fact], news: _News) -> Iterator[Row]:
        """Made as they are asked for: Postgres takes the first while the next are made."""
        for fact in facts:
            yield from self._fold(_execution_and_job(fact.envelope.aggregate)[0], fact, news)

    def _fold(self, execution: str, fact: Fact, news: _News) -> Sequence[Row]:
        """Rows of its new nodes. Mutates `news`."""
        shape = self._shapes[execution]
        if shape.damaged is not None:
            return ()
        was_sealed = shape.sealed
        try:
            rows, undelivered = shape.fold(fact.sequence, fact.body)
        except RecordError as error:
            self._damage(execution, error)
            return ()
        if undelivered is not None:
            news.undelivered.append((execution, undelivered))
        if shape.sealed and not was_sealed and not shape.is_plain:
            news.sealed.append(execution)
        return rows

    def _damage(self, execution: str, error: Exception) -> None:
        shape = self._shapes[execution]
        if shape.damaged is None:
            shape.damaged = str(error).replace("\0", "\\0")  # Postgres keeps no NUL
            get_logger().error("tree_damaged", execution=execution, error=shape.damaged)

    async def _read_shapes(self, connection: AsyncConnection, concerned: dict[str, str]) -> None:
        """Of those that are not kept, from their rows; a new one for who has none."""
        missing = [execution for execution in concerned if execution not in self._shapes]
        for execution in missing:
            self._shapes[execution] = Shape(execution=execution, job=concerned[execution])
        if not missing:
            return
        known = select(trees).where(trees.c.execution.in_(missing))
        found = (await connection.execute(known)).all()
        for row in found:
            shape = self._shapes[row.execution]
            shape.sealed, shape.damaged = row.sealed, row.damaged
        column = tree_nodes.c
        length = func.octet_length(column.token_ids, type_=Integer) / _TOKEN_BYTES
        nodes = (
            select(
                *(column.execution, column.node_id, column.kind, column.call_id),
                *(column.request_role, column.fork_reason),
                (column.position + length).label("end"),
            )
            .where(column.execution.in_([row.execution for row in found]))
            .order_by(column.execution, column.ordinal)
        )
        for row in await connection.execute(nodes) if found else ():
            shape = self._shapes[row.execution]
            shape.ends[row.node_id] = int(row.end)
            if row.kind == SAMPLED:
                shape.calls[row.call_id] = row.node_id
                shape.is_plain = shape.is_plain and is_plain(row.request_role, row.fork_reason)

    def _drop_some(self, concerned: Iterable[str]) -> None:
        """Of executions whose calls are over; then of those that have not called for longest."""
        for execution in concerned:
            shape = self._shapes.pop(execution)
            if not shape.sealed:
                self._shapes[execution] = shape
        num_nodes = sum(len(shape.ends) for shape in self._shapes.values())
        while num_nodes > _MOST_NODES:
            num_nodes -= len(self._shapes.pop(next(iter(self._shapes))).ends)


def _execution_and_job(subject: str) -> tuple[str, str]:
    """Of calls.<job>.exec.<execution>."""
    _, job, _, execution = subject.split(".")
    return execution, job


async def _undeliver(connection: AsyncConnection, nodes: Sequence[tuple[str, str]]) -> None:
    if not nodes:
        return
    column = tree_nodes.c
    statement = (
        update(tree_nodes)
        .where(column.execution == bindparam("of"), column.node_id == bindparam("node"))
        .values(provenance=UNDELIVERED)
    )
    await connection.execute(statement, [{"of": of, "node": node} for of, node in nodes])


async def _upsert(connection: AsyncConnection, rows: Sequence[Row]) -> None:
    if not rows:
        return
    new = insert(trees)
    changing = ("num_nodes", "num_calls", "sealed", "damaged")
    statement = new.on_conflict_do_update(
        index_elements=["execution"], set_={name: new.excluded[name] for name in changing}
    )
    await connection.execute(statement, rows)


async def _write_causes(connection: AsyncConnection, execution: str) -> None:
    """Of a tree that is sealed: only then is it known what went on from what."""
    found = causes(await read_outline(connection, execution))
    if not found:
        return
    column = tree_nodes.c
    statement = (
        update(tree_nodes)
        .where(column.execution == execution, column.node_id == bindparam("node"))
        .values(caused_by=bindparam("by_node"), cause=bindparam("how"))
    )
    rows = [{"node": node, "by_node": one.node, "how": one.kind} for node, one in found.items()]
    await connection.execute(statement, rows)
