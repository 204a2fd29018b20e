"""Samples one turn, wherever the execution's route leads while it lasts.

consumes: the route (woken by facts), an engine's stream
produces: the whole turn, and call_rerouted for each time it went on elsewhere
waits for: an engine at the end of the route; the stream; a change of route; the call's deadline
is unblocked by: role_changed of the cell, a move to another cell, the client's leaving

A call never fails because a cell changes role: tokens already sampled are kept, and the next
engine continues from context + kept tokens. What ends a call early is its deadline, or `stop`.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable

from gyre.contracts.events.calls import CallRerouted
from gyre.core.routing import Engine, weight_version_name
from gyre.proxy.executions import Execution, Registry
from gyre.proxy.sampling.course import Generation, GenerationFailed, GenerationStopped
from gyre.proxy.sampling.handover import HandOver
from gyre.proxy.sampling.migration import NOTHING, Carried, Left, Migration, Move, Reason
from gyre.proxy.sampling.streams import (
    EngineBroken,
    EngineRefused,
    Engines,
    EngineStream,
    SamplingOrder,
)
from gyre.proxy.watch import Watch

# Between tries of an engine that broke off without a fact that says why: it may be switching.
RETRY_S = 0.05
MAX_RETRY_S = 1.0


class Generator:
    """Runs generations. Holds no state of its own."""

    def __init__(
        self, registry: Registry, watch: Watch, engines: Engines, migration: Migration
    ) -> None:
        self._registry = registry
        self._watch = watch
        self._engines = engines
        self._migration = migration

    async def run(
        self, generation: Generation, report: Callable[[CallRerouted], Awaitable[None]]
    ) -> None:
        """Fills `generation` to a whole turn. report: appends a call_rerouted.

        Raises GenerationStopped, GenerationFailed.
        """
        generation.began = _now()
        try:
            if generation.tail is not None and generation.tail.arriving is not None:
                await generation.tail.arriving()
            await self._run(generation, report)
        finally:
            generation.ended = _now()
            if generation.left is not None:
                await self._migration.release(generation.left)

    async def _run(
        self, generation: Generation, report: Callable[[CallRerouted], Awaitable[None]]
    ) -> None:
        source: Engine | None = None
        reason: Reason = "transition"
        retry_s = RETRY_S
        while generation.finish is None:
            not_before = _now() + retry_s if source and reason != "transition" else 0.0
            engine = await self._next_engine(generation, source, not_before)
            carried = await self._carry(generation, engine)
            kept = len(generation.output_ids)
            move = None if source is None else Move(source, engine, reason, kept, carried)
            try:
                reason = await self._attempt(generation, engine)
            finally:
                progressed = len(generation.output_ids) > kept
                # The same engine again: knocking at one that is gone is no reroute.
                if move is not None and (engine != source or progressed):
                    await _report(generation, move, report)
            source = engine
            retry_s = RETRY_S if progressed else min(2 * retry_s, MAX_RETRY_S)

    async def _carry(self, generation: Generation, engine: Engine) -> Carried:
        """What the last attempt left in its engine's cache goes along to `engine`."""
        left, generation.left = generation.left, None
        if left is None:
            return NOTHING
        tokens = generation.input_ids + array("i", generation.output_ids)
        return await self._migration.carry(left, engine, tokens)

    async def _next_engine(
        self, generation: Generation, source: Engine | None, not_before: float
    ) -> Engine:
        """Waits for an engine at the end of the route; not before `not_before` for the same one."""
        execution = generation.execution
        while True:
            self._check(generation)
            engine = self._registry.engine(execution)
            ready = engine is not None and (engine != source or _now() >= not_before)
            if engine is not None and ready:
                return engine
            until = generation.deadline if engine is None else min(not_before, generation.deadline)
            with self._watch.registered(generation.wake, self._keys(execution)):
                late = not await generation.wake.wait_until(until)
            if late and _now() >= generation.deadline:
                raise GenerationFailed("no engine was ready in time", retryable=True)

    async def _attempt(self, generation: Generation, engine: Engine) -> Reason:
        """Samples at one engine until the turn is whole or it must go on elsewhere; says why."""
        stream = self._engines.stream(engine.url, (engine.lineage, engine.version))
        order = generation.order(self._cache_key(generation.execution.job, engine))
        if generation.queue_s is None:
            generation.queue_s = _now() - generation.began
        leaving = HandOver(self._engines, engine, order.rid, stream)

        def look() -> None:
            if generation.stopped is not None or self._moved(generation, engine):
                leaving.begin()

        reason: Reason = "engine_lost"
        generation.wake.listener = look
        late = "the call's time is over"
        timer = asyncio.get_running_loop().call_at(generation.deadline, generation.stop, late)
        try:
            with self._watch.registered(generation.wake, self._keys(generation.execution)):
                look()
                reason = await self._ran(stream, order)
                if leaving.has_begun and stream.sample().finish not in ("stop", "length"):
                    reason = "transition"
                    await leaving.heard()
        finally:
            timer.cancel()
            generation.wake.listener = None
            leaving.end()
            generation.keep(engine, order, stream)
            if generation.finish is None and reason != "engine_lost":
                job = generation.execution.job
                generation.left = Left(engine=engine, rid=order.rid, job=job)
        self._check(generation)
        return reason

    def _cache_key(self, job: str, engine: Engine) -> str | None:
        """Calls that run through a publication in place leave rows of the old weights in SGLang's
        cache under no version; `local` tells them apart by itself."""
        spec = self._registry.jobs[job]
        if spec.weights.in_flight != "in_place" or spec.engine.kind == "local":
            return None
        return weight_version_name(engine.lineage, engine.version)

    async def _ran(self, stream: EngineStream, order: SamplingOrder) -> Reason:
        """Raises GenerationFailed if the engine refuses the order."""
        try:
            await stream.run(order)
        except EngineBroken:
            return "engine_lost"
        except EngineRefused as refusal:
            raise GenerationFailed(str(refusal), retryable=False) from refusal
        return "publication"

    def _moved(self, generation: Generation, engine: Engine) -> bool:
        now = self._registry.engine(generation.execution)
        return now is None or (now.cell, now.epoch) != (engine.cell, engine.epoch)

    def _check(self, generation: Generation) -> None:
        if generation.finish is None and generation.stopped is not None:
            raise GenerationStopped(generation.stopped)

    def _keys(self, execution: Execution) -> tuple[str | tuple[str, int], ...]:
        cell = self._registry.routes.cell(execution.id)
        return (execution.id,) if cell is None else (execution.id, (execution.job, cell))


async def _report(
    generation: Generation, move: Move, report: Callable[[CallRerouted], Awaitable[None]]
) -> None:
    """After the attempt at the destination, which alone knows what it had to compute."""
    generation.num_reroutes += 1
    assert generation.last is not None
    at_destination = generation.last.num_prefilled, generation.last.num_cached
    await report(move.event(generation.call, generation.execution.id, *at_destination))


def _now() -> float:
    return asyncio.get_running_loop().time()
