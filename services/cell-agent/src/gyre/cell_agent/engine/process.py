"""The engine as a child process: started on a free port, watched, ended with its agent."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from gyre.cell_agent.child_environment import child_environment
from gyre.cell_agent.engine.base import EngineClient

ENGINE_MODULE = "gyre.cell_agent.engine.local"
START_TIMEOUT_S = 180.0
MIGRATION_KEY = "GYRE_MIGRATION_KEY"
"""Where an engine finds it; `local.options` reads it."""

_PR_SET_PDEATHSIG = 1


class EngineStartError(Exception):
    """The engine did not come up; the message ends with the last line of its log."""


class EngineProcess:
    """One engine process for its whole life; a new one is a new object."""

    def __init__(self, *, host: str, log_path: Path, threads: int) -> None:
        self._host = host
        self._log_path = log_path
        self._threads = threads
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

    async def start(
        self,
        *,
        model_path: str,
        weight_version: str,
        context_tokens: int,
        max_running_requests: int,
        seed: int,
        decode_tokens_per_s: float | None = None,
        migration_key: str | None = None,
    ) -> None:
        """Return once it is healthy. decode_tokens_per_s: emulated speed of each request, None for
        the machine's own. migration_key: whose bearers may copy cached prefixes, None for nobody.
        Raises EngineStartError."""
        port = _free_port(self._host)
        command = [
            sys.executable,
            *("-m", ENGINE_MODULE, "--model-path", model_path),
            *("--host", self._host, "--port", str(port)),
            *("--weight-version", weight_version, "--context-length", str(context_tokens)),
            *("--max-running-requests", str(max_running_requests)),
            *("--random-seed", str(seed), "--threads", str(self._threads)),
        ]
        if decode_tokens_per_s is not None:
            command += ["--emulate-decode-tokens-per-s", str(decode_tokens_per_s)]
        told = {} if migration_key is None else {MIGRATION_KEY: migration_key}
        with self._log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=child_environment(self._threads, told),
                preexec_fn=_die_with_parent,
            )
        self._client = EngineClient(f"http://{self._host}:{port}")
        await self._wait_healthy()

    async def wait(self) -> int:
        """Until it has ended; its exit status."""
        return await self._running().wait()

    async def stop(self) -> None:
        """SIGTERM, SIGKILL after 5 s. No error if it has ended."""
        process = self._running()
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 5.0)
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._client is not None:
            await self._client.aclose()

    async def _wait_healthy(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not await self.client.health():
            if self._running().returncode is not None:
                raise EngineStartError(f"engine ended while starting: {self._last_line()}")
            if time.monotonic() > deadline:
                await self.stop()
                raise EngineStartError(f"engine not healthy after {START_TIMEOUT_S:g} s")
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
