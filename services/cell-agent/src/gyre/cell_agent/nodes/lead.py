"""The other nodes of a cell, as the agent of its first node sees them.

Consumes: the nodes' answers and `node.<cell>.ended`; control connections of their ranks. Produces:
`RemoteRank`s for the cell's `TrainerGroup`. Waits for: a node to answer, a rank to call.
A connection is taken for the rank's whose ticket it shows, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
from dataclasses import dataclass
from typing import Any

from gyre.adapters.eventlog.link import Link
from gyre.adapters.eventlog.wire import Unavailable
from gyre.adapters.keys import make_control_ticket
from gyre.adapters.logging import get_logger
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
    Request,
    StartRank,
)
from gyre.cell_agent.settings import CellAgentSettings
from gyre.cell_agent.trainer.process.channel import MAX_LINE_BYTES, TrainerGone
from gyre.contracts import subjects

REQUEST_S = 10.0
RETRY_S = 0.5
# A rank calls when it has started Python, before it imports torch.
HELLO_S = 5.0

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(slots=True, kw_only=True)
class Expected:
    """A rank that was started and has not ended. Futures are set once, by `Nodes`."""

    ticket: str
    connection: asyncio.Future[Connection]
    ended: asyncio.Future[int]


class Nodes:
    """Until `close`. node numbers: 1 .. cell_nodes - 1."""

    def __init__(self, settings: CellAgentSettings) -> None:
        self._settings = settings
        self._link = Link(settings.nats_url, name=f"cell-{settings.cell}-nodes")
        self._expected: dict[Place, Expected] = {}
        self._server: asyncio.Server | None = None
        self._listening: asyncio.Task[None] | None = None
        self.limits: tuple[int | None, ...] = ()

    async def gather(self) -> None:
        """Returns when every node has reported; `limits` then says what each takes."""
        self._server = await asyncio.start_server(
            self._on_call, self._settings.cell_host, 0, limit=MAX_LINE_BYTES
        )
        self._listening = asyncio.create_task(self._hear_ends())
        numbers = range(1, self._settings.cell_nodes)
        reports = await asyncio.gather(*(self._report_of(node) for node in numbers))
        self.limits = tuple(report.num_ranks for report in reports)

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        await self._link.close()

    @property
    def control(self) -> str:
        """host:port where ranks call."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def start(self, node: int, order: StartRank) -> tuple[int, Expected]:
        """The rank's process id there. Raises TrainerGone: the node did not start it."""
        place = (order.start, order.launch.rank)
        secret = self._settings.key_secret.get_secret_value()
        loop = asyncio.get_running_loop()
        expected = Expected(
            ticket=make_control_ticket(secret, *place),
            connection=loop.create_future(),
            ended=loop.create_future(),
        )
        self._expected[place] = expected
        expected.ended.add_done_callback(lambda _: self._expected.pop(place, None))
        try:
            answer = ANSWER.validate_json(await self._request(node, order))
        except (Unavailable, TimeoutError) as error:
            expected.ended.cancel()
            why = str(error) or f"nothing within {REQUEST_S:g} s"
            raise TrainerGone(f"node {node} does not answer: {why}") from error
        if "error" in answer:
            expected.ended.cancel()
            raise TrainerGone(f"node {node}: {answer['error']}")
        return int(answer["pid"]), expected

    async def end(self, node: int, order: EndRank) -> None:
        """SIGKILL; no error if the node is not there, whose ranks end with it."""
        with contextlib.suppress(Unavailable, TimeoutError):
            await self._request(node, order)

    async def _report_of(self, node: int) -> NodeReport:
        while True:
            with contextlib.suppress(Unavailable, TimeoutError):
                return REPORT.validate_json(await self._request(node, ReportNode()))
            get_logger().debug("node_awaited", node=node)
            await asyncio.sleep(RETRY_S)

    async def _request(self, node: int, request: Request) -> bytes:
        wire = await self._link.wire()
        subject = subjects.node(self._settings.cell, node)
        reply = await wire.request(subject, REQUEST.dump_json(request), timeout_s=REQUEST_S)
        return reply.data

    async def _hear_ends(self) -> None:
        subject = subjects.node_ended(self._settings.cell)
        while True:
            with contextlib.suppress(Unavailable):
                wire = await self._link.wire()
                lost = asyncio.Event()
                wire.when_lost(lambda _, lost=lost: lost.set())  # type: ignore[misc]
                wire.subscribe(subject, self._on_end)
                await lost.wait()
            await asyncio.sleep(RETRY_S)

    def _on_end(self, subject: bytes, reply: bytes, headers: bytes, data: bytes) -> None:
        ended: RankEnded = ENDED.validate_json(data)
        expected = self._expected.get((ended.start, ended.rank))
        if expected is not None and not expected.ended.done():
            expected.ended.set_result(ended.status)

    async def _on_call(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A rank's connection becomes its control channel; any other is closed."""
        with contextlib.suppress(TimeoutError, ValueError, ConnectionError):
            hello = json.loads(await asyncio.wait_for(reader.readline(), HELLO_S))
            expected = self._owner(hello)
            if expected is not None and not expected.connection.done():
                expected.connection.set_result((reader, writer))
                return
        get_logger().warning("control_refused", peer=str(writer.get_extra_info("peername")))
        writer.close()

    def _owner(self, hello: Any) -> Expected | None:
        shown = hello.get("ticket") if isinstance(hello, dict) else None
        if not isinstance(shown, str):
            return None
        for expected in self._expected.values():
            if hmac.compare_digest(expected.ticket.encode(), shown.encode()):
                return expected
        return None
