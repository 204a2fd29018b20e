"""`python -m gyre.embedded`: become the supervisor of one stack, in the background.

Prints the supervisor's process id and returns; the supervisor goes on in a session of its own with
its output in `logs/supervisor.log`. People use `gyre up`; this is what it starts.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import importlib
import os
import sys
from dataclasses import asdict
from pathlib import Path

from gyre.embedded.errors import EmbeddedError
from gyre.embedded.identity import ProcessIdentity
from gyre.embedded.paths import StackPaths, write_json
from gyre.embedded.stack import StackFactory
from gyre.embedded.supervisor import Supervisor, say


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m gyre.embedded", description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--cells", type=int, required=True)
    parser.add_argument("--stack", required=True, help="module:function that makes the plan")
    parser.add_argument("--owner", type=int, help="stop when this process is gone")
    options = parser.parse_args()
    paths = StackPaths.of(options.home)
    owner = None
    if options.owner is not None:
        owner = ProcessIdentity.of(options.owner)
        if owner is None:
            parser.error(f"--owner {options.owner}: no such process")
    paths.create()
    _detach(paths)
    sys.exit(_serve(paths, options.cells, options.stack, owner))


def _detach(paths: StackPaths) -> None:
    """Leave the caller: a new process in its own session, output to the log."""
    pid = os.fork()
    if pid:
        os.write(1, f"{pid}\n".encode())
        os._exit(0)
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(paths.log("supervisor"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(log)


def _serve(paths: StackPaths, cells: int, stack: str, owner: ProcessIdentity | None) -> int:
    with paths.supervisor_lock.open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another supervisor serves {paths.home}")
            return 1
        _publish_start(paths, "starting", None)
        try:
            plan = _factory(stack)(paths, cells, dict(os.environ))
        except EmbeddedError as error:
            say(str(error))
            _publish_start(paths, "failed", str(error))
            return 1
        supervisor = Supervisor(paths, plan.stages, plan.description, owner=owner)
        return asyncio.run(supervisor.run())


def _publish_start(paths: StackPaths, state: str, error: str | None) -> None:
    identity = ProcessIdentity.of(os.getpid())
    assert identity is not None, "a process knows itself"
    write_json(paths.stack, {"state": state, "error": error, "supervisor": asdict(identity)})


def _factory(stack: str) -> StackFactory:
    module, _, function = stack.partition(":")
    factory: StackFactory = getattr(importlib.import_module(module), function)
    return factory


if __name__ == "__main__":
    main()
