"""Weights handed on: exposed to the satellites, offered to and loaded by engines, published."""

from __future__ import annotations

import asyncio
import time

from gyre.adapters.logging import get_logger
from gyre.cell_agent.reports import Report
from gyre.cell_agent.stepping.base import SHORT_S, DutyFamily
from gyre.cell_agent.weights.courier import WeightsNotHad
from gyre.cell_agent.weights.delivery import load_while_serving, newest_weights
from gyre.contracts.events import cells as cell_events
from gyre.core.cell import CellState, duties

# Before an agent asks again for weights that it could not have: the core's may be starting anew.
ASK_AGAIN_S = 1.0


class PublishingDuties(DutyFamily):
    async def expose(self, duty: duties.ExposeWeights, state: CellState) -> list[Report]:
        section = state.required_spec.weights
        answer = await self._trainer.call(
            "serve_weights",
            SHORT_S,
            host=self._settings.cell_host,
            transport=section.transport,
            allow_public=section.allow_public,
        )
        self._held.exposed = duty.version
        lineage, version = duty.version
        body = cell_events.WeightsExposed(
            cell=state.cell,
            version=version,
            lineage=lineage,
            host=answer["host"],
            port=answer["port"],
            checksum=answer["checksum"],
            transport=answer["transport"],
            session=answer["session"],
            num_bytes=answer["num_bytes"],
        )
        return [Report(body=body)]

    async def offer(self, duty: duties.OfferCheckpoint, state: CellState) -> list[Report]:
        """The durable checkpoint, to the agents of engines that do not share the core's disk."""
        saved = duty.checkpoint
        try:
            offered = self._processes.courier.offer(
                state.job or "",
                saved.path,
                saved.version,
                allow_public=state.required_spec.weights.allow_public,
            )
        except WeightsNotHad as error:
            get_logger().error("checkpoint_not_offered", reason=error.message)
            await asyncio.sleep(ASK_AGAIN_S)
            return []
        self._held.offered = saved.version
        lineage, version = saved.version
        body = cell_events.WeightsExposed(
            cell=state.cell,
            version=version,
            lineage=lineage,
            host=offered.host,
            port=offered.port,
            checksum=saved.checksum,
            num_bytes=offered.num_bytes,
            source="checkpoint",
        )
        return [Report(body=body)]

    async def load_weights(self, duty: duties.LoadWeights, state: CellState) -> list[Report]:
        """Into the engine, which serves on."""
        in_flight, started = state.required_spec.weights.in_flight, time.monotonic()
        weights = newest_weights(state)
        engine = self._processes.live_engine.client
        try:
            num_retracted = await load_while_serving(
                engine, weights, self._processes.courier, in_flight
            )
        except WeightsNotHad as error:
            # The engine serves what it has, under the name of that; whoever waits for it has a
            # deadline.
            get_logger().warning("weights_not_had", reason=error.message)
            await asyncio.sleep(ASK_AGAIN_S)
            return []
        self._held.engine_version = weights.version
        lineage, version = weights.version
        body = cell_events.WeightsLoaded(
            cell=state.cell,
            version=version,
            lineage=lineage,
            checksum=duty.checkpoint.checksum,
            transport="disk" if weights.offered is None else weights.offered.transport,
            in_flight=in_flight,
            seconds=time.monotonic() - started,
            num_retracted=num_retracted,
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
