"""The work queue on the stream GYRE_WORK: durable pull consumers, explicit acks."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import orjson

from gyre.adapters.eventlog.base import EventLogError, Stream
from gyre.adapters.eventlog.consumer import header
from gyre.adapters.eventlog.jetstream import append_headers
from gyre.adapters.eventlog.link import FIRST_PAUSE_S, LAST_PAUSE_S, Link, call
from gyre.adapters.eventlog.wire import Unavailable, Wire, WireLost
from gyre.adapters.workqueue.base import ACK_WAIT_S, Verdict, WorkItem, check_ticket

PUT_DEADLINE_S = 30.0
SETTLE_DEADLINE_S = 10.0
CONFIRM_S = 2.0
# How long `take` answers [] while the server is away, before it says so.
PATIENCE_S = 60.0
# The server answers an expired request itself; this is its allowance.
EXPIRY_SLACK_S = 2.0
_STREAM = Stream.WORK.value
_NANOSECONDS = 1_000_000_000


class JetStreamWorkQueue:
    """Implements WorkQueue. The stream must exist (`streams.ensure_streams`)."""

    def __init__(
        self, url: str, *, name: str = "gyre-work", ack_wait_s: float = ACK_WAIT_S
    ) -> None:
        self._link = Link(url, name=name)
        self._ack_wait_s = ack_wait_s
        self._takes = 0
        self._ensured: dict[str, Wire] = {}
        self._reached = time.monotonic()

    async def put(self, subject: str, data: bytes, msg_id: str) -> int:
        check_ticket(subject, data, msg_id)
        headers = append_headers(msg_id, None)
        ack = await self._link.api(subject, data, headers=headers, deadline_s=PUT_DEADLINE_S)
        return int(ack["seq"])

    async def take(
        self, subject_filter: str, durable: str, batch: int, timeout_s: float
    ) -> list[WorkItem]:
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + timeout_s, FIRST_PAUSE_S
        while True:
            try:
                items = await self._take_once(
                    subject_filter, durable, batch, max(0.01, deadline - loop.time())
                )
                self._reached = time.monotonic()
                return items
            except Unavailable as error:
                if time.monotonic() > self._reached + PATIENCE_S:
                    raise EventLogError(f"{durable}: {error}, for {PATIENCE_S:g} s") from None
            if loop.time() + pause >= deadline:
                await asyncio.sleep(max(0.0, deadline - loop.time()))
                return []
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE_S)

    async def close(self) -> None:
        await self._link.close()

    async def _take_once(
        self, subject_filter: str, durable: str, batch: int, timeout_s: float
    ) -> list[WorkItem]:
        """What is there now, else the first that comes."""
        wire = await self._link.wire()
        await self._ensure_consumer(wire, subject_filter, durable)
        items = await self._pull(wire, durable, {"batch": batch, "no_wait": True}, timeout_s)
        if items:
            return items
        expires = {"batch": 1, "expires": int(timeout_s * _NANOSECONDS)}
        return await self._pull(wire, durable, expires, timeout_s)

    async def _ensure_consumer(self, wire: Wire, subject_filter: str, durable: str) -> None:
        """Creates the consumer or finds it as it should be, once for each connection."""
        if self._ensured.get(durable) is wire:
            return
        config = {
            "durable_name": durable,
            "filter_subject": subject_filter,
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "ack_wait": int(self._ack_wait_s * _NANOSECONDS),
            "max_deliver": -1,
            "max_ack_pending": 20_000,
        }
        request = {"stream_name": _STREAM, "config": config}
        await call(wire, f"$JS.API.CONSUMER.CREATE.{_STREAM}.{durable}", request)
        self._ensured[durable] = wire

    async def _pull(
        self, wire: Wire, durable: str, request: dict[str, Any], timeout_s: float
    ) -> list[WorkItem]:
        """One pull request: its tickets until it is full, empty or expired."""
        self._takes += 1
        inbox = f"{wire.inbox}.take.{self._takes}"
        items: list[WorkItem] = []
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_message(subject: bytes, reply: bytes, headers: bytes, data: bytes) -> None:
            if headers.startswith(b"NATS/1.0 "):
                _end_by_status(ended, headers)
                return
            items.append(self._item(subject, reply, headers, data))
            if len(items) == request["batch"]:
                _end(ended)

        def on_lost(error: EventLogError) -> None:
            _end(ended, error)

        sid = wire.subscribe(inbox, on_message)
        wire.when_lost(on_lost)
        body = orjson.dumps(request)
        wire.publish(f"$JS.API.CONSUMER.MSG.NEXT.{_STREAM}.{durable}", body, reply=inbox)
        try:
            async with asyncio.timeout(timeout_s + EXPIRY_SLACK_S):
                await ended
        except TimeoutError:
            wire.close()
            if not items:
                raise WireLost(f"no answer to a pull of {durable}") from None
        except Unavailable:
            self._ensured.pop(durable, None)
            if not items:
                raise
        finally:
            wire.forget(on_lost)
            wire.unsubscribe(sid)
        return items

    def _item(self, subject: bytes, reply: bytes, headers: bytes, data: bytes) -> WorkItem:
        # $JS.ACK.[domain.account.]stream.consumer.deliveries.sequence.consumer_sequence.ns.pending
        fields = reply.split(b".")
        at = 4 if len(fields) == 9 else 6
        ack_subject = reply.decode()

        async def settle(verdict: Verdict, delay_s: float) -> bool:
            return await self._settle(ack_subject, _verdict_body(verdict, delay_s))

        return WorkItem(
            subject=subject.decode(),
            data=data,
            msg_id=header(headers, b"Nats-Msg-Id"),
            sequence=int(fields[at + 1]),
            deliveries=int(fields[at]),
            settle=settle,
        )

    async def _settle(self, ack_subject: str, body: bytes) -> bool:
        """Sends a verdict until it is confirmed. A server that does not know the delivery (it was
        killed before it wrote it down) says nothing: then waiting longer would not help."""

        async def once(wire: Wire, timeout_s: float) -> bool:
            try:
                await wire.request(ack_subject, body, timeout_s=min(timeout_s, CONFIRM_S))
            except TimeoutError:
                return False
            return True

        return await self._link.repeat(once, deadline_s=SETTLE_DEADLINE_S)


def _verdict_body(verdict: Verdict, delay_s: float) -> bytes:
    match verdict:
        case Verdict.ACK:
            return b"+ACK"
        case Verdict.NAK:
            return b"-NAK " + orjson.dumps({"delay": int(delay_s * _NANOSECONDS)})
        case Verdict.EXTEND:
            return b"+WPI"


def _end(ended: asyncio.Future[None], error: EventLogError | None = None) -> None:
    if ended.done():
        return
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error)


def _end_by_status(ended: asyncio.Future[None], headers: bytes) -> None:
    """Ends a pull by the server's status line: 404 no messages, 408 expired are ordinary."""
    line = headers[9 : headers.find(b"\r\n")].decode(errors="replace")
    if line.startswith(("404", "408")):
        _end(ended)
    elif not line.startswith("100"):
        _end(ended, Unavailable(f"work consumer: {line}"))
