"""Weights handed on: exposed to the satellites, offered to and loaded by engines, published."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar

from gyre.adapters.logging import get_logger
from gyre.cell_agent.reports import Report
from gyre.cell_agent.stepping.base import DutyFamily
from gyre.cell_agent.weights.courier import WeightsNotHad
from gyre.cell_agent.weights.delivery import load_while_serving, newest_weights
from gyre.contracts.events import cells as cell_events
from gyre.core.cell import CellState, orders
from gyre.core.cell.state import Version

# Before an agent asks again for weights that it could not have: the core's may be starting anew.
ASK_AGAIN_S = 1.0

D = TypeVar("D")
Performed = Callable[["PublishingDuties", D, CellState], Awaitable[list[Report]]]


def asked_again(perform: Performed[D]) -> Performed[D]:
    """Weights that could not be had or offered now: nothing is said, and the duty is due again. The
    engine serves what it has, under the name of that; whoever waits for it has a deadline."""

    @wraps(perform)
    async def performed(self: PublishingDuties, duty: D, state: CellState) -> list[Report]:
        try:
            return await perform(self, duty, state)
        except WeightsNotHad as error:
            get_logger().warning("weights_not_had", reason=error.message)
            await asyncio.sleep(ASK_AGAIN_S)
            return []

    return performed


class PublishingDuties(DutyFamily):
    async def expose(self, duty: orders.ExposeWeights, state: CellState) -> list[Report]:
        section = state.required_spec.weights
        answer = await self._trainer.call(
            "serve_weights",
            self._processes.deadlines(state).weights_s,
            host=self._settings.cell_host,
            transport=section.transport,
            allow_public=section.allow_public,
        )
        self._held.exposed = duty.version
        places = ("host", "port", "checksum", "transport", "session", "num_bytes")
        return [_exposed(state, duty.version, **{name: answer[name] for name in places})]

    @asked_again
    async def offer(self, duty: orders.OfferCheckpoint, state: CellState) -> list[Report]:
        """The durable checkpoint, to the agents of engines that do not share the core's disk."""
        saved = duty.checkpoint
        offered = self._processes.courier.offer(
            state.job or "",
            saved.path,
            saved.version,
            allow_public=state.required_spec.weights.allow_public,
        )
        self._held.offered = saved.version
        return [
            _exposed(
                state,
                saved.version,
                host=offered.host,
                port=offered.port,
                checksum=saved.checksum,
                num_bytes=offered.num_bytes,
                source="checkpoint",
            )
        ]

    @asked_again
    async def load_weights(self, duty: orders.LoadWeights, state: CellState) -> list[Report]:
        """Into the engine, which serves on."""
        in_flight, started = state.required_spec.weights.in_flight, time.monotonic()
        weights = newest_weights(state)
        engine = self._processes.live_engine.client
        num_retracted = await load_while_serving(
            engine, weights, self._processes.courier, in_flight
        )
        self._held.engine_version = weights.version
        lineage, version = weights.version
        body = cell_events.WeightsLoaded(
            cell=state.cell,
            version=version,
            lineage=lineage,
            checksum=weights.checksum or "",
            transport="disk" if weights.offered is None else weights.offered.transport,
            in_flight=in_flight,
            seconds=time.monotonic() - started,
            num_retracted=num_retracted,
        )
        return [Report(body=body)]

    def publish(self, duty: orders.Publish) -> list[Report]:
        lineage, version = duty.checkpoint.version
        body = cell_events.WeightsPublished(
            version=version,
            lineage=lineage,
            path=duty.checkpoint.path,
            confirmed_by=duty.confirmed_by,
        )
        return [Report(body=body)]


def _exposed(state: CellState, which: Version, **place: Any) -> Report:
    """place: the event's fields that say where and what."""
    lineage, version = which
    body = cell_events.WeightsExposed(cell=state.cell, version=version, lineage=lineage, **place)
    return Report(body=body)
