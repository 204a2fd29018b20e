"""The agent's side: one trainer as a child process.

Consumes: calls of the agent, in turn. Produces: the child's answers, or TrainerRefused with the
child's class of error. Waits for: the child, each time up to a deadline of the caller's.
The child ends when this process does: it holds the other end of a socket pair.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gyre.cell_agent.child_environment import child_environment
from gyre.cell_agent.trainer.launch import TrainerLaunch

# A line of statistics names every execution of a micro-step; asyncio's default is 64 KiB.
_MAX_LINE_BYTES = 16 * 1024 * 1024


class TrainerCallError(Exception):
    """Root of what a call can raise."""


class TrainerRefused(TrainerCallError):
    """The trainer answered with an error and lives. kind: a class of trainer/errors.py."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


class TrainerGone(TrainerCallError):
    """The process ended, or never became ready."""


class TrainerTimeout(TrainerCallError):
    """No answer by the deadline. The trainer may still be at it; later calls queue behind."""


class TrainerProcess:
    """One child process for its whole life; a new one is a new object."""

    def __init__(
        self,
        launch: TrainerLaunch,
        *,
        log_path: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """log_path: where its standard output and error go, appended; None: to this process's.
        environment: what it is told beside what it inherits."""
        self.launch = launch
        self._environment = child_environment(launch.threads, environment or {})
        self._log_path = log_path
        self._ids = itertools.count()
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ready: asyncio.Future[dict[str, Any]] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def returncode(self) -> int | None:
        """None while it lives. Negative: ended by that signal."""
        return self._started().returncode

    async def start(self, timeout_s: float = 120.0) -> dict[str, Any]:
        """Returns its status once it takes commands. Raises TrainerGone, TrainerTimeout."""
        ours, theirs = socket.socketpair()
        with theirs:
            log = subprocess.DEVNULL if self._log_path is None else self._log_path.open("ab")
            output = None if self._log_path is None else log
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self.launch.command(str(theirs.fileno())),
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=self._environment,
                )
            finally:
                if not isinstance(log, int):
                    log.close()
        reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=_MAX_LINE_BYTES)
        self._ready = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read(reader), name="trainer-control")
        return await self._within(self._ready, timeout_s, "start")

    async def call(self, command: str, timeout_s: float, /, **arguments: Any) -> dict[str, Any]:
        """One command. Raises TrainerRefused, TrainerGone, TrainerTimeout."""
        if self._writer is None or self._reading is None or self._reading.done():
            raise TrainerGone(f"{command}: the trainer is not running")
        number = next(self._ids)
        request = {"id": number, "command": command, "arguments": arguments}
        answer = asyncio.get_running_loop().create_future()
        self._pending[number] = answer
        try:
            self._writer.write(json.dumps(request, default=str).encode() + b"\n")
            return await self._within(answer, timeout_s, command)
        finally:
            self._pending.pop(number, None)

    async def wait(self) -> int:
        """Until it has ended; returns its exit status."""
        status = await self._started().wait()
        await self._close()
        return status

    def kill(self) -> None:
        """SIGKILL; `wait` collects it. No error if it has ended."""
        process = self._started()
        if process.returncode is None:
            process.kill()

    async def stop(self, timeout_s: float = 10.0) -> int:
        """Asks it to exit, kills it at the deadline, returns its exit status."""
        try:
            await self.call("exit", timeout_s)
            return await asyncio.wait_for(self.wait(), timeout_s)
        except (TrainerCallError, TimeoutError):
            self.kill()
            return await self.wait()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                self._deliver(json.loads(line))
        except ConnectionResetError:
            pass  # how a killed child's socket may end; the futures below say so
        for waiting in [*self._pending.values(), *([self._ready] if self._ready else [])]:
            if not waiting.done():
                waiting.set_exception(TrainerGone("the trainer ended"))

    def _deliver(self, message: Mapping[str, Any]) -> None:
        if "ready" in message:
            assert self._ready is not None
            self._ready.set_result(message["ready"])
            return
        waiting = self._pending.get(message["id"])
        if waiting is None or waiting.done():
            return  # its caller gave up at the deadline
        if "error" in message:
            waiting.set_exception(TrainerRefused(**message["error"]))
        else:
            waiting.set_result(message["result"])

    async def _within(
        self, future: asyncio.Future[dict[str, Any]], timeout_s: float, command: str
    ) -> dict[str, Any]:
        try:
            return await asyncio.wait_for(future, timeout_s)
        except TimeoutError as error:
            raise TrainerTimeout(f"{command}: no answer within {timeout_s:g} s") from error

    async def _close(self) -> None:
        if self._reading is not None:
            # Not awaited itself: a cancelled waiter would take the reader with it.
            await asyncio.wait({self._reading})
            self._reading.result()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise TrainerGone("the trainer was not started")
        return self._process
