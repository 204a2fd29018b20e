"""How fast an execution's calls become rows of `tree_nodes`, in a real Postgres.

    python tests/bench/bench_tree_rows.py    # writes out/bench/tree_rows.json

Executions of the paper's tree case (636 requests, 1,347 message nodes; the tokens that open a turn
are a node of their own, so 1,983 rows), their calls interleaved as they come while all run. The
service's own projection reads them from a log in memory, decodes them, and commits rows with its
checkpoint, and causal parents with the seals. Messages have 500 tokens in the mean, then 12
(`short_messages`). `rebuild`: the same once more, after the checkpoint was taken away while it ran,
old rows emptied first. `message_nodes`: without the nodes that open a turn. The cycle collector is
set as the service sets it when it starts.
"""

from __future__ import annotations

import asyncio
import time

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from gyre.adapters.clock import SystemClock
from gyre.adapters.collection import collect_seldom
from gyre.adapters.eventlog import Stream
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.adapters.postgres import Projector, connect, migrate
from gyre.adapters.tables import tree_nodes
from gyre.contracts import subjects
from gyre.contracts.events.calls import CallsSealed
from gyre.core.tree_nodes import GENERATION
from gyre.embedded import postgres
from gyre.testkit.benches import write_report
from gyre.testkit.branching_calls import Sizes, calls_of_contexts
from gyre.testkit.tree_case import TREE_CASE
from gyre.testkit.tree_projection import NAME, forget_checkpoint, projecting, say_calls

JOB = "job"
EXECUTIONS = 16
# About 500 tokens a message: 700 thousand in an execution of this shape.
LONG = Sizes(head=4000, system=60, user=400, tool=700, turn=350)
TARGET_NODES_PER_S = 8000.0
DEADLINE_S = 60.0
# A poll costs what a hundred nodes do.
POLL_S = 0.05


async def filled(sizes: Sizes | None) -> tuple[MemoryEventLog, Journal]:
    """A log of EXECUTIONS' calls."""
    log = MemoryEventLog()
    journal = Journal(log, SystemClock())
    named = [
        [(name, body) for body in calls_of_contexts(name, TREE_CASE, sizes=sizes)]
        for name in (f"{JOB}-g0000-e{number}" for number in range(EXECUTIONS))
    ]
    for number, together in enumerate(zip(*named, strict=True)):
        for name, body in together:
            await journal.append(
                subjects.calls(JOB, name), body, job=JOB, cause=(name, number), expected=None
            )
    return log, journal


async def seconds_until_projected(projector: Projector, sequence: int) -> float:
    """From now until the checkpoint is there."""
    begin = time.perf_counter()
    async with asyncio.timeout(DEADLINE_S):
        while await projector.checkpoint(NAME) != sequence:
            await asyncio.sleep(POLL_S)
    return time.perf_counter() - begin


async def counts(engine: AsyncEngine) -> tuple[int, int, int]:
    """Nodes, message nodes, bytes of tokens."""
    column = tree_nodes.c
    wanted = select(
        func.count(),
        func.count().filter(column.role != GENERATION),
        func.sum(func.octet_length(column.token_ids)),
    )
    async with engine.connect() as connection:
        nodes, messages, size = (await connection.execute(wanted)).one()
    return int(nodes), int(messages), int(size)


async def measure(url: str, sizes: Sizes | None) -> dict[str, float]:
    log, journal = await filled(sizes)
    engine = connect(url)
    projector = Projector(engine)
    await forget_checkpoint(engine)
    async with projecting(journal, engine):
        built_s = await seconds_until_projected(projector, await log.head(Stream.CALLS))
        nodes, messages, size = await counts(engine)
        await forget_checkpoint(engine)
        # Its next commit meets that the checkpoint is gone; one more event brings it about.
        await say_calls(journal, "e", [CallsSealed(execution="e", num_calls=0, last_seq=0)])
        rebuilt_s = await seconds_until_projected(projector, await log.head(Stream.CALLS))
    assert await counts(engine) == (nodes, messages, size)
    await engine.dispose()
    return {
        "nodes_per_s": round(nodes / built_s),
        "message_nodes_per_s": round(messages / built_s),
        "rebuild_nodes_per_s": round(nodes / rebuilt_s),
        "token_mb_per_s": round(size / 1e6 / built_s, 1),
    }


def main() -> None:
    collect_seldom()
    with postgres.running() as server:
        migrate(server.url)
        long = asyncio.run(measure(server.url, LONG))
        short = asyncio.run(measure(server.url, None))
    figures = long | {f"short_messages_{name}": figure for name, figure in short.items()}
    targets = {"nodes_per_s": TARGET_NODES_PER_S, "rebuild_nodes_per_s": TARGET_NODES_PER_S}
    ok = all(figures[name] >= least for name, least in targets.items())
    write_report("tree_rows", figures, targets, ok=ok)


if __name__ == "__main__":
    main()
