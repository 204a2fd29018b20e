"""Role changes: the engine started, drained for training, given new weights, back in service.

Order on the way out (law "serving never stops"): the route has moved already, so what still runs
here is aborted with its partial output kept by the proxy; once the engine is empty it is paused, so
that a request sent before its proxy saw the move waits in vain instead of running on a cell that
trains; that proxy drops it when the move reaches it. What the aborted calls have in the cache stays
pinned until their proxies have had it copied to where they go on, and so does what executions
between two calls have there; but never longer than PIN_S: a proxy that died holds no cell up.
"""

from __future__ import annotations

import asyncio
import time

from gyre.adapters.logging import get_logger
from gyre.cell_agent.engine.base import EngineClient, EngineError, EngineRefusedError
from gyre.cell_agent.reports import Report
from gyre.cell_agent.stepping.base import SHORT_S, DutyFamily
from gyre.contracts.events import cells as cell_events
from gyre.core.cell import CellState, duties
from gyre.core.cell.state import Checkpoint, Version
from gyre.core.routing import weight_version_name

# Between two looks whether an aborted engine is empty: a decode step of a small model.
_DRAIN_POLL_S = 0.02

# How long a cell on its way to training keeps cached prefixes for a copy, at most. A copy takes
# milliseconds to a second and its proxy gives it up after 4 s.
PIN_S = 5.0

# How long it waits to be told of the executions between two calls that the switch moves away. Their
# proxy sees the same fact as the agent, and says so within milliseconds.
ANNOUNCE_S = 1.0


class WeightsDiffer(EngineError):
    """The engine loaded a checkpoint and says another checksum than its manifest."""


class RoleDuties(DutyFamily):
    """The cell's role, and what changes it. Memory is the engine's or the trainer's gradients'."""

    async def start_engine(self, duty: duties.StartEngine, state: CellState) -> list[Report]:
        await self._processes.start_engine(state, duty.path, duty.version)
        self._held.engine_version = duty.version
        return []

    def report_rollout(self, duty: duties.ReportRollout, state: CellState) -> list[Report]:
        return [self._role(state, "rollout", duty.version, 0.0)]

    async def enter_training(self, state: CellState) -> list[Report]:
        started = time.monotonic()
        deadline = state.required_spec.schedule.transition_deadline_s
        await drain(
            self._processes.live_engine.client,
            deadline,
            switch=state.switch,
            num_moved=state.num_moved,
        )
        self._held.engine_paused = True
        await self._trainer.call("restore", SHORT_S)
        version = self._held.engine_version or state.published
        return [self._role(state, "training", version, time.monotonic() - started)]

    async def return_to_rollout(
        self, duty: duties.ReturnToRollout, state: CellState
    ) -> list[Report]:
        started = time.monotonic()
        await self._offload()
        if self._processes.engine is None:
            path = state.checkpoint.path if state.checkpoint else None
            await self._processes.start_engine(state, path, duty.version)
        elif self._held.engine_paused:
            await serve_again(self._processes.live_engine.client, duty.checkpoint)
        elif duty.checkpoint is not None:
            await load_while_serving(self._processes.live_engine.client, duty.checkpoint)
        self._held.engine_paused = False
        self._held.engine_version = duty.version
        return [self._role(state, "rollout", duty.version, time.monotonic() - started)]

    async def _offload(self) -> None:
        await self._trainer.call("drop_accumulation", SHORT_S)
        self._drop_accumulation()
        await self._trainer.call("offload", SHORT_S)

    async def stop_job(self, state: CellState) -> list[Report]:
        """Both processes end; the cell holds nothing and is free for another job."""
        await self._processes.stop()
        self._held.clear()
        return [self._role(state, "offline", state.published, 0.0)]

    def _role(
        self, state: CellState, role: cell_events.CellRole, version: Version, seconds: float
    ) -> Report:
        engine, trainer = self._processes.engine, self._processes.trainer
        lineage, number = version
        body = cell_events.RoleChanged(
            cell=state.cell,
            role=role,
            version=number,
            lineage=lineage,
            engine_url=engine.client.base_url if engine is not None else None,
            duration_s=seconds,
            engine_pid=engine.pid if engine is not None else None,
            trainer_pid=trainer.pid if trainer is not None else None,
        )
        return Report(body=body)


async def drain(
    engine: EngineClient, deadline_s: float, *, switch: int = 0, num_moved: int = 0
) -> None:
    """Abort until nothing runs or waits, then hold the engine. Raises EngineError.

    switch: log sequence of the decision. num_moved: executions that it moves away.
    """
    began = time.monotonic()
    pinned_until = began + min(PIN_S, deadline_s)
    while True:
        left = pinned_until - time.monotonic()
        await engine.abort(pin_s=left if left > 0 else None)
        if await engine.num_requests() == 0:
            break
        if time.monotonic() > began + deadline_s:
            raise EngineError(f"not drained after {deadline_s:g} s")
        await asyncio.sleep(_DRAIN_POLL_S)
    await engine.pause("in_place")
    await _copied_away(engine, pinned_until, switch, num_moved)
    try:
        await engine.release_memory(("kv_cache",))
    except EngineRefusedError as error:
        # A late request waits behind the pause; its memory is what stays, nothing else.
        get_logger().info("memory_kept", reason=error.message)


async def _copied_away(engine: EngineClient, until: float, switch: int, num_moved: int) -> None:
    """Until no cached prefix waits to be copied, `until` on the monotonic clock at the latest."""
    told_until = min(until, time.monotonic() + ANNOUNCE_S)
    while num_moved and time.monotonic() < told_until:
        num_announced = await engine.num_announced(switch)
        if num_announced is None or num_announced >= num_moved:
            break
        await asyncio.sleep(_DRAIN_POLL_S)
    while time.monotonic() < until and await engine.num_pins():
        await asyncio.sleep(_DRAIN_POLL_S)


async def serve_again(engine: EngineClient, checkpoint: Checkpoint | None) -> None:
    """Undo `drain`, with newer weights when given. Raises EngineError."""
    await engine.resume_memory(("kv_cache",))
    if checkpoint is not None:
        await _load(engine, checkpoint)
    await engine.resume()


async def load_while_serving(engine: EngineClient, checkpoint: Checkpoint) -> None:
    """Between two tokens: running requests are retracted, the cache is flushed, they go on under
    the new weights, so that cached keys and values are always the stated version's."""
    await engine.pause("retract")
    await _load(engine, checkpoint)
    await engine.resume()


async def _load(engine: EngineClient, checkpoint: Checkpoint) -> None:
    await engine.update_weights_from_disk(
        checkpoint.path, weight_version=weight_version_name(*checkpoint.version)
    )
    found = await engine.checksum()
    if found != checkpoint.checksum:
        raise WeightsDiffer(
            f"checksum {found[:12]} after loading {checkpoint.path}, "
            f"its manifest says {checkpoint.checksum[:12]}"
        )
