"""The engine as a child process: started on a free port, watched, ended with its agent."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import socket
import subprocess
import time
from pathlib import Path

from gyre.cell_agent.engine.base import EngineClient
from gyre.cell_agent.engine.launch import (
    START_TIMEOUT_S,
    EngineLaunch,
    EngineStartError,
    client_of,
    command_of,
)

_PR_SET_PDEATHSIG = 1


class EngineProcess:
    """One engine process for its whole life; a new one is a new object."""

    def __init__(self, *, log_path: Path) -> None:
        self._log_path = log_path
        self._process: asyncio.subprocess.Process | None = None
        self._client: EngineClient | None = None

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def client(self) -> EngineClient:
        if self._client is None:
            raise EngineStartError("the engine was not started")
        return self._client

    async def start(self, launch: EngineLaunch) -> None:
        """Return once it is healthy. Raises EngineStartError, BadWeightsError."""
        port = _free_port(launch.host)
        command, environment = command_of(launch, port)
        client = await asyncio.to_thread(client_of, launch, port)
        with self._log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                preexec_fn=_die_with_parent,
            )
        self._client = client
        await self._wait_healthy(START_TIMEOUT_S[launch.kind])

    async def wait(self) -> int:
        """Until it has ended; its exit status."""
        return await self._running().wait()

    async def stop(self) -> None:
        """SIGTERM, SIGKILL after 5 s. No error if it has ended, or never began."""
        process = self._process
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 5.0)
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._client is not None:
            await self._client.aclose()

    async def _wait_healthy(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not await self.client.health():
            if self._running().returncode is not None:
                raise EngineStartError(f"engine ended while starting: {self._last_line()}")
            if time.monotonic() > deadline:
                await self.stop()
                raise EngineStartError(f"engine not healthy after {timeout_s:g} s")
            await asyncio.sleep(0.1)

    def _last_line(self) -> str:
        lines = self._log_path.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no output"

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise EngineStartError("the engine was not started")
        return self._process


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _die_with_parent() -> None:
    """The kernel ends the engine when the agent dies, however it dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
