"""A trainer in virtual time: the commands, states and refusals of the real one, without tensors."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

from gyre.cell_agent.trainer.process.client import TrainerRefused
from gyre.contracts.events.steps import NO_STATISTICS
from gyre.testkit.simulated_fabric import INITIAL, Label, Reduction, World
from gyre.testkit.simulated_process import SimulatedProcess


class SimulatedTrainer(SimulatedProcess):
    """The commands, under the same preconditions as the real trainer's."""

    async def _configure(self, *, job: str, objective: Any, optimizer: Any) -> dict[str, Any]:
        return {}

    async def _load_weights(self, *, path: str, version: int, lineage: int) -> dict[str, Any]:
        await self.fabric.pause(0.5)
        self.has_optimizer = True
        return self._hold((lineage, version), INITIAL)

    async def _load_checkpoint(
        self, *, directory: str, lineage: int, optimizer: bool
    ) -> dict[str, Any]:
        await self.fabric.pause(0.5)
        self._require(str(directory) not in self.fabric.pruned, "pruned", str(directory))
        (_, version), content = self.fabric.checkpoints[str(directory)]
        self.has_optimizer = optimizer
        return self._hold((lineage, version), content)

    async def _pull_weights(
        self,
        *,
        host: str,
        port: int,
        version: int,
        lineage: int,
        transport: str,
        allow_public: bool,
    ) -> dict[str, Any]:
        await self.fabric.pause(0.5)
        server = self.fabric.servers.get(port)
        refused = self.fabric.refuses(self.cell, "pull_weights")
        if refused or server is None or server.label != (lineage, version):
            raise TrainerRefused("weights_unavailable", f"{port}: no {lineage}.{version}")
        content = server.content
        await self.fabric.pause(0.5)
        return self._hold((lineage, version), content)

    def _hold(self, label: Label, content: str) -> dict[str, Any]:
        self._require(self.open is None, "wrong_state", f"batch {self.open} is open")
        self.label, self.content = label, content
        return {}

    async def _serve_weights(
        self, *, host: str, transport: str, allow_public: bool
    ) -> dict[str, Any]:
        self._require(self.label is not None, "wrong_version", "nothing held")
        self.fabric.servers[self.cell] = self
        place = {"host": host, "port": self.cell, "transport": transport, "session": ""}
        return {**place, "checksum": self.content, "num_bytes": 1}

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
        self.world = None
        self._drop()

    async def _leave_world(self) -> dict[str, Any]:
        self._quit_world()
        return {}

    async def _begin_batch(self, *, batch: str, version: int) -> dict[str, Any]:
        self._require(not self.offloaded, "wrong_state", "offloaded")
        self._require("engine" not in self.fabric.holding(self.cell), "wrong_state", "no memory")
        self._require(
            self.label is not None and self.label[1] == version, "wrong_version", f"{self.label}"
        )
        self.fabric.begun.append((self.cell, batch, self.content))
        self._drop()
        self.open = batch
        return {}

    async def _submit_step(self, *, source: str, digest: str) -> dict[str, Any]:
        """Answered when the one before is computed, as the real one does."""
        batch, index = self.fabric.micro_steps[digest]
        self._require(self.open == batch, "wrong_state", f"open is {self.open}, not {batch}")
        self._require(index not in self.accumulated, "wrong_state", f"{index} twice")
        await self._computed()
        self._require(index not in self.accumulated, "wrong_state", f"{index} twice")
        self._computing = asyncio.ensure_future(self._compute(index))
        return {"accepted": index}

    async def _flush_steps(self) -> dict[str, Any]:
        self._require(self.open is not None, "wrong_state", "no batch")
        await self._computed()
        return {}

    async def _compute(self, index: int) -> None:
        await self.fabric.pause(self.seconds)
        self.accumulated.append(index)

    async def _computed(self) -> None:
        """What was submitted is accumulated."""
        if self._computing is not None:
            await asyncio.wait({self._computing})

    def _drop(self) -> None:
        if self._computing is not None:
            self._computing.cancel()
        self._computing, self.open, self.accumulated = None, None, []

    async def _drop_accumulation(self) -> dict[str, Any]:
        self._drop()
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
        await self._computed()
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
            self._require(self.has_optimizer, "wrong_state", "an update without its optimizer")
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

    async def _save_checkpoint(
        self, *, directory: Path, keep: int, protected: list[Path], asynchronous: bool
    ) -> dict[str, Any]:
        self._require(self.label is not None, "wrong_version", "nothing held")
        assert self.label is not None
        held = (self.label, self.content)
        work = self._save(directory, held, keep, {str(path) for path in protected})
        if not asynchronous:
            return await work
        self._saving = asyncio.ensure_future(work)
        return {"path": str(directory), "done": False}

    async def _save(
        self, directory: Path, held: tuple[Label, str], keep: int, protected: set[str]
    ) -> dict[str, Any]:
        await self.fabric.pause(0.5)
        (_, version), content = held
        if self.fabric.full.get(version, 0) > 0:
            self.fabric.full[version] -= 1
            raise TrainerRefused("no_space", f"{directory}: no room on its disk")
        there = self.fabric.checkpoints.setdefault(str(directory), held)
        self._require(there == held, "checkpoint_error", "another is there")
        self.fabric.prune(keep, protected)
        return {"path": str(directory), "sha256": content, "done": True}

    async def _checkpoint_status(self, *, directory: Path, wait_s: float) -> dict[str, Any]:
        self._require(self._saving is not None, "wrong_state", "nothing is being saved")
        assert self._saving is not None
        done, _ = await asyncio.wait({self._saving}, timeout=wait_s)
        if not done:
            return {"path": str(directory), "done": False}
        answer = self._saving.result()
        self._saving = None
        return answer

    async def _offload(self, *, directory: Path) -> dict[str, Any]:
        self._require(self.open is None, "wrong_state", "a batch is open")
        if "trainer" in self.fabric.holding(self.cell):
            self._require(not self.fabric.refuses(self.cell, "offload"), "no_memory", "refused")
        self.offloaded = True
        self.fabric.servers.pop(self.cell, None)
        self.fabric.give_memory(self.cell, "trainer")
        return {}

    async def _restore(self) -> dict[str, Any]:
        self._require(not self.fabric.refuses(self.cell, "restore"), "no_memory", "refused")
        if self.alive:
            self.fabric.take_memory(self.cell, "trainer")
        self.offloaded = False
        return {}


def _executions(met: dict[int, Any]) -> list[dict[str, Any]]:
    """One in each micro-step, as the real core says of all cells'."""
    done = sorted(index for _, indices, *_ in met.values() for index in indices)
    kept: dict[str, Any] = {"advantage": 0.0, "num_targets": 1, "ratio": 1.0, "kept": True}
    return [{"execution": f"e{n}", "group": "g", "micro_step": n, **kept} for n in done]


# The rest comes from the core's update and from the agent's clock.
_STATISTICS = NO_STATISTICS.model_dump(exclude={"grad_norm", "lr", "seconds"})
