"""New weights into an engine: from a directory that it reads, or from the core by way of its agent.

An update never meets a running step: the engine is held first. What becomes of the calls that run
then is the job's to say (`weights.in_flight`):

- `retract`: they go on under the new weights, and all that they have is computed again;
- `in_place`: they go on under the new weights with the rows of the old, which stay cached. `local`
  finds them for no later call. SGLang knows them by the `extra_key` that a proxy gives, the version
  that it last heard of: a call that begins after the update and before the proxy has heard
  `weights_loaded` still names the old one, and goes on under the new weights from rows of the old;
- `hold`: they end under the old weights, and what comes meanwhile waits. A call that takes longer
  than HOLD_S is aborted: its proxy asks again with what it has.

Weights that come over the network are all there, and verified, before the engine is held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, assert_never

from gyre.cell_agent.engine.base import EngineClient
from gyre.cell_agent.engine.tensors import TensorView
from gyre.cell_agent.weights.courier import Courier
from gyre.core.cell import CellState
from gyre.core.cell.state import Exposure, Version
from gyre.core.routing import weight_version_name

InFlight = Literal["hold", "in_place", "retract"]

# How long `hold` lets calls run on. New ones wait behind them, and a call may take hours: what is
# longer is better computed again.
HOLD_S = 30.0
# Of an aborted call: a decode step, or the prefill that it is in.
ABORT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedWeights:
    """What an engine is to serve: a directory that it can read, or what the core offers of it.
    checksum: of the manifest, None for the job's own model, which has none."""

    path: str
    version: Version
    checksum: str | None
    job: str = ""
    offered: Exposure | None = None


def newest_weights(state: CellState) -> ServedWeights:
    """Those of the last durable checkpoint, else the job's own model."""
    saved = state.checkpoint
    if saved is None:
        path = state.required_spec.model.path
        return ServedWeights(path=path, version=state.initial, checksum=None)
    offered = state.offered
    # The core's engine reads the core's disk.
    by_wire = state.publishes_by_wire and not state.is_core
    if not by_wire or offered is None or offered.version != saved.version:
        offered = None
    return ServedWeights(
        path=saved.path,
        version=saved.version,
        checksum=saved.checksum,
        job=state.job or "",
        offered=offered,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Brought:
    """tensors: None where the engine reads the directory by itself."""

    weights: ServedWeights
    tensors: Mapping[str, TensorView] | None

    async def give(self, engine: EngineClient, *, flush_cache: bool = True) -> None:
        """To a held engine, which then says that it serves them. Raises EngineError."""
        weights, tensors = self.weights, self.tensors
        name = weight_version_name(*weights.version)
        # What holds for all calls is left to the engine's own default.
        kept: dict[str, bool] = {} if flush_cache else {"flush_cache": False}
        if tensors is None:
            await engine.update_weights_from_disk(weights.path, weight_version=name, **kept)
        else:
            await engine.update_weights_from_tensors(tensors, weight_version=name, **kept)
        if weights.checksum is None:
            return
        if tensors is None:
            await engine.confirm_directory(weights.path, weights.checksum)
        else:
            await engine.confirm_tensors(tensors, weights.checksum)


async def load(engine: EngineClient, weights: ServedWeights, courier: Courier) -> None:
    """Into a held engine. Raises EngineError: WeightsNotHad, nothing was changed; WeightsDiffer, it
    says another checksum than the manifest."""
    await (await _bring(weights, courier)).give(engine)


async def load_while_serving(
    engine: EngineClient,
    weights: ServedWeights,
    courier: Courier,
    in_flight: InFlight,
    *,
    hold_s: float = HOLD_S,
) -> int:
    """Into an engine that serves, and goes on to. Returns how many tokens of calls that ran have to
    be computed again. Raises EngineError, as `load`."""
    brought = await _bring(weights, courier)
    num_retracted = 0
    match in_flight:
        case "retract":
            num_retracted = await num_running_tokens(engine)
            await engine.pause("retract")
        case "in_place":
            await engine.pause("in_place")
        case "hold":
            num_retracted = await _hold(engine, hold_s)
        case _:
            assert_never(in_flight)
    await brought.give(engine, flush_cache=in_flight != "in_place")
    await engine.resume()
    return num_retracted


async def num_running_tokens(engine: EngineClient) -> int:
    """Of all requests that hold a place in the engine, prompts and what was sampled."""
    return int((await engine.loads()).get("num_active_tokens", 0))


async def _hold(engine: EngineClient, hold_s: float) -> int:
    """Once what runs has ended; what has not by then is aborted, and its proxy asks again with what
    it has. Returns the tokens of the aborted."""
    pausing = asyncio.ensure_future(engine.pause_after_running(hold_s + ABORT_S))
    try:
        await asyncio.wait({pausing}, timeout=hold_s)
        num_retracted = 0
        if not pausing.done():
            num_retracted = await num_running_tokens(engine)
            await engine.abort()
        await pausing
        return num_retracted
    finally:
        pausing.cancel()
        await asyncio.gather(pausing, return_exceptions=True)


async def _bring(weights: ServedWeights, courier: Courier) -> _Brought:
    if weights.offered is None:
        return _Brought(weights=weights, tensors=None)
    tensors = await courier.fetch(weights.job, weights.offered)
    return _Brought(weights=weights, tensors=tensors)
