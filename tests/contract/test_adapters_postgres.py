"""Projections and migrations, on a real Postgres."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, delete, func, insert, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from gyre.adapters.postgres import (
    AlreadyProjected,
    CheckpointMoved,
    DatabaseError,
    Projector,
    alembic_config,
    connect,
    copy_rows,
    database_url,
    migrate,
)
from gyre.adapters.tables import (
    executions,
    logprob_bytes,
    logprobs_of,
    metadata,
    projection_checkpoints,
    token_bytes,
    tokens_of,
    tree_nodes,
)
from gyre.embedded import postgres

Scenario = Callable[[AsyncEngine], Awaitable[None]]
LIMIT_S = 60


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgres.running() as server:
        migrate(server.url)
        yield server.url


@pytest.fixture
def run(url: str) -> Callable[[Scenario], None]:
    """Runs a scenario on empty tables."""
    names = ", ".join(table.name for table in metadata.sorted_tables)
    engine = create_engine(database_url(url))
    with engine.begin() as connection:
        connection.execute(text(f"TRUNCATE {names}"))
    engine.dispose()

    async def on_engine(scenario: Scenario) -> None:
        engine = connect(url)
        async with asyncio.timeout(LIMIT_S):
            await scenario(engine)
        await engine.dispose()

    return lambda scenario: asyncio.run(on_engine(scenario))


def execution_row(number: int) -> dict[str, object]:
    return {
        "execution": f"e{number}",
        "job": "j",
        "group_id": "g",
        "task": "t",
        "status": "started",
    }


async def count_rows(engine: AsyncEngine) -> int:
    async with engine.connect() as connection:
        return int(await connection.scalar(select(func.count()).select_from(executions)) or 0)


def test_the_migrations_build_the_tables_that_the_code_names(url: str) -> None:
    engine = create_engine(database_url(url))
    with engine.connect() as connection:
        options = {"compare_type": True, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_migrating_again_and_from_several_processes_at_once_is_harmless(url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(migrate, [url] * 4)) == [None] * 4


def test_rows_and_checkpoint_commit_together(run: Callable[[Scenario], None]) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        projector = Projector(engine)
        assert await projector.checkpoint("executions") == 0
        async with projector.transaction("executions", 7) as connection:
            await connection.execute(insert(executions).values(execution_row(1)))
        assert await projector.checkpoint("executions") == 7
        assert await count_rows(engine) == 1

    run(scenario)


def test_a_failing_projection_leaves_neither_rows_nor_checkpoint(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        projector = Projector(engine)
        with pytest.raises(ZeroDivisionError):  # noqa: PT012  the error leaves the transaction
            async with projector.transaction("executions", 7) as connection:
                await connection.execute(insert(executions).values(execution_row(1)))
                raise ZeroDivisionError
        assert await projector.checkpoint("executions") == 0
        assert await count_rows(engine) == 0

    run(scenario)


@pytest.mark.parametrize("again", [7, 6, 1])
def test_a_sequence_is_projected_once(run: Callable[[Scenario], None], again: int) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        projector = Projector(engine)
        async with projector.transaction("executions", 7):
            pass
        entered = False
        with pytest.raises(AlreadyProjected):
            async with projector.transaction("executions", again):
                entered = True
        assert not entered
        assert await projector.checkpoint("executions") == 7
        assert await projector.checkpoint("others") == 0

    run(scenario)


def test_two_projectors_of_one_name_take_turns_and_apply_each_sequence_once(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        async def project_all() -> int:
            applied = 0
            for sequence in range(1, 31):
                try:
                    async with Projector(engine).transaction("executions", sequence) as connection:
                        await connection.execute(insert(executions).values(execution_row(sequence)))
                        applied += 1
                except AlreadyProjected:
                    continue
            return applied

        assert sum(await asyncio.gather(*(project_all() for _ in range(3)))) == 30
        assert await count_rows(engine) == 30

    run(scenario)


KILLED = """
import asyncio, os, signal, sys
from sqlalchemy import insert
from gyre.adapters.postgres import Projector, connect
from gyre.adapters.tables import executions

async def main():
    engine = connect(sys.argv[1])
    async with Projector(engine).transaction("executions", 9) as connection:
        await connection.execute(insert(executions).values(
            execution="e9", job="j", group_id="g", task="t", status="started"))
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_kill_9_inside_a_projection_leaves_nothing_half_done(
    url: str, run: Callable[[Scenario], None]
) -> None:
    subprocess.run([sys.executable, "-c", KILLED, url], timeout=LIMIT_S, env=os.environ)

    async def scenario(engine: AsyncEngine) -> None:
        assert await count_rows(engine) == 0
        async with Projector(engine).transaction("executions", 9):
            pass
        assert await Projector(engine).checkpoint("executions") == 9

    run(scenario)


