"""The runner's side of the fork server: launches, waits, kills, and finds launches again.

Invariants:
- a launch is named by its status file; launching twice starts one harness;
- an exit is known only from the status file, never guessed;
- `kill_group` returns when no descendant of the launch is alive, whatever session it moved to;
- the server and the launches outlive this process; the next runner finds them again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import socket
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gyre.runner.errors import SandboxError
from gyre.runner.launches import (
    HarnessVanished,
    LaunchHandle,
    find,
    kill_group,
    recorded_exit,
    wait,
)
from gyre.runner.processes import read_process
from gyre.runner.proxies import Door

__all__ = [
    "HarnessVanished",
    "Keeper",
    "LaunchFailed",
    "LaunchHandle",
    "LaunchRequest",
    "WarmStart",
    "find",
    "kill_group",
    "recorded_exit",
    "wait",
]

START_TIMEOUT_S = 90.0
"""Importing a harness's modules takes seconds; much more on a machine that just came up."""
REQUEST_TIMEOUT_S = 30.0
POLL_S = 0.02
SERVER = Path(__file__).with_name("forkserver.py")
SERVER_FILES = (SERVER, *map(SERVER.with_name, ("launching.py", "relay.py")))
MAX_SOCKET_PATH_BYTES = 100
"""Linux allows 107 bytes for a Unix socket's path."""


class LaunchFailed(SandboxError):
    """The harness could not be started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """What the server imports before the first launch.

    preload: modules. calls: `module:function`, run once, without arguments. entry: the program's
    own entry point, `module:function`, that each launch runs in a fresh process. env: the
    environment in which the modules are imported.
    """

    preload: tuple[str, ...]
    entry: str
    calls: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """One launch. env is complete, nothing is inherited; limits maps `FSIZE` to RLIMIT_FSIZE. door:
    served for as long as anything of the launch lives.

    Paths are absolute: the server has a working directory of its own.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    stdout: Path
    stderr: Path
    status: Path
    limits: Mapping[str, int] = field(default_factory=dict)
    door: Door | None = None


class Keeper:
    """A client of one fork server.

    python: the interpreter that runs the server, the harness's own when there is a warm start.
    warm: None executes argv instead. state_dir: names the stack; servers of other stacks are not
    found. log: the server's own output.
    """

    def __init__(
        self,
        *,
        python: Path,
        warm: WarmStart | None,
        state_dir: Path,
        log: Path,
        idle_s: float = 900.0,
    ) -> None:
        self._python = python
        self._warm = warm
        self._log = log
        self._idle_s = idle_s
        self._fingerprint = _digest(
            str(python), repr(warm), *(file.read_text(encoding="utf-8") for file in SERVER_FILES)
        )
        name = _digest(str(state_dir.resolve()), str(python), repr(warm))
        self._socket = _socket_dir() / f"{name}.sock"
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Find the server of this stack or start one. Raises SandboxError."""
        async with self._starting:
            running = await self._fingerprint_of_server()
            if running is not None and running != self._fingerprint:
                await self.stop()
                running = None
            if running is None:
                await self._spawn()
                if await self._fingerprint_of_server() != self._fingerprint:
                    raise SandboxError(f"the fork server does not answer; see {self._log}")

    async def launch(self, request: LaunchRequest) -> LaunchHandle:
        """Start the harness, or find it if its status file is there. Raises LaunchFailed."""
        message = {
            "op": "launch",
            "exec": self._warm is None,
            "argv": list(request.argv),
            "env": dict(request.env),
            "limits": dict(request.limits),
            "cwd": str(request.cwd),
            "stdout": str(request.stdout),
            "stderr": str(request.stderr),
            "status": str(request.status),
        }
        if request.door is not None:
            message["door"] = {
                "execution": request.door.execution,
                "proxies": list(request.door.proxies),
                "note": str(request.door.note),
            }
        try:
            answer = await self._ask(message, request.door)
        except (FileNotFoundError, ConnectionError):
            await self.start()  # the server went idle or was killed
            answer = await self._ask(message, request.door)
        if "error" in answer:
            raise LaunchFailed(f"{request.argv[0]}: {answer['error']}")
        return LaunchHandle(
            pid=answer["pid"], start_time=answer["start_time"], status=request.status
        )

    async def stop(self) -> None:
        """Tell the server to end; its launches go on. Fine when there is none."""
        try:
            answer = await self._ask({"op": "shutdown"})
        except (FileNotFoundError, ConnectionError):
            return
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        while self._socket.exists() and read_process(answer["pid"]) is not None:
            if time.monotonic() > deadline:
                raise SandboxError("the fork server did not end")
            await asyncio.sleep(POLL_S)

    async def _fingerprint_of_server(self) -> str | None:
        try:
            answer = await self._ask({"op": "ping"})
        except (FileNotFoundError, ConnectionError):
            return None
        return str(answer.get("fingerprint"))

    async def _ask(self, message: dict[str, Any], door: Door | None = None) -> dict[str, Any]:
        """One request; raises FileNotFoundError or ConnectionError when nobody listens."""
        data = json.dumps(message).encode() + b"\n"
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                connection = await self._connect()
                if door is not None:
                    # A descriptor travels with a byte; one byte never waits.
                    socket.send_fds(connection, [data[:1]], [door.listener.fileno()])
                    data = data[1:]
                reader, writer = await asyncio.open_unix_connection(sock=connection)
                try:
                    writer.write(data)
                    await writer.drain()
                    line = await reader.readline()
                finally:
                    writer.close()
        except TimeoutError as error:
            raise SandboxError("the fork server does not answer in time") from error
        if not line:
            raise ConnectionResetError("the fork server closed the connection")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, str(self._socket))
        except BaseException:
            connection.close()
            raise
        return connection

    async def _spawn(self) -> None:
        """Run the server until it listens. Raises SandboxError with its last words."""
        warm = self._warm
        options = [f"--socket={self._socket}", f"--fingerprint={self._fingerprint}"]
        options += [f"--idle-s={self._idle_s}"]
        if warm is not None:
            options += [f"--entry={warm.entry}"]
            options += [f"--preload={module}" for module in warm.preload]
            options += [f"--call={call}" for call in warm.calls]
        env = {"PATH": os.defpath, "LANG": "C.UTF-8", **(warm.env if warm is not None else {})}
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            try:
                process = await asyncio.create_subprocess_exec(
                    str(self._python),
                    str(SERVER),
                    *options,
                    env=env,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            except OSError as error:
                raise SandboxError(f"{self._python}: {error.strerror}") from error
            try:
                async with asyncio.timeout(START_TIMEOUT_S):
                    code = await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
                raise SandboxError(f"the fork server did not start; see {self._log}") from None
        if code != 0:
            raise SandboxError(f"the fork server failed: {_last_line(self._log)}")


def _socket_dir() -> Path:
    """A short directory that only this user can enter. Raises SandboxError."""
    path = Path(tempfile.gettempdir()) / f"gyre-{os.getuid()}"
    if len(os.fsencode(path)) + 40 > MAX_SOCKET_PATH_BYTES:
        raise SandboxError(f"TMPDIR is too long for sockets: {path.parent}")
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if path.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise SandboxError(f"{path}: must be a directory of this user with mode 0700")
    return path


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"
