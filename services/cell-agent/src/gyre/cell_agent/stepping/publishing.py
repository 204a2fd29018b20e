"""Weights handed on: exposed to the satellites, loaded by the engine, published to the job."""

from __future__ import annotations

from gyre.cell_agent.reports import Report
from gyre.cell_agent.roles import load_while_serving
from gyre.cell_agent.stepping.base import SHORT_S, DutyFamily
from gyre.contracts.events import cells as cell_events
from gyre.core.cell import CellState, duties


class PublishingDuties(DutyFamily):
    async def expose(self, duty: duties.ExposeWeights, state: CellState) -> list[Report]:
        answer = await self._trainer.call("serve_weights", SHORT_S, host=self._settings.cell_host)
        self._held.exposed = duty.version
        lineage, version = duty.version
        body = cell_events.WeightsExposed(
            cell=state.cell,
            version=version,
            lineage=lineage,
            host=answer["host"],
            port=answer["port"],
            checksum=answer["checksum"],
        )
        return [Report(body=body)]

    async def load_weights(self, duty: duties.LoadWeights, state: CellState) -> list[Report]:
        """Into the engine, which serves on."""
        await load_while_serving(self._processes.live_engine.client, duty.checkpoint)
        self._held.engine_version = duty.checkpoint.version
        lineage, version = duty.checkpoint.version
        body = cell_events.WeightsLoaded(
            cell=state.cell, version=version, lineage=lineage, checksum=duty.checkpoint.checksum
        )
        return [Report(body=body)]

    def publish(self, duty: duties.Publish) -> list[Report]:
        lineage, version = duty.checkpoint.version
        body = cell_events.WeightsPublished(
            version=version,
            lineage=lineage,
            path=duty.checkpoint.path,
            confirmed_by=duty.confirmed_by,
        )
        return [Report(body=body)]
