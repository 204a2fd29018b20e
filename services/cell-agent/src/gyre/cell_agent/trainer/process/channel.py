"""Commands to one trainer and its answers, over one stream, and what a call can raise.

Consumes: the trainer's lines: answers, and a beat every second while it lives, whatever it computes
or waits for. Produces: the answer, or TrainerRefused with the trainer's class of error. Waits for:
the trainer, each call up to a deadline of the caller's. A trainer that is silent for `silence_s` is
stopped or gone with its machine: whoever owns the channel is told, and ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any

# A line of statistics names every execution of a micro-step; asyncio's default is 64 KiB.
MAX_LINE_BYTES = 16 * 1024 * 1024
# After a silence: the reader itself may have been kept from running, and then has lines to read.
_SECOND_LOOK_S = 1.0


class TrainerCallError(Exception):
    """Root of what a call can raise."""


class TrainerRefused(TrainerCallError):
    """The trainer answered with an error and lives, or said why it cannot start, and ends. kind: a
    class of trainer/errors.py."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


class TrainerGone(TrainerCallError):
    """The process ended, or never became ready."""


class TrainerTimeout(TrainerCallError):
    """No answer by the deadline. The trainer may still be at it; later calls queue behind."""


class ControlChannel:
    """One trainer's for its whole life. on_silent: called when it has been silent too long. What
    says what cannot be read is hung up on."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        silence_s: float,
        on_silent: Callable[[], None],
    ) -> None:
        self._reader, self._writer = reader, writer
        self._silence_s, self._on_silent = silence_s, on_silent
        self._why_gone = "the trainer ended"
        self._ids = itertools.count()
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read(), name="trainer-control")

    async def ready(self, timeout_s: float) -> dict[str, Any]:
        """The trainer's status once it takes commands. Raises TrainerRefused: it cannot start;
        TrainerGone, TrainerTimeout."""
        return await self._within(self._ready, timeout_s, "start")

    async def call(self, command: str, timeout_s: float, /, **arguments: Any) -> dict[str, Any]:
        """One command. Raises TrainerRefused, TrainerGone, TrainerTimeout."""
        if self._reading.done():
            raise TrainerGone(f"{command}: {self._why_gone}")
        number = next(self._ids)
        request = {"id": number, "command": command, "arguments": arguments}
        answer = asyncio.get_running_loop().create_future()
        self._pending[number] = answer
        try:
            self._writer.write(json.dumps(request, default=str).encode() + b"\n")
            return await self._within(answer, timeout_s, command)
        finally:
            self._pending.pop(number, None)

    async def closed(self) -> None:
        """Until the trainer has closed it, or it was hung up."""
        # Not awaited itself: a cancelled waiter would take the reader with it.
        await asyncio.wait({self._reading})

    def hang_up(self) -> None:
        """The trainer ends; calls under way fail."""
        self._writer.close()

    async def close(self) -> None:
        """After the trainer has ended: reads what it still said."""
        await self.closed()
        self._reading.result()
        self._writer.close()

    async def _read(self) -> None:
        try:
            with contextlib.suppress(ConnectionError):  # how a killed child's socket may end
                # A last line without its end is one that a killed trainer was still writing.
                while (line := await self._next_line()).endswith(b"\n"):
                    self._deliver(json.loads(line))
        except ValueError as error:
            self._why_gone = f"the trainer's line cannot be read: {error}"
            self.hang_up()
        finally:
            self._fail_all()

    def _fail_all(self) -> None:
        """However the reading ended, nobody waits on."""
        for waiting in (*self._pending.values(), self._ready):
            if not waiting.done():
                waiting.set_exception(TrainerGone(self._why_gone))
        if not self._ready.cancelled():
            self._ready.exception()  # seen: nobody may be waiting for it any more

    async def _next_line(self) -> bytes:
        """Raises ValueError: longer than the reader takes."""
        if not self._ready.done():
            return await self._reader.readline()  # importing torch takes what it takes
        for patience_s in (self._silence_s, _SECOND_LOOK_S):
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(self._reader.readline(), patience_s)
        self._why_gone = f"the trainer said nothing for {self._silence_s:g} s"
        self._on_silent()
        return b""

    def _deliver(self, message: Mapping[str, Any]) -> None:
        if "beat" in message:
            return
        if "ready" in message or "refused" in message:
            self._deliver_start(message)
            return
        waiting = self._pending.get(message["id"])
        if waiting is None or waiting.done():
            return  # its caller gave up at the deadline
        if "error" in message:
            waiting.set_exception(TrainerRefused(**message["error"]))
        else:
            waiting.set_result(message["result"])

    def _deliver_start(self, message: Mapping[str, Any]) -> None:
        """The first line."""
        if self._ready.done():
            return  # its caller gave up at the deadline
        if "refused" in message:
            self._ready.set_exception(TrainerRefused(**message["refused"]))
        else:
            self._ready.set_result(message["ready"])

    async def _within(
        self, future: asyncio.Future[dict[str, Any]], timeout_s: float, command: str
    ) -> dict[str, Any]:
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError as error:
            raise TrainerTimeout(f"{command}: no answer within {timeout_s:g} s") from error
