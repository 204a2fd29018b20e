"""The sandbox's port: starts a harness, watches it, ends all of it.

Invariants:
- a launch is idempotent by its status file: what was launched once is found again, by another
  runner process too;
- a harness sees the environment of its command and nothing else;
- `wait` returns an exit only from a recorded status, never from a guess;
- after `kill` no process of the harness is left, whatever session it moved to;
- a door is served for as long as anything of its launch lives, whatever becomes of the runner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gyre.core.execution import Exit
from gyre.runner.proxies import Door


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Resource limits of each process. Core dumps are always off."""

    max_file_bytes: int
    max_open_files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run. env: complete. status: a file that names the process and later its exit. door:
    what the harness connects to when there are several proxies."""

    profile: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    stdout: Path
    stderr: Path
    status: Path
    limits: Limits
    door: Door | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A launched harness, by process id and the kernel's start time of it (clock ticks)."""

    pid: int
    start_time: int
    status: Path


class Sandbox(Protocol):
    """How isolated is said by `isolation`, in words for a person."""

    @property
    def isolation(self) -> str: ...

    async def launch(self, command: Command) -> Process:
        """Starts the command. Raises SandboxError."""
        ...

    async def find(self, status: Path) -> Process | None:
        """The process, living or not, that was launched with this status file; None if none was."""
        ...

    async def wait(self, process: Process, timeout_s: float) -> Exit | None:
        """The exit, at once if it is recorded; None while the process runs after `timeout_s`.

        Raises SandboxError when the process is gone and nobody recorded how it ended.
        """
        ...

    async def kill(self, process: Process, grace_s: float) -> Exit | None:
        """SIGTERM, SIGKILL after `grace_s`, to everything of this launch, also after its exit.

        The exit of the harness if it is recorded. Raises SandboxError when something stays alive.
        """
        ...

    async def close(self) -> None:
        """Ends what the sandbox itself keeps running."""
        ...
