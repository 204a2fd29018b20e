"""A cell leaves rollout: the caches of executions that are between two calls go along.

consumes: role switches, with the executions that they move
produces: prefixes in their destinations' caches
waits for: the engines, each step for a limited time; room among MAX_COPIES
is unblocked by: their answers

The cell waits for what is announced, PIN_S at most: most recently used first, and what is not
copied by then is prefilled again. A call that comes meanwhile does not queue: it has its own copied
at once, or waits for the copy that is under way, COPY_S at most.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from gyre.adapters.logging import get_logger
from gyre.core.routing import Engine
from gyre.proxy.executions import Registry
from gyre.proxy.live import Live
from gyre.proxy.sampling.migration import COPY_S, NOTHING, PIN_S, Carried, Left, Migration
from gyre.proxy.sampling.tails import Arrival, Tail

# At a time, over all cells: an engine takes in four, and executions go to more than one.
MAX_COPIES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """`source` takes no calls any more. sequence: of the decision in the log. num_executions: of
    those that it moves away, how many this proxy speaks for."""

    source: Engine
    job: str
    sequence: int
    num_executions: int


@dataclass(slots=True, kw_only=True, eq=False)
class _Copy:
    """A tail's cache is to leave `source`, where `rid` names its pin, until `until` on the event
    loop's clock. arrival: what a call waits by. begun: it is under way, or over. done: it is over.
    """

    live: Live
    tail: Tail
    source: Engine
    rid: str
    until: float
    arrival: Arrival | None = None
    begun: bool = False
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self) -> None:
        """No call waits for it any more."""
        self.begun = True
        self.done.set()
        if self.tail.arriving is self.arrival:
            self.tail.arriving = None


@dataclass(slots=True, kw_only=True, eq=False)
class _Departure:
    """What leaves in one switch. announced: the source has been told of it, or cannot be."""

    switch: Switch
    copies: list[_Copy] = field(default_factory=list)
    announced: asyncio.Event = field(default_factory=asyncio.Event)


class Departures:
    """Mutates the tails that leave. `leave` only queues; the work is done in `run` and by calls."""

    def __init__(self, registry: Registry, migration: Migration) -> None:
        self._registry = registry
        self._migration = migration
        self._queue: asyncio.Queue[_Departure] = asyncio.Queue()
        self._room = asyncio.Semaphore(MAX_COPIES)

    def leave(self, switch: Switch, moved: Sequence[Live]) -> None:
        """The cache of `moved`, as far as no call runs there, is to be copied away from now on."""
        departure = _Departure(switch=switch)
        until = _now() + PIN_S
        for live in moved:
            for tail in self._worth_copying(live, switch.source):
                rid = secrets.token_hex(16)
                copy = _Copy(live=live, tail=tail, source=switch.source, rid=rid, until=until)
                departure.copies.append(copy)
                copy.arrival = tail.arriving = self._arrival(departure, copy)
        departure.copies.sort(key=lambda copy: copy.tail.used, reverse=True)
        self._queue.put_nowait(departure)

    async def run(self) -> None:
        """Copies what leaves, for ever."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._depart(await self._queue.get()))

    async def _depart(self, departure: _Departure) -> None:
        switch, copies = departure.switch, departure.copies
        announced = await self._migration.announce(
            switch.source,
            switch.job,
            switch.sequence,
            switch.num_executions,
            [copy.rid for copy in copies],
        )
        departure.announced.set()
        if not announced:
            for copy in copies:
                copy.end()
            return
        async with asyncio.TaskGroup() as group:
            for copy in copies:
                await self._room.acquire()
                group.create_task(self._in_turn(copy))
        get_logger().info(
            "caches_left",
            cell=switch.source.cell,
            executions=switch.num_executions,
            prefixes=len(copies),
            copied=sum(copy.tail.num_migrated > 0 for copy in copies),
        )

    async def _in_turn(self, copy: _Copy) -> None:
        try:
            if not copy.begun:
                await self._make(copy)
        finally:
            self._room.release()

    def _arrival(self, departure: _Departure, copy: _Copy) -> Arrival:
        async def arrive() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(COPY_S):
                    # A pin that were given back before it is announced would hold the cell up.
                    await departure.announced.wait()
                    if copy.begun:
                        await copy.done.wait()
                    else:
                        await self._make(copy)

        return arrive

    async def _make(self, copy: _Copy) -> None:
        copy.begun = True
        try:
            carried = await self._carried(copy)
            copy.tail.num_migrated += carried.tokens
            copy.tail.migration_s += carried.seconds
        finally:
            copy.end()

    async def _carried(self, copy: _Copy) -> Carried:
        live = copy.live
        left = Left(engine=copy.source, rid=copy.rid, job=live.execution.job)
        destination = self._destination(live, copy.tail, copy.source)
        left_s = min(COPY_S, copy.until - _now())
        if left_s <= 0:
            return NOTHING  # the pin has ended too, and the cell has gone on
        if destination is None:
            await self._migration.release(left)
            return NOTHING
        async with live.asking:
            tokens = live.matcher.tree.path_tokens(copy.tail.node)
        copy.tail.engine = destination
        return await self._migration.fetch(left, destination, tokens, left_s)

    def _worth_copying(self, live: Live, source: Engine) -> list[Tail]:
        """Tails at `source`. Not what a running call goes on from: its generation carries that."""
        calls = [call for call in live.open.values() if call.id in live.running]
        in_use = {id(call.generation.tail) for call in calls if call.generation is not None}
        return [
            tail
            for tail in live.tails.cached_at(source)
            if id(tail) not in in_use and self._destination(live, tail, source) is not None
        ]

    def _destination(self, live: Live, tail: Tail, source: Engine) -> Engine | None:
        """Where the execution's calls go now, if what is cached at `source` is of use there."""
        if live.execution.id in self._registry.terminated:
            return None
        engine = self._registry.engine(live.execution)
        if engine is None or engine.url == source.url:
            return None
        return engine if (engine.lineage, engine.version) == tail.weights else None


def _now() -> float:
    return asyncio.get_running_loop().time()
