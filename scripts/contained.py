#!/usr/bin/env python3
"""Run a command under a time limit and leave nothing of it behind.

    scripts/contained.py SECONDS COMMAND [ARGUMENT ...]

Whatever the command started is a descendant of this process, daemons included (it is a subreaper),
and is killed when the command ends. Nothing else is touched. Exit status: the command's; 124 when
the limit passed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
TERM_GRACE_S = 20.0
KILL_TIMEOUT_S = 10.0
TIMED_OUT = 124
POLL_S = 0.05


def main() -> int:
    limit_s, command = float(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    process = subprocess.Popen(command, start_new_session=True)

    def pass_on(number: int, _: object) -> None:
        process.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, pass_on)
    status = reap_until_end(process.pid, limit_s)
    if status is None:
        print(f"contained: {limit_s:.0f} s are over: stopping", file=sys.stderr, flush=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        reap_until_end(process.pid, TERM_GRACE_S)
        status = TIMED_OUT
    process.returncode = status
    left = end_descendants()
    if left:
        print(f"contained: ended {left} processes that were left over", file=sys.stderr)
    return status if status >= 0 else 128 - status


def reap_until_end(wanted: int, limit_s: float) -> int | None:
    """Reap every child, adopted orphans too, until `wanted` ends: its status, None at the limit.

    Left zombies, daemons that ended would look alive to the tests that stopped them.
    """
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == wanted:
                    return os.waitstatus_to_exitcode(ended[1])
        time.sleep(POLL_S)
    return None


def end_descendants() -> int:
    """Kill every descendant, again until none is left. Returns how many there were."""
    seen: set[int] = set()
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while (living := descendants(os.getpid())) and time.monotonic() < deadline:
        seen |= living
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.05)
    return len(seen)


def descendants(ancestor: int) -> set[int]:
    """Ids of all living processes below `ancestor`, from /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            # The name, in parentheses, may hold spaces; state and parent follow it.
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            parents[int(entry.name)] = int(fields[1])
    found: set[int] = set()
    frontier = {ancestor}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier} - found
        found |= frontier
    return found


if __name__ == "__main__":
    sys.exit(main())
