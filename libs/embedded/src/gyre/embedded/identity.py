"""Naming a process so that a reused process id is never taken for it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

# Start times are derived from the boot time, which moves a little when the clock is set. A process
# id does not come round again within two seconds.
START_TIME_TOLERANCE_S = 2.0
WAIT_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """A process id with the Unix time at which that process started."""

    pid: int
    started: float

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """The identity of the process that has `pid` now, or None if there is none."""
        try:
            return cls(pid=pid, started=psutil.Process(pid).create_time())
        except psutil.NoSuchProcess:
            return None

    def process(self) -> psutil.Process | None:
        """The living process of this identity; a zombie counts as dead."""
        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.started) > START_TIME_TOLERANCE_S:
                return None
            return None if process.status() == psutil.STATUS_ZOMBIE else process
        except psutil.NoSuchProcess:
            return None

    def is_alive(self) -> bool:
        return self.process() is not None

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; returns whether it came in time.

        Polls, since it may be anybody's child, and its parent may leave it a zombie.
        """
        deadline = time.monotonic() + timeout_s
        while self.is_alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(WAIT_POLL_S)
        return True


def kill_group(pgid: int, sig: signal.Signals = signal.SIGKILL) -> None:
    """Signal every process of a group; a group that is already gone is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pgid, sig)


def kill_leftovers(identities: Iterable[ProcessIdentity], timeout_s: float) -> list[int]:
    """Kill what a dead supervisor left behind, each with its process group.

    Returns the ids that were still alive. Every process of the stack leads a group of its own, so
    its group id is its process id; the identity check keeps a stranger with that id safe.
    """
    living = [identity for identity in identities if identity.is_alive()]
    for identity in living:
        kill_group(identity.pid)
    deadline = time.monotonic() + timeout_s
    for identity in living:
        identity.wait(max(0.0, deadline - time.monotonic()))
    return [identity.pid for identity in living]
