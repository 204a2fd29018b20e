"""Parts of a harness's world as processes of their own, which a test may kill with SIGKILL."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from gyre.testkit.execution_world import until
from gyre.testkit.harness_script import Play
from gyre.testkit.nats_server import free_port
from gyre.testkit.played_engine import PlayedEngine
from gyre.testkit.proxy_world import SECRET, end_process

_START_DEADLINE_S = 60.0
_POLL_S = 0.02


class EngineProcess:
    """A `PlayedEngine` as a process."""

    def __init__(self, play: Play) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._directory = play.directory
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        self._process = self._launch()
        await _until_healthy(f"{self.url}/health", self._process)

    def _launch(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "gyre.testkit.played_engine"]
        command += [str(self._directory), str(self.port)]
        with (self._directory / "engine.log").open("ab") as output:
            return subprocess.Popen(command, stdout=output, stderr=output)

    async def stop(self) -> None:
        if self._process is not None:
            await asyncio.to_thread(end_process, self._process)

    async def kill(self) -> None:
        """SIGKILL, and waits for the end."""
        assert self._process is not None
        self._process.kill()
        await asyncio.to_thread(self._process.wait, 10)


Engine = PlayedEngine | EngineProcess


class ProxyProcess:
    """A proxy over one listening socket, which outlives it as the supervisor's does; it is started
    again whenever it ends. limits: fields of `Limits`. num_starts: how often it was started."""

    def __init__(self, nats_url: str, home: Path, limits: Mapping[str, float]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.num_starts = 0
        self._log = home / "proxy.log"
        bounds = {f"GYRE_PROXY_LIMITS__{n.upper()}": str(limit) for n, limit in limits.items()}
        self._environment = os.environ | bounds
        self._environment |= {
            "GYRE_NATS_URL": nats_url,
            "GYRE_DATABASE_URL": "postgresql://nowhere",
            "GYRE_HOME": str(home),
            "GYRE_KEY_SECRET": SECRET,
            "GYRE_PROXY_LISTEN_FD": str(self._listener.fileno()),
            "OMP_NUM_THREADS": "1",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()

    @asynccontextmanager
    async def running(self, failpoint: str | None) -> AsyncIterator[None]:
        """While the block lasts. failpoint: where it dies once (`gyre.adapters.failpoints`)."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        if failpoint is not None:
            self._environment["GYRE_FAILPOINT"] = failpoint
        self._start()
        assert self._process is not None
        await _until_healthy(f"{self.url}/healthz", self._process)
        keeper = asyncio.create_task(self._keep())
        try:
            yield
        finally:
            keeper.cancel()
            await asyncio.wait({keeper})
            await asyncio.to_thread(end_process, self._process)
            self._listener.close()

    def _start(self) -> None:
        self.num_starts += 1
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gyre.proxy"],
                env=self._environment,
                pass_fds=[self._listener.fileno()],
                stdout=output,
                stderr=output,
            )

    async def _keep(self) -> None:
        while True:
            assert self._process is not None
            while self._process.poll() is None:
                await asyncio.sleep(_POLL_S)
            self._start()


async def _until_healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    """Raises TimeoutError, or RuntimeError if it ended."""
    async with aiohttp.ClientSession(trust_env=False) as session:

        async def healthy() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"{process.args!r} ended with status {process.returncode}")
            try:
                async with session.get(url) as answer:
                    return answer.status == 200
            except aiohttp.ClientError:
                return False

        await until(healthy, _START_DEADLINE_S)
