"""One cell of real processes, driven through role changes by the agent's own performer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from gyre.cell_agent.engine.base import EngineClient, EngineError
from gyre.cell_agent.performer import Performer
from gyre.cell_agent.processes import CellProcesses
from gyre.cell_agent.settings import CellAgentSettings
from gyre.contracts.events.cells import RoleChanged
from gyre.core.cell import CellState, orders
from gyre.core.cell.state import Checkpoint
from gyre.testkit.specs import job_spec

VERSION = (1, 0)
JOB = "switching"
SECRET = "of the switching cell"
SIDES = ("engine_bytes", "trainer_bytes")


@dataclass(kw_only=True)
class SwitchingCell:
    """state: as its agent would have folded it; `role` follows what is said."""

    performer: Performer
    state: CellState
    model: Path

    @property
    def engine(self) -> EngineClient:
        return self.performer.processes.live_engine.client

    async def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Of the trainer."""
        return await self.performer.processes.live_trainer.call(command, 60.0, **arguments)

    async def leave(self) -> RoleChanged:
        return await self._change(orders.EnterTraining())

    async def come_back(self, checkpoint: Checkpoint | None = None) -> RoleChanged:
        version = checkpoint.version if checkpoint is not None else VERSION
        return await self._change(orders.ReturnToRollout(checkpoint=checkpoint, version=version))

    async def _change(self, duty: orders.Duty) -> RoleChanged:
        [report] = await self.performer.perform(duty, self.state)
        assert isinstance(report.body, RoleChanged)
        self.state.role = report.body.role
        return report.body

    async def greedy(self, rid: str, num_tokens: int = 6) -> tuple[int, ...]:
        sampling = {"temperature": 0, "max_new_tokens": num_tokens, "ignore_eos": True}
        answer = await self.engine.generate(
            input_ids=list(range(30, 60)), sampling_params=sampling, rid=rid
        )
        return answer.output_ids

    async def stream(self, rid: str, num_tokens: int) -> bool:
        """Whether the engine answered for the call: finished or aborted with what it had."""
        parameters = {"max_new_tokens": num_tokens, "temperature": 1.0, "ignore_eos": True}
        stream = self.engine.stream(input_ids=[11, 12, 13], sampling_params=parameters, rid=rid)
        try:
            endings = [event.finish_type async for event in stream]
        except EngineError:
            return False
        return bool(endings) and endings[-1] in ("abort", "length")

    async def until_busy(self, num_requests: int) -> None:
        while await self.engine.num_requests() < num_requests:
            await asyncio.sleep(0.002)


@asynccontextmanager
async def switching_cell(
    home: Path, model: Path, *, capacity: int = 4, context_tokens: int = 1024
) -> AsyncIterator[SwitchingCell]:
    """In rollout, with both processes up."""
    sections = {"model": {"path": str(model), "context_tokens": context_tokens}}
    spec = job_spec(cells=1, capacity=capacity, phi=0.0, heldout=False, sections=sections)
    state = CellState(cell=0, job=JOB, spec=spec, order=(0,), role="rollout")
    settings = CellAgentSettings.model_validate(
        {
            "nats_url": "nats://unused",
            "database_url": "postgresql://unused",
            "home": home,
            "key_secret": SECRET,
            "cell": 0,
            "store_port": 1,
        }
    )
    performer = Performer(settings, CellProcesses(settings))
    try:
        await performer.perform(orders.StartEngine(path=None, version=VERSION), state)
        await performer.perform(orders.StartTrainer(path=None, version=VERSION), state)
        yield SwitchingCell(performer=performer, state=state, model=model)
    finally:
        await performer.processes.stop()


class Refusing(httpx.AsyncBaseTransport):
    """A road to the engine on which requests to some paths are answered with a refusal. paths:
    path -> how many more of them. All others reach it."""

    def __init__(self, inner: httpx.AsyncBaseTransport, paths: dict[str, int]) -> None:
        self._inner, self.paths = inner, paths

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        left = self.paths.get(request.url.path, 0)
        if left:
            self.paths[request.url.path] = left - 1
            return httpx.Response(400, json={"message": "refused on the way"}, request=request)
        return await self._inner.handle_async_request(request)


class Answerless(httpx.AsyncBaseTransport):
    """A road on which requests to one path reach the engine, and what it answers is lost."""

    def __init__(self, inner: httpx.AsyncBaseTransport, path: str) -> None:
        self._inner, self._path = inner, path

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._inner.handle_async_request(request)
        if request.url.path == self._path:
            await response.aread()
            await asyncio.Event().wait()
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


def most_held(changes: Sequence[RoleChanged], bases: tuple[int, int]) -> tuple[int, int, int]:
    """Over all phases: the most that the engine, the trainer, and both together held beyond
    `bases`, what their programs take without any model. Bytes."""
    held = [
        [(getattr(phase, side) or 0) - base for side, base in zip(SIDES, bases, strict=True)]
        for change in changes
        for phase in change.phases
    ]
    engine, trainer = (max(values) for values in zip(*held, strict=True))
    return engine, trainer, max(sum(both) for both in held)
