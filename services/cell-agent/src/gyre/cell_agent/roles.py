"""Role changes, by phases: the engine emptied for training, given new weights, serving again.

    rollout -> training: stop_admitting reroute drain release_engine restore_trainer
                         (and, when a batch is joined: pull_weights register)
    training -> rollout: offload_trainer resume_engine receive_weights warm open_routes

Invariants:
- no change has engine and trainer hold the memory both: one side's is given up, and known to be,
  before the other's is taken. A release that is refused ends the change. Outside of changes there
  are moments of both (`stepping.checkpoints`): a trainer that starts beside an engine that serves
  holds its own until it has loaded and offloads, but on a GPU; a core that is restored there holds
  its own while it loads;
- a change that fails is undone, phase by phase, and the cell keeps the role it had. On the way to
  training that is said, with the phase; on the way back it is tried once more, and then whoever
  failed is ended: a new process begins with the right weights. Where the core cannot be had the
  duty is left for later: nobody here has failed;
- a process that does not answer is not undone but ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import NamedTuple

from gyre.adapters.logging import get_logger
from gyre.cell_agent import engine_turn
from gyre.cell_agent.engine.base import EngineClient, EngineError
from gyre.cell_agent.phases import PhaseFailed, Phases, now
from gyre.cell_agent.reports import Report
from gyre.cell_agent.stepping import publishing
from gyre.cell_agent.stepping.base import DutyFamily
from gyre.cell_agent.trainer.process.client import TrainerGone, TrainerTimeout
from gyre.cell_agent.weights.courier import WeightsNotHad
from gyre.cell_agent.weights.delivery import load, load_while_serving, newest_weights
from gyre.contracts.events import cells as cell_events
from gyre.core.cell import CellState, duties, orders
from gyre.core.cell.state import Version


class Change(NamedTuple):
    """A role change under way. began: by `phases.now`."""

    state: CellState
    phases: Phases
    began: float


class RoleDuties(DutyFamily):
    """The cell's role, and what changes it."""

    async def start_engine(self, duty: orders.StartEngine, state: CellState) -> list[Report]:
        await self._processes.start_engine(state, duty.path, duty.version)
        self._held.engine_version = duty.version
        return []

    def report_rollout(self, duty: orders.ReportRollout, state: CellState) -> list[Report]:
        return [self._role(self._change(state), "rollout", duty.version)]

    async def enter_training(self, state: CellState) -> list[Report]:
        change = self._change(state)
        try:
            await self._give_to_trainer(change)
        except PhaseFailed as failed:
            if isinstance(failed.cause, TrainerGone | TrainerTimeout):
                # In an unknown state. That it ended is said like any other loss.
                await self._processes.end_trainer()
            await self._undo(change, failed)
            version = self._held.engine_version or state.published
            return [self._role(change, "rollout", version, undone=failed.phase)]
        version = self._held.engine_version or state.published
        return [self._role(change, "training", version)]

    async def _give_to_trainer(self, change: Change) -> None:
        state, phases = change.state, change.phases
        engine = self._processes.live_engine.client
        pinned_until = change.began + engine_turn.PIN_S
        async with phases("stop_admitting", undo=partial(self._serve, state)):
            self._held.engine_paused = True
            await engine_turn.stop_admitting(engine, pinned_until)
        async with phases("reroute"):
            told_until = min(pinned_until, now() + engine_turn.ANNOUNCE_S)
            await engine_turn.spoken_for(engine, state.switch, state.num_moved, told_until)
        async with phases("drain"):
            await engine_turn.copied_away(engine, pinned_until)
        async with phases("release_engine"):
            await engine_turn.release(engine)
        async with phases("restore_trainer", undo=partial(self._take_from_trainer, state)):
            await self._restore(state)

    async def return_to_rollout(
        self, duty: orders.ReturnToRollout, state: CellState
    ) -> list[Report]:
        change = self._change(state)
        failed = await self._failed_to_return(change, duty)
        if failed is not None and not isinstance(failed.cause, WeightsNotHad):
            failed = await self._failed_to_return(change, duty)
        if failed is None:
            self._held.engine_version = duty.version
            return [self._role(change, "rollout", duty.version)]
        if isinstance(failed.cause, WeightsNotHad):
            await asyncio.sleep(publishing.ASK_AGAIN_S)
            return []
        raise failed.cause from failed

    async def _failed_to_return(
        self, change: Change, duty: orders.ReturnToRollout
    ) -> PhaseFailed | None:
        """Tries, and undoes what it did if a phase fails, which it returns."""
        try:
            await self._give_to_engine(change, duty)
        except PhaseFailed as failed:
            if isinstance(failed.cause, TrainerGone | TrainerTimeout):
                raise failed.cause from failed
            await self._undo(change, failed)
            return failed
        return None

    async def _give_to_engine(self, change: Change, duty: orders.ReturnToRollout) -> None:
        state, phases = change.state, change.phases
        async with phases("offload_trainer", undo=partial(self._restore, state)):
            await self._offload(state)
        weights, courier = newest_weights(state), self._processes.courier
        in_flight = state.required_spec.weights.in_flight
        is_new = self._processes.engine is None
        if is_new:
            # A process that starts has the deadline of a start.
            if weights.offered is None:
                await self._processes.start_engine(state, weights.path, duty.version)
            else:
                await self._processes.start_engine(state, None, orders.BEFORE_ALL)
        engine = self._processes.live_engine.client
        if is_new or not self._held.engine_paused:
            if duty.checkpoint is not None and not (is_new and weights.offered is None):
                # It runs and has all its memory, which the trainer is about to take again.
                async with phases("receive_weights", undo=self._end_engine):
                    await load_while_serving(engine, weights, courier, in_flight)
            return
        async with phases("resume_engine", undo=partial(_hold, engine)):
            gave_weights = await engine_turn.take_back(engine)
        async with phases("receive_weights"):
            if gave_weights or duty.checkpoint is not None:
                await load(engine, weights, courier)
        async with phases("warm"):
            await engine_turn.warm(engine)
        async with phases("open_routes"):
            if not await engine.ready():
                raise EngineError("it is not ready after its first tokens")
        self._held.engine_paused = False

    async def _serve(self, state: CellState) -> None:
        """Undo what was done to the engine on the way to training. It serves the newest weights:
        others may have come while it was on its way."""
        engine = self._processes.live_engine.client
        gave_weights = await engine_turn.take_back(engine)
        try:
            await self._catch_up(engine, state, gave_weights)
        except WeightsNotHad:
            if gave_weights:
                raise
            # It serves what it has, under the name of that, and is given them as it serves.
        await engine_turn.warm(engine)
        self._held.engine_paused = False

    async def _catch_up(self, engine: EngineClient, state: CellState, gave_weights: bool) -> None:
        """Load the newest weights into the held engine if it has others, or none. Raises
        WeightsNotHad: nothing was changed; other EngineErrors."""
        weights = newest_weights(state)
        if not gave_weights and self._held.engine_version == weights.version:
            return
        if not (state.is_core or duties.in_reach(state)):
            raise WeightsNotHad("the core does not offer its checkpoint yet")
        await engine.pause("retract")
        await load(engine, weights, self._processes.courier)
        self._held.engine_version = weights.version

    async def _end_engine(self) -> None:
        """A new one is started when the change is tried again."""
        await self._processes.forget("engine")
        self._held.engine_version, self._held.engine_paused = None, False

    async def _undo(self, change: Change, failed: PhaseFailed) -> None:
        get_logger().warning("switch_undone", phase=failed.phase, reason=str(failed.cause))
        await change.phases.undo()

    async def _offload(self, state: CellState) -> None:
        limits = self._processes.deadlines(state)
        await self._trainer.call("drop_accumulation", limits.drop_s)
        self._drop_accumulation()
        await self._trainer.call("offload", limits.state_s, directory=self.parked)
        self._held.exposed = None

    async def _take_from_trainer(self, state: CellState) -> None:
        # What has ended holds nothing.
        with contextlib.suppress(TrainerGone):
            await self._offload(state)

    async def _restore(self, state: CellState) -> None:
        await self._trainer.call("restore", self._processes.deadlines(state).state_s)

    async def stop_job(self, state: CellState) -> list[Report]:
        """Both processes end; the cell holds nothing and is free for another job."""
        await self._processes.stop()
        self._held.clear()
        return [self._role(self._change(state), "offline", state.published)]

    def _change(self, state: CellState) -> Change:
        return Change(state, self._phases(state), now())

    def _role(
        self, change: Change, role: cell_events.CellRole, version: Version, *, undone: str = ""
    ) -> Report:
        engine, trainer = self._processes.engine, self._processes.trainer
        lineage, number = version
        body = cell_events.RoleChanged(
            cell=change.state.cell,
            role=role,
            version=number,
            lineage=lineage,
            engine_url=engine.client.base_url if engine is not None else None,
            duration_s=now() - change.began,
            engine_pid=engine.pid if engine is not None else None,
            trainer_pid=trainer.pid if trainer is not None else None,
            trainer_pids=trainer.pids if trainer is not None else (),
            phases=tuple(change.phases.records),
            undone=undone,
        )
        return Report(body=body)


async def _hold(engine: EngineClient) -> None:
    """Nothing runs on it, and its memory is given up again."""
    await engine_turn.stop_admitting(engine, 0.0)
    await engine_turn.release(engine)
