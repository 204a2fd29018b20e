"""What connects simulated trainers, in virtual time.

Weights are a name of their history: an update's weights are a digest of the weights before and of
the micro-steps reduced into it, so that weights under a wrong label are found out. Collectives meet
in a `Fabric`: a member's death fails those that have not come out of the collective yet.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

Label = tuple[int, int]
"""(lineage, version)."""

INITIAL = "initial"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """One optimizer update on the core. parts: (cell, its accumulated indices) of each member."""

    batch: str
    label: Label
    epoch: int
    before: str
    after: str
    parts: tuple[tuple[int, tuple[int, ...]], ...]


@dataclass
class Meeting:
    """One collective. failed: the members that died or left before they came out of it."""

    size: int
    arrived: dict[int, Any] = field(default_factory=dict)
    full: asyncio.Event = field(default_factory=asyncio.Event)
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    epoch: int
    rank: int
    size: int
    timeout_s: float


class Member(Protocol):
    """What the fabric knows of a trainer. content: the name of its weights. num_met: collectives
    in its world by their size. left: epochs of the worlds it is out of."""

    label: Label | None
    content: str
    world: World | None
    num_met: dict[int, int]
    left: set[int]

    @property
    def alive(self) -> bool: ...


@dataclass
class Fabric:
    """What connects the trainers: worlds, weight servers, checkpoints; and what it saw.

    skips: versions whose batch the core does not apply. full: version -> how often yet its
    checkpoint does not fit. pruned: checkpoints that are no longer there. served: (weight version,
    content) of all that engines ever held. refusals: (cell, call) -> how often yet it is refused.
    calls: of trainers, with their arguments; limits: the shortest time that each had, in seconds.
    memory: which of a cell's sides hold theirs."""

    source: random.Random
    skips: frozenset[int] = frozenset()
    full: dict[int, int] = field(default_factory=dict)
    pruned: set[str] = field(default_factory=set)
    worlds: dict[int, dict[int, Member]] = field(default_factory=dict)
    meetings: dict[tuple[int, int, int], Meeting] = field(default_factory=dict)
    servers: dict[int, Member] = field(default_factory=dict)
    checkpoints: dict[str, tuple[Label, str]] = field(default_factory=dict)
    offers: dict[int, tuple[Label, str]] = field(default_factory=dict)
    micro_steps: dict[str, tuple[str, int]] = field(default_factory=dict)
    reductions: dict[str, Reduction] = field(default_factory=dict)
    begun: list[tuple[int, str, str]] = field(default_factory=list)
    served: set[tuple[str, str]] = field(default_factory=set)
    violations: list[str] = field(default_factory=list)
    calls: set[tuple[str, tuple[str, ...]]] = field(default_factory=set)
    limits: dict[str, float] = field(default_factory=dict)
    refusals: dict[tuple[int, str], int] = field(default_factory=dict)
    memory: dict[int, set[str]] = field(default_factory=dict)
    formed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def called(self, command: str, timeout_s: float, *arguments: str) -> None:
        self.calls.add((command, arguments))
        self.limits[command] = min(timeout_s, self.limits.get(command, timeout_s))

    def prune(self, keep: int, protected: set[str]) -> None:
        """As a real trainer does once a checkpoint is durable."""
        there = [path for path in self.checkpoints if path not in self.pruned]
        newest_first = sorted(there, key=lambda path: Path(path).name, reverse=True)
        self.pruned |= set(newest_first[keep:]) - protected

    def refuses(self, cell: int, operation: str) -> bool:
        """Whether it is refused now; that counts as one of its refusals."""
        left = self.refusals.get((cell, operation), 0)
        self.refusals[cell, operation] = max(0, left - 1)
        return left > 0

    def take_memory(self, cell: int, side: str) -> None:
        """There is room for one of "engine" and "trainer"."""
        held = self.memory.setdefault(cell, set())
        if held - {side}:
            self.violations.append(f"cell {cell}: {side} takes memory that {held} hold")
        held.add(side)

    def give_memory(self, cell: int, side: str) -> None:
        self.memory.setdefault(cell, set()).discard(side)

    def holding(self, cell: int) -> set[str]:
        return self.memory.get(cell, set())

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self.source.random())

    async def join(
        self, trainer: Member, epoch: int, rank: int, size: int, timeout_s: float
    ) -> None:
        """Raises TimeoutError: some rank did not come, or a dead one's key is in the way."""
        ranks = self.worlds.setdefault(epoch, {})
        if rank in ranks:
            await asyncio.sleep(timeout_s)
            raise TimeoutError
        ranks[rank] = trainer
        async with asyncio.timeout(timeout_s), self.formed:
            self.formed.notify_all()
            await self.formed.wait_for(
                lambda: len(ranks) == size and all(peer.alive for peer in ranks.values())
            )

    async def meet(self, trainer: Member, size: int, share: Any) -> dict[int, Any]:
        """Every member's share by rank. Raises TimeoutError: the collective failed here."""
        world = trainer.world
        assert world is not None
        number = trainer.num_met[size] = trainer.num_met.get(size, 0) + 1
        meeting = self.meetings.setdefault((world.epoch, size, number), Meeting(size=size))
        meeting.arrived[world.rank] = share
        if any(not self._stands(world.epoch, rank) for rank in range(size)):
            self._fail(meeting)
        elif len(meeting.arrived) == size:
            meeting.full.set()
        async with asyncio.timeout(world.timeout_s):
            await meeting.full.wait()
        await self.pause(0.05)
        if meeting.failed:
            raise TimeoutError
        return meeting.arrived

    def leave(self, trainer: Member, epoch: int, rank: int) -> None:
        """Its peers' open collectives fail."""
        trainer.left.add(epoch)
        for (at, size, _), meeting in self.meetings.items():
            if at == epoch and rank < size:
                self._fail(meeting)

    def _stands(self, epoch: int, rank: int) -> bool:
        peer = self.worlds[epoch].get(rank)
        return peer is not None and peer.alive and epoch not in peer.left

    def _fail(self, meeting: Meeting) -> None:
        meeting.failed = True
        meeting.full.set()
