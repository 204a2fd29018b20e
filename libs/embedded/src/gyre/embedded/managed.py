"""One supervised process: started, awaited, restarted, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gyre.embedded.errors import StackFailed
from gyre.embedded.identity import ProcessIdentity, kill_group
from gyre.embedded.paths import StackPaths
from gyre.embedded.process import ProcessSpec, describe_exit, last_line, spawn
from gyre.embedded.restart import RestartPolicy

State = Literal["waiting", "starting", "ready", "restarting", "held", "finished", "stopped"]

READY_POLL_S = 0.05
HELD_POLL_S = 0.2
# During the first start of a stack a process may die this often (a peer that is not up yet); then
# the start fails. Once it was ready it is restarted for ever.
MAX_FIRST_STARTS = 3
# Exit status by which a service says that its settings are wrong: trying again cannot help.
BAD_SETTINGS_STATUS = 2
HISTORY_LENGTH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A process that ended though nobody asked it to, and what follows."""

    name: str
    pid: int
    how: str
    restarts: int
    delay_s: float
    time: float


class ManagedProcess:
    """Keeps one process running. All methods belong to the supervisor's event loop."""

    def __init__(
        self,
        spec: ProcessSpec,
        paths: StackPaths,
        policy: RestartPolicy,
        *,
        on_change: Callable[[], None],
        on_death: Callable[[Death], None],
    ) -> None:
        self.spec = spec
        self.state: State = "waiting"
        self.identity: ProcessIdentity | None = None
        self.restarts = 0
        self.became_ready = asyncio.Event()
        self._log = paths.log(spec.name)
        self._ready_file = paths.ready(spec.name)
        self._held_file = paths.held(spec.name)
        self._policy = policy
        self._on_change = on_change
        self._on_death = on_death
        self._popen: subprocess.Popen[bytes] | None = None
        self._exited = asyncio.Event()
        self._deaths: list[float] = []
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """The process id, as long as its exit has not been taken."""
        if self._popen is None or self._exited.is_set():
            return None
        return self._popen.pid

    async def run(self) -> None:
        """Start it, wait until it is ready, wait until it ends; again, until told to stop, but not
        while it is held.

        Raises StackFailed when it cannot be started for the first time.
        """
        while not self._stopping:
            await self._while_held()
            if self._stopping:
                return
            popen = self._start()
            await self._until_ready_or_exit(popen)
            await self._exited.wait()
            # What a dead leader left in its group would hold its ports and files.
            kill_group(popen.pid)
            if self._stopping:
                return
            if self.spec.oneshot and popen.returncode == 0:
                self._become("finished")
                self.became_ready.set()
                return
            if not self._held_file.exists():
                await self._after_death(popen)

    async def stop(self) -> None:
        """Ask it to end, kill its group after the grace time. Returns when it is reaped."""
        self._stopping = True
        popen = self._popen
        if popen is not None and not self._exited.is_set():
            popen.send_signal(self.spec.stop_signal)
            try:
                await asyncio.wait_for(self._exited.wait(), self.spec.stop_grace_s)
            except TimeoutError:
                kill_group(popen.pid)
                await self._exited.wait()
            kill_group(popen.pid)
        self._become("stopped")

    def reap(self) -> None:
        """The kernel says that the process ended: take its status."""
        if self._popen is not None and self._popen.poll() is not None:
            self._exited.set()

    def _start(self) -> subprocess.Popen[bytes]:
        self._exited.clear()
        self._ready_file.unlink(missing_ok=True)
        try:
            self._popen = popen = spawn(self.spec, self._log)
        except OSError as error:
            raise StackFailed(f"{self.spec.name} cannot be started: {error}") from error
        self.identity = ProcessIdentity.of(popen.pid)
        self._become("starting")
        return popen

    async def _until_ready_or_exit(self, popen: subprocess.Popen[bytes]) -> None:
        if self.spec.oneshot:
            return
        deadline = time.monotonic() + self.spec.ready_timeout_s
        while self.spec.ready is not None and not self.spec.ready():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._exited.wait(), READY_POLL_S)
                return
            if time.monotonic() > deadline:
                kill_group(popen.pid)  # counted as a death by `run`
                return
        if not self._exited.is_set() and not self._stopping:
            self._become("ready")
            self.became_ready.set()

    async def _while_held(self) -> None:
        while self._held_file.exists() and not self._stopping:
            if self.state != "held":
                self._become("held")
            await asyncio.sleep(HELD_POLL_S)

    async def _after_death(self, popen: subprocess.Popen[bytes]) -> None:
        now = time.time()
        self._deaths = [*self._deaths, now][-HISTORY_LENGTH:]
        how = describe_exit(popen.returncode)
        first_start = not self.became_ready.is_set()
        hopeless = popen.returncode == BAD_SETTINGS_STATUS or len(self._deaths) >= MAX_FIRST_STARTS
        if first_start and hopeless:
            said = last_line(self._log)
            raise StackFailed(f"{self.spec.name} ended with {how}: {said} (see {self._log})")
        delay = self._policy.delay(self._deaths, now)
        self.restarts += 1
        self._become("restarting")
        self._on_death(
            Death(
                name=self.spec.name,
                pid=popen.pid,
                how=how,
                restarts=self.restarts,
                delay_s=delay,
                time=now,
            )
        )
        await asyncio.sleep(delay)

    def _become(self, state: State) -> None:
        self.state = state
        self._on_change()
