"""The agent's side: one trainer as a child process.

Consumes: calls of the agent, in turn. Produces: the child's answers. Waits for: the child, each
time up to a deadline of the caller's. The child ends when this process does: it holds the other end
of a socket pair. A child that is silent, as one that was stopped is, is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gyre.cell_agent.child_environment import child_environment
from gyre.cell_agent.trainer.process.channel import (
    MAX_LINE_BYTES,
    ControlChannel,
    TrainerCallError,
    TrainerGone,
    TrainerRefused,
    TrainerTimeout,
)
from gyre.cell_agent.trainer.process.launch import TrainerLaunch

# A trainer beats every second, whatever it does. Shorter, and a machine that is out of memory or of
# cores would cost trainers that are alive.
SILENCE_S = 30.0


class TrainerProcess:
    """One child process for its whole life; a new one is a new object."""

    def __init__(
        self,
        launch: TrainerLaunch,
        *,
        log_path: Path | None = None,
        environment: Mapping[str, str] | None = None,
        silence_s: float = SILENCE_S,
    ) -> None:
        """log_path: where its standard output and error go, appended; None: to this process's.
        environment: what it is told beside what it inherits."""
        self.launch = launch
        self._environment = child_environment(launch.threads, environment or {})
        self._log_path = log_path
        self._silence_s = silence_s
        self._process: asyncio.subprocess.Process | None = None
        self._channel: ControlChannel | None = None
        self._was_silent = False

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def is_here(self) -> bool:
        return True

    @property
    def returncode(self) -> int | None:
        """None while it lives. Negative: ended by that signal."""
        return self._started().returncode

    async def start(self, timeout_s: float) -> dict[str, Any]:
        """Returns its status once it takes commands. Raises as `ready`."""
        await self.spawn()
        return await self.ready(timeout_s)

    async def spawn(self) -> None:
        """The process is there; it takes commands once it is `ready`."""
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
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=MAX_LINE_BYTES)
        self._channel = ControlChannel(
            reader, writer, silence_s=self._silence_s, on_silent=self._end_the_silent
        )

    async def ready(self, timeout_s: float) -> dict[str, Any]:
        """Its status. Raises TrainerRefused: it cannot start; TrainerGone, TrainerTimeout."""
        return await self._control("start").ready(timeout_s)

    async def call(self, command: str, timeout_s: float, /, **arguments: Any) -> dict[str, Any]:
        """One command. Raises TrainerRefused, TrainerGone, TrainerTimeout."""
        return await self._control(command).call(command, timeout_s, **arguments)

    async def wait(self) -> int:
        """Until it has ended; returns its exit status."""
        status = await self._started().wait()
        if self._channel is not None:
            await self._channel.close()
        return status

    def kill(self) -> None:
        """SIGKILL; `wait` collects it. No error if it has ended."""
        process = self._started()
        if process.returncode is None:
            # Not `process.kill`: it looks first whether the process has ended, and takes its exit
            # status from whoever waits for it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    @property
    def how_it_ended(self) -> str:
        """In words, after `wait`."""
        if self._was_silent:
            return f"said nothing for {self._silence_s:g} s and was killed"
        return ending(self.returncode or 0)

    def _end_the_silent(self) -> None:
        self._was_silent = True
        self.kill()

    def _control(self, command: str) -> ControlChannel:
        if self._channel is None:
            raise TrainerGone(f"{command}: the trainer is not running")
        return self._channel

    def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise TrainerGone("the trainer was not started")
        return self._process


def ending(status: int) -> str:
    """An exit status in words. Negative: by that signal."""
    words = f"signal {-status}" if status < 0 else f"exit status {status}"
    return f"ended with {words}"


__all__ = [
    "SILENCE_S",
    "TrainerCallError",
    "TrainerGone",
    "TrainerProcess",
    "TrainerRefused",
    "TrainerTimeout",
    "ending",
]
