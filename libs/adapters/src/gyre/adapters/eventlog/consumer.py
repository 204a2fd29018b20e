"""One ephemeral, ordered JetStream push consumer; it dies at the first irregularity."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from gyre.adapters.eventlog.base import EventLogError, GapDetected, Recorded, Stream
from gyre.adapters.eventlog.link import call
from gyre.adapters.eventlog.wire import Unavailable, Wire

HEARTBEAT_S = 2.0
# Three heartbeats and a busy machine's delay.
SILENCE_S = 7.0
# The server drops the consumer this long after its connection went.
INACTIVE_S = 10.0
# Above this many undelivered events the socket is not read; bounds memory and loop time.
HIGH_WATER = 4096
_NANOSECONDS = 1_000_000_000


class ConsumerBroken(Unavailable):
    """This consumer can deliver no more; open another after the last event."""

    def __init__(self, reason: str, *, is_gap: bool = False) -> None:
        super().__init__(reason)
        self.is_gap = is_gap


class Consumer:
    """Events of one stream after a sequence, checked for gaps as they are parsed.

    Owns its wire. `limit` is the last sequence to hand out, None = go on for ever. `heard` is when
    the server last said something, an event or that there is none, on the event loop's clock.
    """

    def __init__(
        self, wire: Wire, stream: Stream, *, after: int, limit: int | None, filtered: bool
    ) -> None:
        self._wire = wire
        self._stream = stream
        self._filtered = filtered
        self.limit = limit
        self.heard = 0.0
        self._name = ""
        self._last = after
        self._consumer_sequence = 0
        self._queue: list[Recorded] = []
        self._woken = asyncio.Event()
        self._failure: EventLogError | None = None
        self._finished = limit is not None and limit <= after

    @classmethod
    async def open(
        cls,
        wire: Wire,
        stream: Stream,
        subjects: Sequence[str],
        *,
        after: int,
        until: int | None,
        live: bool,
    ) -> Consumer:
        """Creates the consumer on the server.

        Raises GapDetected when a live reader is past the log's head, Unavailable when the server
        cannot answer now, ApiError when it refuses.
        """
        info = await call(wire, f"$JS.API.STREAM.INFO.{stream.value}")
        head = int(info["state"]["last_seq"])
        if live and after > head:
            raise GapDetected(f"{stream.value} ends at {head}, asked for after {after}")
        limit = None if live else head if until is None else min(until, head)
        consumer = cls(wire, stream, after=after, limit=limit, filtered=bool(subjects))
        if not consumer._finished:
            await consumer._create(subjects, after)
        return consumer

    async def _create(self, subjects: Sequence[str], after: int) -> None:
        inbox = f"{self._wire.inbox}.events.1"
        self._wire.subscribe(inbox, self._on_message)
        self._wire.when_lost(self._fail)
        config: dict[str, Any] = {
            "deliver_subject": inbox,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": after + 1,
            "ack_policy": "none",
            "max_deliver": 1,
            "flow_control": True,
            "idle_heartbeat": int(HEARTBEAT_S * _NANOSECONDS),
            "inactive_threshold": int(INACTIVE_S * _NANOSECONDS),
            "mem_storage": True,
            "num_replicas": 1,
        }
        if subjects:
            config["filter_subjects"] = list(subjects)
        stream = self._stream.value
        request = {"stream_name": stream, "config": config}
        created = await call(self._wire, f"$JS.API.CONSUMER.CREATE.{stream}", request)
        self._name = created["name"]
        nothing_to_come = created["num_pending"] == 0 and created["delivered"]["consumer_seq"] == 0
        if nothing_to_come and self.limit is not None:
            self._finish()

    async def batches(self) -> AsyncGenerator[list[Recorded], None]:
        """Events as they arrive, each list non-empty; closes the consumer in the end.

        Raises ConsumerBroken, Unavailable, GapDetected, after everything sound was handed out.
        """
        try:
            while True:
                if self._queue:
                    batch, self._queue = self._queue, []
                    self._wire.resume()
                    yield batch
                elif self._finished:
                    return
                elif self._failure is not None:
                    raise self._failure
                else:
                    await self._wait()
        finally:
            self._close()

    async def _wait(self) -> None:
        """Until an event, a heartbeat or a failure."""
        self._woken.clear()
        try:
            async with asyncio.timeout(SILENCE_S):
                await self._woken.wait()
        except TimeoutError:
            raise ConsumerBroken(f"no heartbeat for {SILENCE_S:g} s") from None

    def _close(self) -> None:
        """Tells the server that the consumer is over, and closes the connection."""
        self._finished = True
        if self._name and self._wire.lost is None:
            self._wire.publish(f"$JS.API.CONSUMER.DELETE.{self._stream.value}.{self._name}", b"")
        self._wire.close()

    # -- called by the wire

    def _on_message(self, subject: bytes, reply: bytes, headers: bytes, data: bytes) -> None:
        if self._finished or self._failure is not None:
            return
        self.heard = asyncio.get_running_loop().time()
        if headers.startswith(b"NATS/1.0 "):
            self._on_status(reply, headers)
            return
        # $JS.ACK.[domain.account.]stream.consumer.delivered.sequence.consumer_sequence.ns.pending
        fields = reply.split(b".")
        at = 5 if len(fields) == 9 else 7
        sequence = int(fields[at])
        if not self._contiguous(int(fields[at + 1])) or not self._in_order(sequence):
            return
        self._queue.append(
            Recorded(
                sequence=sequence,
                subject=subject.decode(),
                event_id=header(headers, b"Nats-Msg-Id"),
                data=data,
                time=int(fields[at + 2]) / _NANOSECONDS,
            )
        )
        self._last = sequence
        if self.limit is not None and (sequence >= self.limit or fields[at + 3] == b"0"):
            self._finish()
        if len(self._queue) >= HIGH_WATER:
            self._wire.pause()
        self._woken.set()

    def _contiguous(self, found: int) -> bool:
        """Advances to the consumer sequence `found` if it is the next; else breaks."""
        wanted = self._consumer_sequence + 1
        if found != wanted:
            self._fail(ConsumerBroken(f"delivery {wanted} is missing, got {found}", is_gap=True))
            return False
        self._consumer_sequence = wanted
        return True

    def _in_order(self, sequence: int) -> bool:
        """False when `sequence` is past the limit, or a hole shows that the log lost events."""
        if self.limit is not None and sequence > self.limit:
            self._finish()
            return False
        if not self._filtered and sequence != self._last + 1:
            gone = f"{self._last + 1} to {sequence - 1}"
            self._fail(GapDetected(f"{self._stream.value}: events {gone} are no longer there"))
            return False
        return True

    def _on_status(self, reply: bytes, headers: bytes) -> None:
        """Flow control, heartbeats, and the end of the consumer."""
        if not headers.startswith(b"NATS/1.0 100"):
            line = headers[9 : headers.find(b"\r\n")].decode(errors="replace")
            self._fail(ConsumerBroken(f"consumer ended: {line}"))
            return
        stalled = header(headers, b"Nats-Consumer-Stalled")
        if reply or stalled:
            self._wire.publish(reply.decode() or stalled, b"")
        delivered = header(headers, b"Nats-Last-Consumer")
        if delivered:
            if int(delivered) != self._consumer_sequence:
                self._contiguous(int(delivered) + 1)
            elif self.limit is not None and not stalled:
                self._finish()
        self._woken.set()

    def _finish(self) -> None:
        self._finished = True
        self._woken.set()

    def _fail(self, error: EventLogError) -> None:
        if self._failure is None:
            self._failure = error
        self._woken.set()


def header(block: bytes, name: bytes) -> str:
    """A header's value, "" if the block has none of this name."""
    _, found, rest = block.partition(b"\r\n" + name + b":")
    return rest[: rest.find(b"\r\n")].strip().decode() if found else ""
