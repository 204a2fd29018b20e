"""`GYRE_NODE` above 0: runs ranks of a cell for the agent of its first node.

Consumes: requests on `node.<cell>.<node>`. Produces: the ranks' processes, their answers on the
control connections that they make themselves, and `node.<cell>.ended` when one has ended.
Waits for: a request, or a rank's end. Its ranks end with it: they hold the other end of a pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path

from pydantic import ValidationError

from gyre.adapters.eventlog.link import Link
from gyre.adapters.eventlog.wire import Unavailable
from gyre.adapters.keys import make_control_ticket
from gyre.adapters.logging import get_logger
from gyre.cell_agent.child_environment import child_environment, trainer_environment
from gyre.cell_agent.gpus import rank_limit
from gyre.cell_agent.nodes.messages import (
    ANSWER,
    ENDED,
    REPORT,
    REQUEST,
    EndRank,
    NodeReport,
    Place,
    RankEnded,
    ReportNode,
    StartRank,
)
from gyre.cell_agent.settings import CellAgentSettings
from gyre.cell_agent.trainer.process.control import LIFELINE, TICKET
from gyre.contracts import subjects

RECONNECT_S = 0.5


class NodeHost:
    """One node's ranks. Mutated by requests and by the ranks' ends."""

    def __init__(self, settings: CellAgentSettings) -> None:
        self._settings = settings
        self._limit = rank_limit(settings.node_ranks, os.environ)
        self._link = Link(settings.nats_url, name=f"cell-{settings.cell}-node-{settings.node}")
        self._ranks: dict[Place, asyncio.subprocess.Process] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, listening: asyncio.Event) -> None:
        """Until cancelled; ends the ranks on the way out. listening: set once it hears requests."""
        subject = subjects.node(self._settings.cell, self._settings.node)
        try:
            while True:
                with contextlib.suppress(Unavailable):
                    wire = await self._link.wire()
                    lost = asyncio.Event()
                    wire.when_lost(lambda _, lost=lost: lost.set())  # type: ignore[misc]
                    wire.subscribe(subject, self._on_request)
                    listening.set()
                    await lost.wait()
                await asyncio.sleep(RECONNECT_S)
        finally:
            await self._end_all()
            await self._link.close()

    async def _end_all(self) -> None:
        """What is being started too: its start ends first, and then it."""
        while self._tasks:
            for process in self._ranks.values():
                _kill(process)
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    def _on_request(self, subject: bytes, reply: bytes, headers: bytes, data: bytes) -> None:
        self._keep(asyncio.create_task(self._answer(reply.decode(), data)))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, reply: str, data: bytes) -> None:
        try:
            answer = await self._do(data)
        except (ValidationError, OSError) as error:
            line = " ".join(str(error).split())[:300]
            get_logger().warning("node_request_refused", error=line)
            answer = ANSWER.dump_json({"error": line})
        with contextlib.suppress(Unavailable):
            (await self._link.wire()).publish(reply, answer)

    async def _do(self, data: bytes) -> bytes:
        match REQUEST.validate_json(data):
            case ReportNode():
                report = NodeReport(host=socket.gethostname(), num_ranks=self._limit)
                return REPORT.dump_json(report)
            case StartRank() as order:
                return ANSWER.dump_json({"pid": await self._start(order)})
            case EndRank() as order:
                process = self._ranks.get((order.start, order.rank))
                if process is not None:
                    _kill(process)
                return ANSWER.dump_json({})

    async def _start(self, order: StartRank) -> int:
        settings, launch = self._settings, order.launch
        secret = settings.key_secret.get_secret_value()
        lifeline, ours = os.pipe()
        environment = {
            **trainer_environment(secret, order.job),
            TICKET: make_control_ticket(secret, order.start, launch.rank),
            LIFELINE: str(lifeline),
        }
        log_path: Path = settings.home / "logs" / f"trainer-{settings.cell}.log"
        log_path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log_path.open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *launch.command(order.control),
                    pass_fds=(lifeline,),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=child_environment(launch.threads, environment),
                )
        except OSError:
            os.close(ours)
            raise
        finally:
            os.close(lifeline)
        place = (order.start, launch.rank)
        self._ranks[place] = process
        self._keep(asyncio.create_task(self._watch(place, process, ours)))
        return process.pid

    async def _watch(self, place: Place, process: asyncio.subprocess.Process, ours: int) -> None:
        try:
            status = await process.wait()
        finally:
            os.close(ours)
            del self._ranks[place]
        start, rank = place
        get_logger().info("rank_ended", rank=rank, status=status)
        ended = ENDED.dump_json(RankEnded(start=start, rank=rank, status=status))
        with contextlib.suppress(Unavailable):
            (await self._link.wire()).publish(subjects.node_ended(self._settings.cell), ended)


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
