"""nats-server and Postgres from wheels, and the supervisor of a whole stack on one machine.

up(home) -> StackInfo      start the stack, or find it running
down(home)                 stop it and everything that it started
status(home), attach(home) look at it
nats.running(directory)    one server for the length of a block (tests, tools)
postgres.running()
"""

from __future__ import annotations

from gyre.embedded.control import ProcessStatus, StackInfo, attach, down, status, up
from gyre.embedded.errors import EmbeddedError, StackFailed, StackMismatch

__all__ = [
    "EmbeddedError",
    "ProcessStatus",
    "StackFailed",
    "StackInfo",
    "StackMismatch",
    "attach",
    "down",
    "status",
    "up",
]