def test_a_tree_node_keeps_its_tokens_and_logprobs(run: Callable[[Scenario], None]) -> None:
    tokens, logprobs = [0, 1, 151_935, 2**31 - 1], [-0.1, -0.0, -12.25, 0.0]

    async def scenario(engine: AsyncEngine) -> None:
        node = {
            "execution": "e",
            "node_id": "n",
            "job": "j",
            "kind": "sampled",
            "role": "assistant",
            "token_ids": token_bytes(tokens),
            "logprobs": logprob_bytes(logprobs),
            "provenance": "policy",
            "position": 0,
            "spans": [{"version": 3, "length": 4}],
            "ordinal": 0,
            "known_by": [b"\x00" * 16],
        }
        async with engine.begin() as connection:
            await connection.execute(insert(tree_nodes).values(node))
            row = (await connection.execute(select(tree_nodes))).one()
        assert list(tokens_of(row.token_ids)) == tokens
        assert list(logprobs_of(row.logprobs)) == logprobs
        assert row.spans == [{"version": 3, "length": 4}]
        assert row.known_by == [b"\x00" * 16]
        assert row.parent is None

    run(scenario)


def checkpoint_row(name: str, sequence: int = 1) -> dict[str, object]:
    return {"name": name, "sequence": sequence}


def test_copied_rows_commit_with_their_transaction_and_a_row_that_is_there_is_one_clear_error(
    run: Callable[[Scenario], None],
) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        rows = [checkpoint_row(name) for name in ("a", "b")]
        async with engine.begin() as connection:
            await copy_rows(connection, projection_checkpoints, rows)
        assert await Projector(engine).checkpoint("b") == 1
        wanted = r"COPY into projection_checkpoints: .*duplicate"
        with pytest.raises(DatabaseError, match=wanted):  # noqa: PT012  as above
            async with engine.begin() as connection:
                await copy_rows(connection, projection_checkpoints, [checkpoint_row("c")])
                await copy_rows(connection, projection_checkpoints, rows)
        assert await Projector(engine).checkpoint("c") == 0

    run(scenario)


@pytest.mark.parametrize(("after", "stands"), [(0, True), (7, False), (6, False)])
def test_what_builds_on_a_checkpoint_is_written_only_while_it_stands(
    run: Callable[[Scenario], None], after: int, stands: bool
) -> None:
    async def scenario(engine: AsyncEngine) -> None:
        projector = Projector(engine)
        async with projector.transaction("executions", 7, after=0):
            pass
        if after == 0:  # somebody wants the rows made anew
            async with engine.begin() as connection:
                await connection.execute(delete(projection_checkpoints))
        elif after == 7:
            async with projector.transaction("executions", 8, after=7):
                pass
        if stands:
            async with projector.transaction("executions", 9, after=after):
                pass
            assert await projector.checkpoint("executions") == 9
            return
        before = await projector.checkpoint("executions")
        with pytest.raises(CheckpointMoved):
            async with projector.transaction("executions", 9, after=after):
                pass
        assert await projector.checkpoint("executions") == before

    run(scenario)


def test_rows_of_trees_from_before_they_were_whole_are_made_anew(url: str) -> None:
    """Migrates down and up again, with a row of the old shape in between."""
    engine = create_engine(database_url(url))
    with engine.begin() as connection:
        command.downgrade(alembic_config(connection), "0001")
        connection.execute(
            text(
                "INSERT INTO tree_nodes (execution, node_id, job, kind, role, token_ids,"
                " provenance, position, spans)"
                " VALUES ('e', 'n', 'j', 'input', 'user', '', 'external', 0, '[]')"
            )
        )
        name = "trajectory.tree_nodes"
        connection.execute(insert(projection_checkpoints).values(checkpoint_row(name, 7)))
    with engine.begin() as connection:
        command.upgrade(alembic_config(connection), "head")
        assert connection.execute(select(func.count()).select_from(tree_nodes)).scalar() == 0
        column = projection_checkpoints.c
        assert connection.scalar(select(column.sequence).where(column.name == name)) is None
    engine.dispose()


def test_an_absent_server_is_one_clear_line_at_the_deadline() -> None:
    with pytest.raises(DatabaseError, match=r"^no Postgres within 0.3 s: .*$"):
        migrate("postgresql://postgres@/postgres?host=/nonexistent", deadline_s=0.3)


@pytest.mark.parametrize("bad", ["sqlite:///x", "not a url", ""])
def test_a_bad_url_is_named_and_not_repeated(bad: str) -> None:
    with pytest.raises(DatabaseError, match="GYRE_DATABASE_URL"):
        database_url(bad)
