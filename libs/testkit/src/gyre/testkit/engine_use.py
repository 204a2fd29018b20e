"""What tests do to an engine between two of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gyre.cell_agent import engine_turn
from gyre.cell_agent.engine.base import KV_CACHE, EngineClient
from gyre.cell_agent.phases import now
from gyre.testkit.engine_server import RunningEngine

PROMPT = list(range(30, 60))
GREEDY = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}


async def serve_weights(
    engine: EngineClient, model: Path, version: str, *, flush_cache: bool = True
) -> None:
    """The weights of a directory under this name, as an agent gives them to an engine that serves:
    what runs is retracted and goes on. With a flush no prefix stays cached."""
    await engine.pause("retract")
    await engine.update_weights_from_disk(
        str(model), weight_version=version, flush_cache=flush_cache
    )
    await engine.resume()


@asynccontextmanager
async def serving(engine: RunningEngine, version: str) -> AsyncIterator[EngineClient]:
    """A client of an engine that begins with `models[0]` under this name; nothing is held and
    nothing runs afterwards."""
    async with engine.client() as client:
        await serve_weights(client, engine.models[0], version)
        yield client
        await client.resume()
        await client.abort()


async def greedy(client: EngineClient, rid: str) -> tuple[int, ...]:
    """What the weights that are served answer to PROMPT."""
    answer = await client.generate(input_ids=PROMPT, sampling_params=GREEDY, rid=rid)
    return answer.output_ids


async def take_memory_again(engine: EngineClient) -> None:
    """Of a `local` that another client may have drained: to it a needless resume is nothing."""
    await engine.post("/resume_memory_occupation", {"tags": [KV_CACHE]})


async def drain(
    engine: EngineClient, deadline_s: float, *, switch: int = 0, num_moved: int = 0
) -> None:
    """As the engine's cell does on its way to training (`roles`), but for the weights, which stay.
    switch: log sequence of the decision. num_moved: executions that it moves away."""
    pinned_until = now() + engine_turn.PIN_S
    async with asyncio.timeout(deadline_s):
        await engine_turn.stop_admitting(engine, pinned_until)
        told_until = min(pinned_until, now() + engine_turn.ANNOUNCE_S)
        await engine_turn.spoken_for(engine, switch, num_moved, told_until)
        await engine_turn.copied_away(engine, pinned_until)
        await engine.release_memory()
