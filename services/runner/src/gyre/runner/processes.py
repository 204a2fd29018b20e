"""Process trees, read from /proc: who is alive, who descends from whom, ending all of them."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
MAX_FREEZE_PASSES = 50
"""A tree that still grows after as many passes forks faster than we can stop it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """One process; start_time in clock ticks after boot names it together with the pid."""

    pid: int
    parent: int
    session: int
    start_time: int
    is_zombie: bool


def read_process(pid: int) -> ProcessInfo | None:
    """The process as it is now; None when there is none."""
    try:
        stat = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return ProcessInfo(
        pid=pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        start_time=int(fields[19]),
        is_zombie=fields[0] in "ZX",
    )


def is_alive(pid: int, start_time: int) -> bool:
    """Whether this very process still runs; a zombie does not."""
    process = read_process(pid)
    return process is not None and process.start_time == start_time and not process.is_zombie


def list_processes() -> list[ProcessInfo]:
    """Every process that can be seen."""
    pids = (int(name) for name in os.listdir(PROC) if name.isdecimal())
    return [process for pid in pids if (process := read_process(pid)) is not None]


def members(*, ancestor: int | None, session: int | None) -> set[int]:
    """Living processes below the ancestor (not itself) or in the session; None matches nothing."""
    processes = list_processes()
    children: dict[int, list[int]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    frontier = [ancestor] if ancestor is not None else []
    while frontier:
        below = children.get(frontier.pop(), [])
        found.update(below)
        frontier += below
    return {
        process.pid
        for process in processes
        if not process.is_zombie and (process.pid in found or process.session == session)
    }


def signal_all(pids: set[int], number: signal.Signals) -> None:
    """Send the signal to each; those that are gone already are fine."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_members(*, ancestor: int | None, session: int | None) -> None:
    """Stop every member first, so that none forks meanwhile, then kill them."""
    stopped: set[int] = set()
    for _ in range(MAX_FREEZE_PASSES):
        fresh = members(ancestor=ancestor, session=session) - stopped
        if not fresh:
            break
        signal_all(fresh, signal.SIGSTOP)
        stopped |= fresh
    signal_all(stopped, signal.SIGKILL)
