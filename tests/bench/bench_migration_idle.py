"""A cell with 100 executions between two calls leaves rollout: their caches go along, or do not.

    python tests/bench/bench_migration_idle.py    # writes out/bench/migration_idle.json

A real proxy, and two engines as processes of their own, on loopback. Each execution has had one
answer on a context of some 1,500 tokens. Its cell leaves as its agent does it, its engine is killed
once it has left, and each execution calls again, one after the other. The same without the copy:
the destination has no such routes. `hit_share` is the least over all executions, by the
destination's count of cached tokens; `saved_s` what all next calls took less, `leave_s` what the
cell took to leave.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gyre.adapters.clock import SystemClock
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.cell_agent.engine.base import EngineClient
from gyre.cell_agent.engine_turn import PIN_S
from gyre.contracts.events.calls import CallRecorded, Moved
from gyre.testkit.benches import make_bench_model, write_report
from gyre.testkit.engine_server import running_engine
from gyre.testkit.engine_use import drain
from gyre.testkit.proxy_world import Client, Facts, RunningProxy, local_engine, running_proxy

EXECUTIONS = 100
TIMES = 100
CONTEXT_TOKENS = 4096
CACHE_TOKENS = 2**18
TARGETS = {"hit_share": 0.9, "leave_s": PIN_S, "executions_copied": EXECUTIONS}
ENGINE = ("--context-length", str(CONTEXT_TOKENS), "--max-total-tokens", str(CACHE_TOKENS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Of one departure. next_s: of each execution's next call, in order; moved: what it said."""

    leave_s: float
    next_s: list[float]
    moved: list[Moved]


@contextmanager
def plain_engine(model: Path, log: Path) -> Iterator[str]:
    """An engine that cannot copy; its url."""
    extra = (*ENGINE, "--weight-version", "0.0")
    with running_engine("local", (model, model), log, *extra) as running:
        yield running.url


async def begun(served: RunningProxy, facts: Facts) -> list[tuple[str, Client]]:
    """Executions that have had one answer each."""
    clients = []
    for number in range(EXECUTIONS):
        execution = f"job-test-g{number:04d}-e0"
        client = served.client(await facts.start(execution))
        await client.chat(f"tell me story {number} " * TIMES)
        clients.append((execution, client))
    return clients


async def departed(model: Path, logs: Path, destination: str) -> Left:
    log = MemoryEventLog()
    facts = Facts(Journal(log, SystemClock()))
    await facts.submit(model, context_tokens=CONTEXT_TOKENS, max_new_tokens=8)
    await facts.rollout(1, destination)
    with local_engine(model, logs / "source.log", *ENGINE) as source:
        await facts.rollout(0, source.url)
        async with running_proxy(log) as served, EngineClient(source.url) as engine:
            clients = await begun(served, facts)
            executions = [execution for execution, _ in clients]
            began = time.monotonic()
            switch = await facts.move(0, 1, *executions)
            await drain(engine, 120.0, switch=switch, num_moved=len(executions))
            leave_s = time.monotonic() - began
            source.kill()
            next_s = []
            for _, client in clients:
                began = time.monotonic()
                await client.chat("and then?")
                next_s.append(time.monotonic() - began)
    return Left(leave_s=leave_s, next_s=next_s, moved=[await told(facts, e) for e in executions])


async def told(facts: Facts, execution: str) -> Moved:
    *_, call = [event for event in await facts.calls(execution) if isinstance(event, CallRecorded)]
    assert call.moved is not None, f"{execution} did not move"
    return call.moved


def figures(copied: Left, plain: Left) -> dict[str, float]:
    moved = copied.moved
    shares = [1 - one.tokens_prefilled_again / one.tokens_at_source for one in moved]
    return {
        "executions": EXECUTIONS,
        "executions_copied": sum(one.tokens_migrated > 0 for one in moved),
        "context_tokens": statistics.median(one.tokens_at_source for one in moved),
        "leave_s": round(copied.leave_s, 3),
        "leave_without_copy_s": round(plain.leave_s, 3),
        "tokens_copied": sum(one.tokens_migrated for one in moved),
        "tokens_prefilled_again": sum(one.tokens_prefilled_again for one in moved),
        "tokens_prefilled_without_copy": sum(one.tokens_prefilled_again for one in plain.moved),
        "hit_share": round(min(shares), 4),
        "copy_ms": round(1000 * statistics.median(one.migration_s for one in moved), 2),
        "next_call_ms": round(1000 * statistics.median(copied.next_s), 2),
        "next_call_without_copy_ms": round(1000 * statistics.median(plain.next_s), 2),
        "saved_s": round(sum(plain.next_s) - sum(copied.next_s), 3),
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        model = make_bench_model(root / "model", max_position_embeddings=CONTEXT_TOKENS)
        with local_engine(model, root / "destination.log", *ENGINE) as destination:
            copied = asyncio.run(departed(model, root, destination.url))
        with plain_engine(model, root / "plain.log") as url:
            plain = asyncio.run(departed(model, root, url))
    measured = figures(copied, plain)
    ok = (
        measured["hit_share"] >= TARGETS["hit_share"]
        and measured["leave_s"] <= TARGETS["leave_s"]
        and measured["executions_copied"] >= TARGETS["executions_copied"]
    )
    write_report("migration_idle", measured, TARGETS, ok=ok)


if __name__ == "__main__":
    main()
