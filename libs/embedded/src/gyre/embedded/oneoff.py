"""Running one server for the length of a block, for tests and tools that need no supervisor."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from gyre.embedded.errors import StackFailed
from gyre.embedded.identity import kill_group
from gyre.embedded.process import ProcessSpec, describe_exit, last_line, spawn

POLL_INTERVAL_S = 0.02


@contextlib.contextmanager
def running_process(spec: ProcessSpec, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start `spec`, wait until it is ready, stop it with its group at the end of the block.

    Raises StackFailed when it ends before it is ready, or is not ready in `ready_timeout_s`.
    """
    process = spawn(spec, log)
    try:
        _await_ready(spec, process, log)
        yield process
    finally:
        stop(spec, process)


def stop(spec: ProcessSpec, process: subprocess.Popen[bytes]) -> None:
    """Ask the process to end, kill its group after the grace time, and reap it."""
    if process.poll() is None:
        process.send_signal(spec.stop_signal)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=spec.stop_grace_s)
    kill_group(process.pid)
    process.wait(timeout=spec.stop_grace_s)


def _await_ready(spec: ProcessSpec, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + spec.ready_timeout_s
    while spec.ready is not None and not spec.ready():
        returncode = process.poll()
        if returncode is not None:
            why = describe_exit(returncode)
            raise StackFailed(f"{spec.name} ended with {why}: {last_line(log)} (see {log})")
        if time.monotonic() > deadline:
            raise StackFailed(
                f"{spec.name} not ready after {spec.ready_timeout_s:.0f} s: see {log}"
            )
        time.sleep(POLL_INTERVAL_S)
