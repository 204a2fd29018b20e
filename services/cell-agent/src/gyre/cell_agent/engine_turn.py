"""The engine's part of a role change: emptied and held, its memory given up, taken back, warmed.

Order on the way out (law "serving never stops"): the route has moved already, so what still runs
here is aborted with its partial output kept by the proxy; once the engine is empty it is paused, so
that a request sent before its proxy saw the move waits in vain instead of running on a cell that
trains; that proxy drops it when the move reaches it. What the aborted calls have in the cache stays
pinned until their proxies have had it copied to where they go on, and so does what executions
between two calls have there; but never longer than PIN_S: a proxy that died holds no cell up.
"""

from __future__ import annotations

import asyncio

from gyre.cell_agent.engine.base import EngineClient, EngineRefusedError
from gyre.cell_agent.phases import now

KV_CACHE, WEIGHTS = "kv_cache", "weights"

# Between two looks: a decode step of a small model.
_POLL_S = 0.005

# How long a cell on its way to training keeps cached prefixes for a copy, at most. A copy takes
# milliseconds to a second and its proxy gives it up after 4 s.
PIN_S = 5.0

# How long it waits to be told of the executions between two calls that the switch moves away. Their
# proxy sees the same fact as the agent, and says so within milliseconds.
ANNOUNCE_S = 1.0

# How long a release is asked for again. A late request that waits behind the pause may be in its
# way, until its proxy sees that it has moved: milliseconds.
RELEASE_S = 5.0

# No call of an execution has an id like it.
WARM_RID = "warm-up"
# A prefill and a decode: the first of either is slow, and no call shall pay for it.
_WARM_TOKENS = [1, 2, 3, 4]
_WARM_SAMPLING = {"max_new_tokens": 2, "temperature": 1.0, "ignore_eos": True}
_WARM_S = 30.0


async def stop_admitting(engine: EngineClient, pinned_until: float) -> None:
    """Abort until nothing runs or waits, then hold the engine: from here on nothing starts.
    pinned_until: by `phases.now`. Does not end by itself. Raises EngineError."""
    while True:
        left = pinned_until - now()
        await engine.abort(pin_s=left if left > 0 else None)
        if await engine.num_requests() == 0:
            break
        await asyncio.sleep(_POLL_S)
    await engine.pause("in_place")


async def spoken_for(engine: EngineClient, switch: int, num_moved: int, until: float) -> None:
    """Until proxies have told of all executions that the switch moves, or of as many as there will
    be told of until then."""
    while num_moved and now() < until:
        num_announced = await engine.num_announced(switch)
        if num_announced is None or num_announced >= num_moved:
            return
        await asyncio.sleep(_POLL_S)


async def copied_away(engine: EngineClient, until: float) -> None:
    """Until no cached prefix waits to be copied, `until` by `phases.now` at the latest."""
    while now() < until and await engine.num_pins():
        await asyncio.sleep(_POLL_S)


async def release(engine: EngineClient) -> None:
    """All of its memory. Raises EngineRefusedError: it keeps it, after RELEASE_S of asking."""
    until = now() + RELEASE_S
    while kept := [tag for tag in (KV_CACHE, WEIGHTS) if tag not in engine.released]:
        try:
            await engine.release_memory(kept)
        except EngineRefusedError:
            if now() > until:
                raise
            # One that came between the last look and the pause is held running.
            await engine.abort()
            await asyncio.sleep(_POLL_S)


async def take_back(engine: EngineClient) -> bool:
    """The memory that it gave up. Returns whether the weights are to be loaded anew: what memory
    held before it was given up is not in it afterwards."""
    gave_weights = WEIGHTS in engine.released
    await engine.resume_memory((WEIGHTS, KV_CACHE))
    return gave_weights


async def warm(engine: EngineClient) -> None:
    """Let it run, and have it compute a little. Raises EngineError: it does not serve."""
    await engine.resume()
    await engine.generate(
        input_ids=_WARM_TOKENS,
        sampling_params=_WARM_SAMPLING,
        rid=WARM_RID,
        return_logprob=False,
        timeout_s=_WARM_S,
    )
