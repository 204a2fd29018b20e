"""The `process` sandbox: clean environment, session of its own, resource limits. No isolation.

Harnesses belong to the keepers of `gyre.runner.keeper`, one fork server for each profile, so they
outlive this process and are found again by their status files.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gyre.core.execution import Exit
from gyre.runner import keeper
from gyre.runner.errors import HarnessMisconfigured
from gyre.runner.keeper import Keeper, LaunchHandle, LaunchRequest
from gyre.runner.profiles import HarnessProfile, profile, profile_names
from gyre.runner.sandbox.base import Command, Process


class ProcessSandbox:
    """Implements Sandbox. pythons: the interpreter of each profile that lives in a Python
    environment of its own, by the profile's name. state_dir: names the stack."""

    isolation = "none: harnesses run as the stack's user"

    def __init__(self, state_dir: Path, pythons: Mapping[str, Path]) -> None:
        self._state_dir = state_dir
        self._pythons = pythons
        self._keepers: dict[str, Keeper] = {}

    async def launch(self, command: Command) -> Process:
        limits = command.limits
        request = LaunchRequest(
            argv=command.argv,
            env=command.env,
            cwd=command.cwd,
            stdout=command.stdout,
            stderr=command.stderr,
            status=command.status,
            limits={"FSIZE": limits.max_file_bytes, "NOFILE": limits.max_open_files},
            door=command.door,
        )
        handle = await self._keeper(profile(command.profile)).launch(request)
        return Process(pid=handle.pid, start_time=handle.start_time, status=handle.status)

    async def find(self, status: Path) -> Process | None:
        handle = keeper.find(status)
        if handle is None:
            return None
        return Process(pid=handle.pid, start_time=handle.start_time, status=handle.status)

    async def wait(self, process: Process, timeout_s: float) -> Exit | None:
        return await keeper.wait(_handle(process), timeout_s)

    async def kill(self, process: Process, grace_s: float) -> Exit | None:
        return await keeper.kill_group(_handle(process), grace_s)

    async def close(self) -> None:
        # An earlier life of the runner may have started servers that this one never needed.
        for name in profile_names():
            with suppress(HarnessMisconfigured):
                await self._keeper(profile(name)).stop()

    def _keeper(self, wanted: HarnessProfile) -> Keeper:
        if wanted.name not in self._keepers:
            self._keepers[wanted.name] = Keeper(
                python=self._python(wanted),
                warm=wanted.warm,
                state_dir=self._state_dir,
                log=self._state_dir.parent / "logs" / f"keeper-{wanted.name}.log",
            )
        return self._keepers[wanted.name]

    def _python(self, wanted: HarnessProfile) -> Path:
        """The interpreter that runs the fork server."""
        if not wanted.needs_python:
            return Path(sys.executable)
        if wanted.name not in self._pythons:
            raise HarnessMisconfigured(
                f"harness {wanted.name}: GYRE_HARNESS_ENVS names no harness_{wanted.name}_python"
            )
        return self._pythons[wanted.name]


def _handle(process: Process) -> LaunchHandle:
    return LaunchHandle(pid=process.pid, start_time=process.start_time, status=process.status)
