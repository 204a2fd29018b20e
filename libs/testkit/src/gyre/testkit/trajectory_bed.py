"""The trajectory service on an in-memory log, with the services around it played."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from gyre.adapters.blobs import MemoryBlobStore
from gyre.adapters.clock import ManualClock
from gyre.adapters.eventlog import Stream
from gyre.adapters.eventlog.memory import MemoryEventLog
from gyre.adapters.journal import Journal
from gyre.adapters.microsteps import decode_microstep
from gyre.contracts.envelope import Body
from gyre.contracts.events.groups import MicroStepEmitted
from gyre.contracts.events.steps import MicroStepClaimed
from gyre.core.microstep import MicroStep
from gyre.testkit.trajectory_world import World, small_spec
from gyre.trajectory.handlers import Trajectories

JOB = "job"

B = TypeVar("B", bound=Body)


class Bed:
    """A log, a blob store, the other services, and one life of the trajectory service at a time."""

    def __init__(self, seed: int = 0) -> None:
        self.log = MemoryEventLog()
        self.blobs = MemoryBlobStore()
        self.journal = Journal(self.log, ManualClock(), self.blobs)
        self.world = World(self.journal, JOB, small_spec(), seed=seed)

    def life(self) -> Trajectories:
        """One that has read nothing."""
        return Trajectories(self.journal, self.blobs)

    async def settle(self) -> Trajectories:
        """A new life that pays everything; claims each micro-step as it comes, as a cell does."""
        while True:
            service = self.life()
            await service.catch_up()
            if await service.pay_one() is not None:
                continue
            if not await self.claim_all():
                return service

    async def claim_all(self) -> int:
        """Claims what is emitted and unclaimed; how many."""
        bodies = [fact.body async for fact in self.journal.read(Stream.FACTS)]
        claimed = {(b.batch, b.index) for b in bodies if isinstance(b, MicroStepClaimed)}
        emitted = [b for b in bodies if isinstance(b, MicroStepEmitted)]
        queue = [b for b in emitted if (b.batch, b.index) not in claimed]
        for body in queue:
            await self.world.claim(body.batch, body.index)
        return len(queue)

    async def facts(self, kind: type[B]) -> list[B]:
        """All of one kind, in order."""
        bodies = [fact.body async for fact in self.journal.read(Stream.FACTS)]
        return [body for body in bodies if isinstance(body, kind)]

    async def micro_steps(self) -> list[MicroStep]:
        """As the trainer is given them."""
        emitted = await self.facts(MicroStepEmitted)
        return [decode_microstep(self.blobs.get(body.digest)) for body in emitted]


async def a_batch_is_ready(bed: Bed) -> None:
    """Four groups with their scores, one of equal rewards, and a batch that a cell has joined."""
    await bed.world.submit()
    await bed.world.dispatch(range(4))
    await bed.world.finish_group(2, (0.0, 1.0, 0.5, 1.0))
    await bed.world.finish_group(0, (1.0, None, 0.0, 0.0))
    await bed.world.finish_group(1, (1.0, 1.0, 1.0, 1.0))
    await bed.world.finish_group(3, (0.0, 1.0, 1.0, 1.0))
    await bed.world.open_batch("l1-s0000")
    await bed.world.join("l1-s0000", 0)


def trained(steps: Sequence[MicroStep]) -> Counter[str]:
    """Targets by execution."""
    found: Counter[str] = Counter()
    for step in steps:
        for block in step.blocks:
            execution = step.executions[block.execution].execution
            found[execution] += len(block.target_positions)
    return found
