"""The supervisor: one process that owns every other process of a stack.

    start stage by stage --> each process ready --> `ready`
          |                        |
          | one cannot start       | one dies: its group is killed, it starts again after a delay
          v                        v
       `failed`              restarts.jsonl, supervisor.log

Invariants:
- A process of the stack is a descendant of the supervisor for as long as it lives: the supervisor
  is a subreaper, so a grandchild whose parent died becomes its child.
- When the supervisor ends in order, no descendant is left. When it is killed, the kernel ends each
  direct child (parent-death signal); what those children detached on purpose (keepers of running
  harnesses) stays and is found again by the service that wrote it down.
- One supervisor per home: it holds a lock on `run/supervisor.lock` while it lives.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from gyre.embedded.errors import StackFailed
from gyre.embedded.identity import ProcessIdentity
from gyre.embedded.managed import Death, ManagedProcess
from gyre.embedded.paths import StackPaths, write_json
from gyre.embedded.process import ProcessSpec, become_subreaper
from gyre.embedded.restart import RestartPolicy

OWNER_POLL_S = 0.5
DESCENDANTS_TIMEOUT_S = 5.0

Stage = Sequence[ProcessSpec]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackDescription:
    """What is published about a stack beside its processes; secrets stay out of it."""

    cells: int
    urls: dict[str, str]
    ports: dict[str, int]


class Supervisor:
    """Runs the stages of a stack until it is told to stop.

    owner: the stack stops when this process is gone (tests and `gyre demo`); None: it stays.
    """

    def __init__(
        self,
        paths: StackPaths,
        stages: Sequence[Stage],
        description: StackDescription,
        *,
        policy: RestartPolicy | None = None,
        owner: ProcessIdentity | None = None,
    ) -> None:
        self._paths = paths
        self._description = description
        self._owner = owner
        self._state = "starting"
        self._error: str | None = None
        self._self = ProcessIdentity.of(os.getpid())
        self._stages = [
            [
                ManagedProcess(
                    spec,
                    paths,
                    policy or RestartPolicy(),
                    on_change=self._publish,
                    on_death=self._record_death,
                )
                for spec in stage
            ]
            for stage in stages
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self._stop = asyncio.Event()

    async def run(self) -> int:
        """Start every stage, keep it running, stop all of it. Returns the exit status."""
        become_subreaper()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        for sig in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sig, self._stop.set)
        watcher = asyncio.create_task(self._watch_owner())
        try:
            for stage in self._stages:
                await self._start_stage(stage)
            self._become("ready" if not self._stop.is_set() else "stopping")
            await self._until_stop_or_failure()
        except StackFailed as error:
            self._error = str(error)
            say(self._error)
        finally:
            watcher.cancel()
            await self._stop_everything()
        return 1 if self._error else 0

    async def _start_stage(self, stage: Sequence[ManagedProcess]) -> None:
        if self._stop.is_set():
            return
        self._tasks += [asyncio.create_task(process.run()) for process in stage]
        ready = asyncio.gather(*(process.became_ready.wait() for process in stage))
        try:
            await self._until_stop_or_failure(ready)
        finally:
            ready.cancel()

    async def _until_stop_or_failure(self, also: asyncio.Future[Any] | None = None) -> None:
        """Wait for the stop signal, for `also`, or for a process that gave up (raises)."""
        stop = asyncio.create_task(self._stop.wait())
        ends: set[asyncio.Future[Any]] = {stop, *([also] if also is not None else [])}
        try:
            while not any(end.done() for end in ends):
                keepers = {task for task in self._tasks if not task.done()}
                await asyncio.wait({*ends, *keepers}, return_when=asyncio.FIRST_COMPLETED)
                for task in self._tasks:
                    if task.done():
                        task.result()  # raises what ended it; a finished oneshot raises nothing
        finally:
            stop.cancel()

    async def _stop_everything(self) -> None:
        self._become("stopping")
        for stage in reversed(self._stages):
            await asyncio.gather(*(process.stop() for process in stage))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._end_descendants()
        self._become("failed" if self._error else "stopped")

    def _end_descendants(self) -> None:
        """Kill what services left running in sessions of their own."""
        deadline = time.monotonic() + DESCENDANTS_TIMEOUT_S
        while living := psutil.Process().children(recursive=True):
            for process in living:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            psutil.wait_procs(living, timeout=max(0.0, deadline - time.monotonic()))
            self._reap()
            if time.monotonic() > deadline:
                say(f"still alive after SIGKILL: {[process.pid for process in living]}")
                return

    def _reap(self) -> None:
        """Take the status of every child that ended, adopted ones included."""
        by_pid = {process.pid: process for stage in self._stages for process in stage}
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            managed = by_pid.get(ended.si_pid)
            if managed is not None:
                managed.reap()
            else:
                os.waitpid(ended.si_pid, 0)

    async def _watch_owner(self) -> None:
        while self._owner is not None:
            if not self._owner.is_alive():
                say("the owner of this stack is gone: stopping")
                self._stop.set()
                return
            await asyncio.sleep(OWNER_POLL_S)

    def _record_death(self, death: Death) -> None:
        say(
            f"{death.name} (pid {death.pid}) ended with {death.how}:"
            f" restart {death.restarts} in {death.delay_s:.1f} s"
        )
        with self._paths.restarts.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(death)) + "\n")

    def _become(self, state: str) -> None:
        self._state = state
        say(f"stack {state}")
        self._publish()

    def _publish(self) -> None:
        write_json(
            self._paths.stack,
            {
                "state": self._state,
                "error": self._error,
                "supervisor": asdict(self._self) if self._self else None,
                "processes": [
                    {
                        "name": process.spec.name,
                        "state": process.state,
                        "identity": asdict(process.identity) if process.identity else None,
                        "restarts": process.restarts,
                    }
                    for stage in self._stages
                    for process in stage
                ],
                **asdict(self._description),
            },
            durable=False,
        )


def say(line: str) -> None:
    """One line into the supervisor's log (its standard error)."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    os.write(2, f"{now} supervisor: {line}\n".encode())
