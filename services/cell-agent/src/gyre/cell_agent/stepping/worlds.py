"""The job's world of trainers: left, formed anew, said to be broken."""

from __future__ import annotations

from gyre.cell_agent.reports import Report
from gyre.cell_agent.stepping.base import DutyFamily
from gyre.cell_agent.trainer.process.client import TrainerRefused
from gyre.contracts.events import cells as cell_events
from gyre.core.cell import CellState, orders


class WorldDuties(DutyFamily):
    async def await_world(self, duty: orders.AwaitWorld, state: CellState) -> list[Report]:
        """Out of the old world first: a member still in one of its collectives may be waiting for
        this cell alone, and would not hear of the new world before its time-out."""
        self._drop_accumulation()
        self._held.world_epoch = 0
        await self._trainer.call("leave_world", self._processes.deadlines(state).drop_s)
        return [Report(body=cell_events.WorldReady(cell=state.cell, epoch=duty.epoch))]

    async def form_world(self, duty: orders.FormWorld, state: CellState) -> list[Report]:
        """Leaving the old world drops the accumulation too; owned micro-steps are done again."""
        self._drop_accumulation()
        self._held.world_epoch = 0
        limits = self._processes.deadlines(state)
        try:
            await self._trainer.call(
                "form_world",
                limits.world_s + limits.drop_s,
                epoch=duty.epoch,
                rank=duty.rank,
                size=duty.size,
                timeout_s=limits.world_s,
                store_host=self._settings.store_host,
                store_port=self._settings.store_port,
            )
        except TrainerRefused as refused:
            if refused.kind != "peer_lost":
                raise
            self._held.broken_epoch = duty.epoch
            return []
        self._held.world_epoch = duty.epoch
        return [Report(body=cell_events.WorldJoined(cell=state.cell, epoch=duty.epoch))]

    def report_broken(self, duty: orders.ReportBroken, state: CellState) -> list[Report]:
        why = "a peer died" if duty.explained else "no peer is known to have died"
        body = cell_events.WorldBroken(
            cell=state.cell, epoch=duty.epoch, error=f"collective failed: {why}"
        )
        return [Report(body=body)]
