"""Runs one command and leaves nothing of it behind. Standard library only; executed by path.

    python -I -S reaper.py < order.json > result.json

order: {"argv": [...], "cwd", "env": {...}, "output": file for stdout and stderr, "timeout_s",
"max_file_bytes"}. result: {"exit_code", "signal", "timed_out", "num_left"}; num_left counts
processes that the command left behind and that were killed.

The command gets a session of its own, but what it starts may leave that session. So this process
makes itself the subreaper: every orphan below becomes its child, and it returns when it has none.
It dies with the process that started it, and takes the command along.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# A killed process is gone within milliseconds unless it hangs in the kernel.
DEATH_DEADLINE_S = 20.0


class Stopped(Exception):
    """SIGTERM came: the process that waits for the result gave up or is gone."""


def main() -> int:
    order = json.load(sys.stdin)
    parent = os.getppid()
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, _stop)
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return 1
    try:
        result = run(order)
    except Stopped:
        kill_descendants()
        return 1
    except OSError as error:
        kill_descendants()
        result = {"error": f"{type(error).__name__}: {error}"}
    json.dump(result, sys.stdout)
    return 0


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Runs the command to its end or to its time-out, then kills whatever is left of it."""
    with open(order["output"], "wb") as output:
        child = subprocess.Popen(
            order["argv"],
            cwd=order["cwd"],
            env=order["env"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: _limit(order["max_file_bytes"]),  # noqa: PLW1509  one thread
        )
    timed_out = False
    try:
        status: int | None = child.wait(timeout=order["timeout_s"])
    except subprocess.TimeoutExpired:
        timed_out, status = True, None
    num_left = kill_descendants()
    return {
        "exit_code": status if status is not None and status >= 0 else None,
        "signal": -status if status is not None and status < 0 else None,
        "timed_out": timed_out,
        "num_left": num_left,
    }


def kill_descendants() -> int:
    """SIGKILL to everything below this process until nothing is; how many there were.

    Raises TimeoutError when one does not die.
    """
    seen: set[int] = set()
    deadline = time.monotonic() + DEATH_DEADLINE_S
    while _has_children():
        for pid in _descendants():
            seen.add(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(seen)} processes of the scorer do not die")
        time.sleep(0.002)
    return len(seen)


def _has_children() -> bool:
    """Reaps what is dead; whether any child is left, alive."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True


def _descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _limit(max_file_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Stopped


if __name__ == "__main__":
    sys.exit(main())
