"""A trainer in virtual time: the commands, states and refusals of the real one, without tensors.

Weights are a name of their history: an update's weights are a digest of the weights before and of
the micro-steps reduced into it, so that weights under a wrong label are found out. Collectives meet
in a `Fabric`: a member's death fails those that have not come out of the collective yet.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from dataclasses import dataclass, field
from typing import Any

from gyre.cell_agent.trainer.client import TrainerGone, TrainerRefused, TrainerTimeout
from gyre.contracts.events.cells import NO_STATISTICS

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


@dataclass
class Fabric:
    """What connects the trainers: worlds, weight servers, checkpoints; and what it saw.

    skips: versions whose batch the core does not apply. served: (weight version, content) of all
    that engines ever held."""

    source: random.Random
    skips: frozenset[int] = frozenset()
    worlds: dict[int, dict[int, SimulatedTrainer]] = field(default_factory=dict)
    meetings: dict[tuple[int, int, int], Meeting] = field(default_factory=dict)
    servers: dict[int, SimulatedTrainer] = field(default_factory=dict)
    checkpoints: dict[str, tuple[Label, str]] = field(default_factory=dict)
    micro_steps: dict[str, tuple[str, int]] = field(default_factory=dict)
    reductions: dict[str, Reduction] = field(default_factory=dict)
    begun: list[tuple[int, str, str]] = field(default_factory=list)
    served: set[tuple[str, str]] = field(default_factory=set)
    violations: list[str] = field(default_factory=list)
    calls: set[tuple[str, tuple[str, ...]]] = field(default_factory=set)
    formed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self.source.random())

    async def join(
        self, trainer: SimulatedTrainer, epoch: int, rank: int, size: int, timeout_s: float
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

    async def meet(self, trainer: SimulatedTrainer, size: int, share: Any) -> dict[int, Any]:
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

    def leave(self, trainer: SimulatedTrainer, epoch: int, rank: int) -> None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    epoch: int
    rank: int
    size: int
    timeout_s: float


class SimulatedTrainer:
    """Stands in for TrainerProcess. seconds: the most that a micro-step takes."""

    def __init__(self, fabric: Fabric, cell: int, pid: int, seconds: float) -> None:
        self.fabric, self.cell, self.pid, self.seconds = fabric, cell, pid, seconds
        self.label: Label | None = None
        self.content = ""
        self.open: str | None = None
        self.accumulated: list[int] = []
        self.world: World | None = None
        self.num_met: dict[int, int] = {}
        self.left: set[int] = set()
        self.offloaded = False
        self._dead = asyncio.Event()

    @property
    def alive(self) -> bool:
        return not self._dead.is_set()

    async def start(self) -> None:
        await asyncio.sleep(2.0 + 3.0 * self.fabric.source.random())
        if not self.alive:
            raise TrainerGone("the trainer ended")

    def kill(self) -> None:
        if self.alive:
            self._dead.set()
            self.fabric.servers.pop(self.cell, None)
            if self.world is not None:
                self.fabric.leave(self, self.world.epoch, self.world.rank)

    async def wait(self) -> int:
        await self._dead.wait()
        return -9

    async def call(self, command: str, timeout_s: float, /, **arguments: Any) -> dict[str, Any]:
        """Raises TrainerRefused, TrainerGone, as the real one does."""
        self.fabric.calls.add((command, tuple(sorted(arguments))))
        work = asyncio.ensure_future(getattr(self, f"_{command}")(**arguments))
        death = asyncio.ensure_future(self._dead.wait())
        try:
            done, _ = await asyncio.wait(
                {work, death}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                raise TrainerTimeout(f"{command}: no answer within {timeout_s:g} s")
        finally:
            for task in (work, death):
                task.cancel()
            await asyncio.wait({work, death})
        if not self.alive or work.cancelled():
            raise TrainerGone(f"{command}: the trainer ended")
        try:
            answer: dict[str, Any] = work.result()
            return answer
        except TrainerRefused as refused:
            if refused.kind not in ("peer_lost", "weights_unavailable"):
                self.fabric.violations.append(f"cell {self.cell}: {command}: {refused}")
            raise

    # --- commands: the same preconditions as the real trainer's ---

    async def _configure(self, *, job: str, objective: Any, optimizer: Any) -> dict[str, Any]:
        return {}

    async def _load_weights(self, *, path: str, version: int, lineage: int) -> dict[str, Any]:
        await self.fabric.pause(0.5)
        return self._hold((lineage, version), INITIAL)

    async def _load_checkpoint(self, *, directory: str, lineage: int) -> dict[str, Any]:
        await self.fabric.pause(0.5)
        (_, version), content = self.fabric.checkpoints[str(directory)]
        return self._hold((lineage, version), content)

    async def _pull_weights(
        self, *, host: str, port: int, version: int, lineage: int
    ) -> dict[str, Any]:
        await self.fabric.pause(0.5)
        server = self.fabric.servers.get(port)
        if server is None or server.label != (lineage, version):
            raise TrainerRefused("weights_unavailable", f"{port}: no {lineage}.{version}")
        content = server.content
        await self.fabric.pause(0.5)
        return self._hold((lineage, version), content)

    def _hold(self, label: Label, content: str) -> dict[str, Any]:
        self._require(self.open is None, "wrong_state", f"batch {self.open} is open")
        self.label, self.content = label, content
        return {}

    async def _serve_weights(self, *, host: str) -> dict[str, Any]:
        self._require(self.label is not None, "wrong_version", "nothing held")
        self.fabric.servers[self.cell] = self
        return {"host": host, "port": self.cell, "checksum": self.content}

    async def _form_world(
        self,
        *,
        epoch: int,
        rank: int,
        size: int,
        timeout_s: float,
        store_host: str,
        store_port: int,
    ) -> dict[str, Any]:
        self._quit_world()
        try:
            await self.fabric.join(self, epoch, rank, size, timeout_s)
        except TimeoutError as error:
            self.left.add(epoch)
            raise TrainerRefused("peer_lost", f"epoch {epoch} was not formed") from error
        self.world = World(epoch=epoch, rank=rank, size=size, timeout_s=timeout_s)
        self.num_met = {}
        return {}

    def _quit_world(self) -> None:
        if self.world is not None:
            self.fabric.leave(self, self.world.epoch, self.world.rank)
        self.world, self.open, self.accumulated = None, None, []

    async def _leave_world(self) -> dict[str, Any]:
        self._quit_world()
        return {}

    async def _begin_batch(self, *, batch: str, version: int) -> dict[str, Any]:
        self._require(not self.offloaded, "wrong_state", "offloaded")
        self._require(
            self.label is not None and self.label[1] == version, "wrong_version", f"{self.label}"
        )
        self.fabric.begun.append((self.cell, batch, self.content))
        self.open, self.accumulated = batch, []
        return {}

    async def _micro_step(self, *, path: Any, digest: str) -> dict[str, Any]:
        batch, index = self.fabric.micro_steps[digest]
        self._require(self.open == batch, "wrong_state", f"open is {self.open}, not {batch}")
        self._require(index not in self.accumulated, "wrong_state", f"{index} twice")
        await self.fabric.pause(self.seconds)
        self.accumulated.append(index)
        return {}

    async def _drop_accumulation(self) -> dict[str, Any]:
        self.open, self.accumulated = None, []
        return {}

    async def _finish_batch(self, *, members: list[int], epoch: int, final: bool) -> dict[str, Any]:
        world, batch, label = self.world, self.open, self.label
        self._require(batch is not None and label is not None, "wrong_state", "no batch is open")
        self._require(world is not None and world.epoch == epoch, "wrong_state", f"not in {epoch}")
        assert world is not None
        assert batch is not None
        assert label is not None
        size = len(members)
        self._require(
            members == list(range(size)) and world.rank < size, "wrong_state", f"{members}"
        )
        try:
            parts = await self._reduce(size, batch, label)
            self.open = None
            lost = await self._update(size, batch, label, parts, final)
        except TimeoutError as error:
            self._quit_world()
            raise TrainerRefused("peer_lost", "a member died") from error
        skipped = label[1] in self.fabric.skips
        core = {
            "skipped": skipped,
            "skip_reason": f"mismatch: of version {label[1]}" if skipped else "",
            "grad_norm": 0.0,
            "lr": 0.0,
            "broadcast_lost": lost,
            "executions": _executions(parts),
        }
        return {
            "version": label[1] + 1,
            "weights_version": self.label[1] if self.label else None,
            "statistics": dict(_STATISTICS),
            **(core if world.rank == 0 else {}),
        }

    async def _reduce(self, size: int, batch: str, label: Label) -> dict[int, Any]:
        share = (self.cell, tuple(sorted(self.accumulated)), batch, label)
        if size == 1:
            return {0: share}
        met = await self.fabric.meet(self, size, share)
        self._require(
            len({member[2:] for member in met.values()}) == 1, "members_disagree", f"{met}"
        )
        return await self.fabric.meet(self, size, share)

    async def _update(
        self, size: int, batch: str, label: Label, met: dict[int, Any], final: bool
    ) -> str | None:
        assert self.world is not None
        is_core, following = self.world.rank == 0, (label[0], label[1] + 1)
        parts = tuple((cell, indices) for cell, indices, *_ in met.values())
        done = sorted(index for _, indices in parts for index in indices)
        after = hashlib.sha256(f"{self.content}/{batch}/{done}".encode()).hexdigest()[:16]
        if label[1] in self.fabric.skips:
            after = self.content
        if is_core:
            await self.fabric.pause(0.1)
            self.fabric.reductions[batch] = Reduction(
                batch=batch,
                label=following,
                epoch=self.world.epoch,
                before=self.content,
                after=after,
                parts=parts,
            )
            self.label, self.content = following, after
        if final or size == 1:
            return None
        if not is_core:
            self.label = None
        try:
            await self.fabric.meet(self, size, None)
        except TimeoutError:
            if not is_core:
                raise
            self._quit_world()
            return "a member died in the broadcast"
        self.label, self.content = following, after
        return None

    async def _save_checkpoint(self, *, directory: Any) -> dict[str, Any]:
        self._require(self.label is not None, "wrong_version", "nothing held")
        await self.fabric.pause(0.5)
        assert self.label is not None
        there = self.fabric.checkpoints.setdefault(str(directory), (self.label, self.content))
        self._require(there == (self.label, self.content), "checkpoint_error", "another is there")
        return {"path": str(directory), "sha256": self.content}

    async def _offload(self) -> dict[str, Any]:
        self._require(self.open is None, "wrong_state", "a batch is open")
        self.offloaded = True
        return {}

    async def _restore(self) -> dict[str, Any]:
        self.offloaded = False
        return {}

    def _require(self, holds: bool, kind: str, message: str) -> None:
        if not holds:
            raise TrainerRefused(kind, message)


def _executions(met: dict[int, Any]) -> list[dict[str, Any]]:
    """One in each micro-step, as the real core says of all cells'."""
    done = sorted(index for _, indices, *_ in met.values() for index in indices)
    kept: dict[str, Any] = {"advantage": 0.0, "num_targets": 1, "ratio": 1.0, "kept": True}
    return [{"execution": f"e{n}", "group": "g", "micro_step": n, **kept} for n in done]


# The rest comes from the core's update and from the agent's clock.
_STATISTICS = NO_STATISTICS.model_dump(exclude={"grad_norm", "lr", "seconds"})
