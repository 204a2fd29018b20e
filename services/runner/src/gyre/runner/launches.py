"""What became of a launch: its status file, its exit, and the end of all of its processes.

Plain functions over the status file that the fork server writes, so that any runner process can
take up what another one launched.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.core.execution import Exit
from gyre.runner.errors import SandboxError
from gyre.runner.processes import is_alive, kill_members, members, read_process, signal_all

RECORD_TIMEOUT_S = 30.0
"""A keeper that lives writes the exit within milliseconds of it, on a machine that runs at all."""
KILL_TIMEOUT_S = 30.0
POLL_S = 0.02


class HarnessVanished(SandboxError):
    """The harness is gone and nobody recorded how it ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchHandle:
    """A launched harness: its process id, the kernel's start time of it, its status file."""

    pid: int
    start_time: int
    status: Path


def find(status: Path) -> LaunchHandle | None:
    """What was launched with this status file, living or not; None if nothing was."""
    record = _read_status(status)
    if record is None:
        return None
    return LaunchHandle(pid=record["pid"], start_time=record["start_time"], status=status)


def recorded_exit(handle: LaunchHandle) -> Exit | None:
    """How the harness ended, if its keeper has written it."""
    record = _read_status(handle.status)
    if record is None or "ended_at" not in record:
        return None
    return Exit(exit_code=record["exit_code"], signal=record["signal"])


async def wait(handle: LaunchHandle, timeout_s: float) -> Exit | None:
    """The recorded exit; None while the harness still runs after `timeout_s`.

    Raises HarnessVanished when it is gone without a record.
    """
    if (ended := recorded_exit(handle)) is not None:
        return ended
    if not await _ended_within(handle, timeout_s):
        return None
    deadline = time.monotonic() + RECORD_TIMEOUT_S
    while True:
        keeper_lives = _living_keeper(handle) is not None
        if (ended := recorded_exit(handle)) is not None:
            return ended
        if not keeper_lives or time.monotonic() > deadline:
            raise HarnessVanished(f"process {handle.pid} is gone and its exit was not recorded")
        await asyncio.sleep(POLL_S / 4)


async def kill_group(handle: LaunchHandle, grace_s: float) -> Exit | None:
    """End all of a launch: SIGTERM, after `grace_s` SIGKILL; also what outlived the harness.

    The harness's exit if it is recorded. Raises SandboxError when something stays alive.
    """
    living = _members(handle)
    if living and grace_s > 0:
        signal_all(living, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while (living := _members(handle)) and time.monotonic() < deadline:
            await asyncio.sleep(POLL_S)
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while living:
        if time.monotonic() > deadline:
            raise SandboxError(f"{len(living)} processes of launch {handle.pid} do not die")
        kill_members(ancestor=_living_keeper(handle), session=_session(handle))
        await asyncio.sleep(POLL_S / 4)
        living = _members(handle)
    while _living_keeper(handle) is not None and recorded_exit(handle) is None:
        if time.monotonic() > deadline:
            raise SandboxError(f"the keeper of launch {handle.pid} does not record its exit")
        await asyncio.sleep(POLL_S / 4)
    return recorded_exit(handle)


async def _ended_within(handle: LaunchHandle, timeout_s: float) -> bool:
    """Whether the process is gone after at most `timeout_s`; the kernel tells through a pidfd."""
    try:
        pidfd = os.pidfd_open(handle.pid)
    except ProcessLookupError:
        return True
    try:
        if not is_alive(handle.pid, handle.start_time):
            return True
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(pidfd, ended.set)
        try:
            async with asyncio.timeout(timeout_s):
                await ended.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(pidfd)
        return True
    finally:
        os.close(pidfd)


def _members(handle: LaunchHandle) -> set[int]:
    return members(ancestor=_living_keeper(handle), session=_session(handle))


def _living_keeper(handle: LaunchHandle) -> int | None:
    record = _read_status(handle.status)
    if record is None or not is_alive(record["keeper_pid"], record["keeper_start_time"]):
        return None
    return int(record["keeper_pid"])


def _session(handle: LaunchHandle) -> int | None:
    """The harness's session, unless its id has gone to another process."""
    leader = read_process(handle.pid)
    if leader is not None and leader.start_time != handle.start_time:
        return None
    return handle.pid


def _read_status(path: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise SandboxError(f"{path.name}: is no status file: {error}") from error
    return record
