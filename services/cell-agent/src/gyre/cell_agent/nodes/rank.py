"""A rank on another node: `TrainerProcess`'s methods, over the network."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from gyre.cell_agent.nodes.lead import Expected, Nodes
from gyre.cell_agent.nodes.messages import EndRank, StartRank
from gyre.cell_agent.trainer.process.channel import (
    ControlChannel,
    TrainerGone,
    TrainerTimeout,
)
from gyre.cell_agent.trainer.process.client import ending

# How long a node has to say how a rank ended whose connection is closed, or that was killed: a
# process that has loaded torch takes seconds to end on a busy machine.
_LAST_WORD_S = 15.0
_UNKNOWN_STATUS = -9


class RemoteRank:
    """One rank for its whole life; a new one is a new object."""

    def __init__(self, nodes: Nodes, node: int, order: StartRank, *, silence_s: float) -> None:
        """order: without `control`, which is the cell's."""
        self._nodes, self._node, self._order = nodes, node, order
        self._silence_s = silence_s
        self._pid: int | None = None
        self._expected: Expected | None = None
        self._channel: ControlChannel | None = None
        self._ending: asyncio.Task[None] | None = None
        self._how = ""

    @property
    def pid(self) -> int:
        """On its own node."""
        if self._pid is None:
            raise TrainerGone("the rank was not started")
        return self._pid

    @property
    def is_here(self) -> bool:
        return False

    async def spawn(self) -> None:
        """Raises TrainerGone: the node did not start it."""
        order = replace(self._order, control=self._nodes.control)
        self._pid, self._expected = await self._nodes.start(self._node, order)

    async def ready(self, timeout_s: float) -> dict[str, Any]:
        """Its status. Raises TrainerRefused: it cannot start; TrainerGone, TrainerTimeout."""
        expected, loop = self._started(), asyncio.get_running_loop()
        began = loop.time()
        waits: set[asyncio.Future[Any]] = {expected.connection, expected.ended}
        await asyncio.wait(
            waits,
            timeout=timeout_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        # First what it said, if it called: one that refuses has ended when that is read.
        if not expected.connection.done():
            if expected.ended.done():
                raise TrainerGone(f"start: the rank {ending(expected.ended.result())}")
            raise TrainerTimeout(f"start: no call from the rank within {timeout_s:g} s")
        reader, writer = expected.connection.result()
        self._channel = ControlChannel(
            reader, writer, silence_s=self._silence_s, on_silent=self._end_the_silent
        )
        return await self._channel.ready(max(0.0, timeout_s - (loop.time() - began)))

    async def call(self, command: str, timeout_s: float, /, **arguments: Any) -> dict[str, Any]:
        """One command. Raises TrainerRefused, TrainerGone, TrainerTimeout."""
        if self._channel is None:
            raise TrainerGone(f"{command}: the trainer is not running")
        return await self._channel.call(command, timeout_s, **arguments)

    async def wait(self) -> int:
        """Until it has ended; returns its exit status, or that of SIGKILL where its node cannot
        be asked any more."""
        expected = self._started()
        waits: set[asyncio.Future[Any]] = {expected.ended}
        if self._channel is not None:
            waits.add(asyncio.ensure_future(self._channel.closed()))
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if not expected.ended.done():
            await asyncio.wait({expected.ended}, timeout=_LAST_WORD_S)
        if not expected.ended.done():
            self._how = self._how or f"is gone, and node {self._node} does not say how"
            expected.ended.set_result(_UNKNOWN_STATUS)
        if self._channel is not None:
            await self._channel.close()
        return expected.ended.result()

    @property
    def how_it_ended(self) -> str:
        """In words, after `wait`."""
        return f"on node {self._node} {self._how or ending(self._started().ended.result())}"

    def kill(self) -> None:
        """Closes its connection, which ends it, and has its node kill it."""
        expected = self._started()
        if expected.ended.done() or self._ending is not None:
            return
        if self._channel is not None:
            self._channel.hang_up()
        self._ending = asyncio.create_task(self._end(expected))

    async def _end(self, expected: Expected) -> None:
        order = EndRank(start=self._order.start, rank=self._order.launch.rank)
        await self._nodes.end(self._node, order)
        await asyncio.wait({expected.ended}, timeout=_LAST_WORD_S)
        if not expected.ended.done():
            expected.ended.set_result(_UNKNOWN_STATUS)

    def _end_the_silent(self) -> None:
        self._how = f"said nothing for {self._silence_s:g} s and was killed"
        self.kill()

    def _started(self) -> Expected:
        if self._expected is None:
            raise TrainerGone("the rank was not started")
        return self._expected
