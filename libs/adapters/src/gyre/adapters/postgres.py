"""Postgres: engine, migrations, and projections that commit rows and checkpoint together.

    async with projector.transaction("executions", fact.sequence) as connection:
        await connection.execute(insert(executions).values(...))

Rows and checkpoint become visible in one commit, so a projection that is killed goes on where its
rows end, and a sequence that was folded once is refused the second time.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
from alembic import command
from alembic.config import Config
from psycopg import sql
from sqlalchemy import Connection, Table, create_engine, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.engine import make_url
from sqlalchemy.engine.url import URL
from sqlalchemy.exc import ArgumentError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from gyre.adapters.tables import projection_checkpoints

CONNECT_DEADLINE_S = 30.0
CONNECT_PAUSE_S = 0.2
# Each service has a pool of its own; the server allows about 100 connections in all.
POOL_SIZE, POOL_OVERFLOW = 4, 4
# Any constant: it serialises migrations of one database.
_MIGRATION_LOCK = 0x67797265


class DatabaseError(Exception):
    """The database cannot be used."""


class AlreadyProjected(DatabaseError):
    """The projection's checkpoint is at this sequence or past it: its rows are there."""


def database_url(text_url: str) -> URL:
    """Parses GYRE_DATABASE_URL and picks the psycopg 3 driver. `?host=` may be a socket directory.

    Raises DatabaseError, without repeating the URL: it may hold a password.
    """
    try:
        url = make_url(text_url)
    except ArgumentError:
        raise DatabaseError(
            "GYRE_DATABASE_URL: want postgresql+psycopg://[user[:password]@host]/name"
        ) from None
    if url.get_backend_name() not in ("postgresql", "postgres"):
        raise DatabaseError(f"GYRE_DATABASE_URL: {url.get_backend_name()} is not postgresql")
    return url.set(drivername="postgresql+psycopg")


def connect(text_url: str) -> AsyncEngine:
    """An engine with a small pool; it connects when first used. Dispose of it in the end."""
    return create_async_engine(
        database_url(text_url),
        pool_size=POOL_SIZE,
        max_overflow=POOL_OVERFLOW,
        pool_pre_ping=True,
        connect_args={"connect_timeout": 10},
    )


class CheckpointMoved(DatabaseError):
    """The projection's checkpoint is not where its rows were made from: somebody else writes them,
    or wants them made anew."""


class Projector:
    """Checkpoints of projections, in the same database as their rows."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def checkpoint(self, name: str) -> int:
        """The last sequence whose rows are committed, 0 for a new projection."""
        column = projection_checkpoints.c
        async with self._engine.connect() as connection:
            found = await connection.scalar(select(column.sequence).where(column.name == name))
        return 0 if found is None else int(found)

    @asynccontextmanager
    async def transaction(
        self, name: str, sequence: int, *, after: int | None = None
    ) -> AsyncIterator[AsyncConnection]:
        """Commits what is written inside together with the checkpoint; an exception undoes both.

        after: the checkpoint that the caller's own state is of, 0 for none; with it what is written
        may build on that state. Raises, before the body, CheckpointMoved when the checkpoint is
        elsewhere, and without `after` AlreadyProjected when it is at `sequence` or past it. The
        checkpoint's row stays locked inside: two projectors of one name take turns.
        """
        column = projection_checkpoints.c
        statement: Any
        if after:
            statement = update(projection_checkpoints).values(sequence=sequence)
            statement = statement.where(column.name == name, column.sequence == after)
        else:
            new = insert(projection_checkpoints).values(name=name, sequence=sequence)
            below = column.sequence < new.excluded.sequence
            statement = new.on_conflict_do_update(
                index_elements=["name"],
                set_={"sequence": new.excluded.sequence},
                where=below if after is None else column.sequence == after,
            )
        async with self._engine.begin() as connection:
            advanced = await connection.scalar(statement.returning(column.sequence))
            if advanced is None and after is None:
                raise AlreadyProjected(f"{name} has already projected sequence {sequence}")
            if advanced is None:
                raise CheckpointMoved(f"the checkpoint of {name} is not at {after} any more")
            yield connection


async def copy_rows(
    connection: AsyncConnection, table: Table, rows: Iterable[Mapping[str, Any]]
) -> None:
    """Adds new rows with COPY, in the connection's transaction; several times as fast as INSERT.

    Each row has every column of `table`. Raises DatabaseError, also for a row that is there.
    """
    columns = [column.name for column in table.columns]
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)")
    dialect = connection.dialect
    types = [column.type.compile(dialect).lower() for column in table.columns]
    raw = await connection.get_raw_connection()
    driver: psycopg.AsyncConnection[Any] | None = raw.driver_connection
    assert driver is not None
    try:
        async with (
            driver.cursor() as cursor,
            cursor.copy(statement.format(sql.Identifier(table.name), names)) as copy,
        ):
            copy.set_types(types)
            for row in rows:
                await copy.write_row([row[name] for name in columns])
    except psycopg.Error as error:
        reason = str(error).strip().splitlines()[0]
        raise DatabaseError(f"COPY into {table.name}: {reason}") from error


def migrate(text_url: str, *, deadline_s: float = CONNECT_DEADLINE_S) -> None:
    """Brings the schema to the newest version; waits for the server, safe to run at once twice.

    Raises DatabaseError when the server stays away until the deadline.
    """
    engine = create_engine(
        database_url(text_url), poolclass=NullPool, connect_args={"connect_timeout": 10}
    )
    deadline = time.monotonic() + deadline_s
    while True:
        try:
            connection = engine.connect()
            break
        except OperationalError as error:
            if time.monotonic() + CONNECT_PAUSE_S > deadline:
                reason = str(error.orig).strip().splitlines()[0]
                raise DatabaseError(f"no Postgres within {deadline_s:g} s: {reason}") from None
            time.sleep(CONNECT_PAUSE_S)
    with connection, connection.begin():
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
        command.upgrade(alembic_config(connection), "head")


def alembic_config(connection: Connection) -> Config:
    """Alembic's configuration, on a connection whose transaction the caller holds."""
    config = Config()
    scripts = Path(__file__).parent / "migrations"
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
