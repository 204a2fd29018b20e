"""A cell's trainer: its ranks, one process each, which live and die together.

Invariants:
- every rank is given the same commands in the same order, since their collectives must meet;
- the group answers when all ranks have, and then as rank 0 did;
- what all refuse alike is a refusal and changes nothing; anything else that is not all ranks' (one
  refuses, one is gone, one is late) leaves them out of step, and ends them all;
- a rank that ends takes the others with it: what they wait for will not come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from math import isfinite
from types import MappingProxyType
from typing import Any, Protocol

from gyre.cell_agent.pace import Pace
from gyre.cell_agent.trainer.process.client import TrainerGone, TrainerRefused, TrainerTimeout

Answer = dict[str, Any]

# Ranks refuse within a moment of one another, or after a collective that they leave together.
REFUSAL_S = 10.0

# The longest that a body is waited for before the trainer refuses the command (`blob_fetch`).
FETCH_S = 40.0
# What takes the time of a few micro-steps, and seconds that it may wait beyond them.
PACED: Mapping[str, float] = MappingProxyType({"submit_step": FETCH_S, "flush_steps": 0.0})


class Rank(Protocol):
    """One process of a cell's trainer; `TrainerProcess` is one on this machine."""

    @property
    def pid(self) -> int: ...

    @property
    def how_it_ended(self) -> str: ...

    @property
    def is_here(self) -> bool:
        """Whether its pid is of this machine."""

    async def spawn(self) -> None: ...

    async def ready(self, timeout_s: float) -> Answer: ...

    async def call(self, command: str, timeout_s: float, /, **arguments: Any) -> Answer: ...

    async def wait(self) -> int: ...

    def kill(self) -> None: ...


class TrainerGroup:
    """ranks: 0 first. A new start is a new group. pace: of the cell, outlives the group. refusal_s:
    how long the others have to refuse too what one has refused."""

    def __init__(
        self,
        ranks: Sequence[Rank],
        pace: Pace | None = None,
        *,
        refusal_s: float = REFUSAL_S,
    ) -> None:
        self._ranks = tuple(ranks)
        self._refusal_s = refusal_s
        self._spawned: list[Rank] = []
        self._pace = pace or Pace()
        # The first to end, or for whose sake the others were ended.
        self._ended: Rank | None = None

    @property
    def pid(self) -> int:
        """Of rank 0."""
        return self._ranks[0].pid

    @property
    def pids(self) -> tuple[int, ...]:
        """Of all ranks."""
        return tuple(rank.pid for rank in self._ranks)

    @property
    def pids_here(self) -> tuple[int, ...]:
        """Of the ranks on this machine."""
        return tuple(rank.pid for rank in self._ranks if rank.is_here)

    async def start(self, timeout_s: float) -> Answer:
        """Rank 0's status once all take commands. Raises TrainerRefused: none of them can start,
        and all end; TrainerGone, TrainerTimeout."""
        for rank in self._ranks:
            await rank.spawn()
            self._spawned.append(rank)
        starting = [asyncio.create_task(rank.ready(timeout_s)) for rank in self._ranks]
        return await self._together("start", starting)

    async def call(self, command: str, timeout_s: float, /, **arguments: Any) -> Answer:
        """One command to all ranks. Raises TrainerRefused, TrainerGone, TrainerTimeout.

        What trains has the deadline that the cell's own micro-steps have set, and the caller's
        until there are any."""
        if command not in PACED:
            return await self._send(command, timeout_s, arguments)
        limit_s = timeout_s
        if isfinite(self._pace.limit_s):
            limit_s = self._pace.limit_s + PACED[command]
        try:
            answer = await self._send(command, limit_s, arguments)
        except TrainerTimeout:
            self._pace.expired(limit_s)
            raise
        # As the trainer measured it: some are answered before they are done.
        self._pace.took(answer.get("slowest_s", 0.0))
        return answer

    async def ask_first(self, question: str, timeout_s: float) -> Answer:
        """A command to rank 0 alone, which changes nothing and meets no other rank. Nobody is ended
        when the answer is late. Raises TrainerRefused, TrainerGone, TrainerTimeout."""
        return await self._ranks[0].call(question, timeout_s)

    async def _send(self, command: str, timeout_s: float, arguments: dict[str, Any]) -> Answer:
        # A task runs in the order of its creation and writes before it waits: so do the commands.
        calls = [
            asyncio.create_task(rank.call(command, timeout_s, **arguments)) for rank in self._ranks
        ]
        return await self._together(command, calls)

    async def _together(self, command: str, calls: Sequence[asyncio.Task[Answer]]) -> Answer:
        """All ranks' answers, as rank 0's."""
        try:
            await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
            if all(_refused(call) for call in calls if call.done()):
                await asyncio.wait(calls, timeout=self._refusal_s)
            return self._answer(command, calls)
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    def _answer(self, command: str, calls: Sequence[asyncio.Task[Answer]]) -> Answer:
        errors = [call.exception() if call.done() else None for call in calls]
        if all(call.done() for call in calls):
            if not any(errors):
                return calls[0].result()
            kinds = {error.kind if isinstance(error, TrainerRefused) else None for error in errors}
            if None not in kinds and len(kinds) == 1:
                calls[0].result()  # raises the refusal
        self.kill()
        return self._blame(command, errors)

    def _blame(self, command: str, errors: Sequence[BaseException | None]) -> Answer:
        """Raises the worst of the ranks' errors, in its name."""
        for kind in (TrainerGone, TrainerTimeout, TrainerRefused):
            for rank, error in enumerate(errors):
                if not isinstance(error, kind):
                    continue
                words = f"{self._name(rank)}{error}"
                # The others end of it, maybe before anybody looks.
                self._ended = self._ended or self._ranks[rank]
                match error:
                    case TrainerTimeout():
                        raise TrainerTimeout(words) from error
                    case TrainerRefused():
                        raise TrainerGone(f"{command}: not all refused, {words}") from error
                    case _:
                        raise TrainerGone(words) from error
        raise next(error for error in errors if error is not None)

    def _name(self, rank: int) -> str:
        return f"rank {rank}: " if len(self._ranks) > 1 else ""

    async def wait(self) -> int:
        """Until a rank has ended; ends the others. Returns that rank's exit status, 0 where none
        was ever started."""
        if not self._spawned:
            return 0
        waits = [asyncio.create_task(rank.wait()) for rank in self._spawned]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            first = next(number for number, done in enumerate(waits) if done.done())
            self._ended = self._ended or self._spawned[first]
            self.kill()
            await asyncio.gather(*waits)
            return waits[self._spawned.index(self._ended)].result()
        finally:
            for one in waits:
                one.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    @property
    def how_it_ended(self) -> str:
        """In words, after `wait`: which rank ended first, and how."""
        if self._ended is None:
            return "was never started"
        return f"{self._name(self._ranks.index(self._ended))}{self._ended.how_it_ended}"

    def kill(self) -> None:
        """SIGKILL to all ranks; `wait` collects them. No error if they have ended."""
        for rank in self._spawned:
            rank.kill()


def _refused(call: asyncio.Task[Answer]) -> bool:
    return not call.cancelled() and isinstance(call.exception(), TrainerRefused)
