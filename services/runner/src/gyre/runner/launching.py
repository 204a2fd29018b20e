"""One launch, in the children of the fork server: the harness, and the keeper that outlives it.

Runs under the harness's own Python; loaded by its path: the standard library alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from gyre.runner.relay import Relay

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
HANDSHAKE_S = 20.0
"""Longest wait for a launch to report; forking takes milliseconds unless the machine thrashes."""


def prctl(option: int, value: int) -> None:
    """Linux's prctl; raises OSError."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def start_time_of(pid: int) -> int:
    """Clock ticks after boot at which the process started: with the pid it names one process."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return int(stat.rpartition(")")[2].split()[19])


def write_whole(path: Path, value: dict[str, Any]) -> None:
    """Replace a JSON file at once. Not synced: what it describes does not survive a crash."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(value), encoding="utf-8")
    part.replace(path)


class Harness:
    """In the child: what is left to do once the process is set up."""

    def __init__(self, argv: list[str], entry: str | None) -> None:
        self.argv = argv
        self.entry = entry

    def run(self) -> NoReturn:
        """Become the program: call its entry point as its console script would, or exec."""
        if self.entry is None:
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
                signal.signal(number, signal.SIG_DFL)
            os.execvp(self.argv[0], self.argv)  # noqa: S606 - what this program is for
        module, _, attribute = self.entry.partition(":")
        sys.argv = self.argv
        sys.exit(getattr(sys.modules[module], attribute)())


def set_up_harness(request: dict[str, Any], channel: socket.socket) -> None:
    """Give this process its session, limits, directory, environment and standard streams."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, limit in {"CORE": 0, **request.get("limits", {})}.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (limit, limit))
    os.chdir(request["cwd"])
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    streams = [os.open(os.devnull, os.O_RDONLY)]
    streams += [os.open(request[name], flags, 0o644) for name in ("stdout", "stderr")]
    os.environ.clear()
    os.environ.update(request["env"])
    if shutil.which(request["argv"][0]) is None and request.get("exec"):
        raise FileNotFoundError(f"no program {request['argv'][0]!r}")
    for target, source in enumerate(streams):
        os.dup2(source, target)
        os.close(source)
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined]
    time.tzset()
    channel.sendall(b"ready\n")


def keep(
    request: dict[str, Any],
    entry: str | None,
    answer: socket.socket,
    door: Relay | None,
) -> Harness:
    """In the keeper: start the harness, record it, record its exit, reap what it leaves behind.

    Returns only in the harness process; the keeper ends here.
    """
    os.setsid()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        answer.close()
        if door is not None:
            door.close()
        return become_harness(request, entry, theirs)
    theirs.close()
    try:
        if door is not None:
            door.open()  # threads, in a process that forks no more
        status = record_start(request, pid, ours)
    except (OSError, ValueError, RuntimeError) as error:
        reply(answer, {"error": str(error)})
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os._exit(1)
    reply(answer, status)
    answer.close()
    ours.close()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # hold nothing of the server's open for the harness's whole life
        os.dup2(null, stream)
    os.close(null)
    reap(Path(request["status"]), status, pid)
    os._exit(0)


def become_harness(request: dict[str, Any], entry: str | None, channel: socket.socket) -> Harness:
    """In the harness process: set up, report, and wait until the start is on disk."""
    try:
        set_up_harness(request, channel)
    except (OSError, ValueError, AttributeError) as error:
        channel.sendall(f"{error}\n".encode())
        os._exit(127)
    if channel.recv(16) != b"go\n":
        os._exit(127)
    channel.close()
    return Harness(request["argv"], None if request.get("exec") else entry)


def record_start(request: dict[str, Any], pid: int, channel: socket.socket) -> dict[str, Any]:
    """Write the status file once the harness is set up, then let it go. Raises OSError."""
    channel.settimeout(HANDSHAKE_S)
    report = channel.recv(4096).decode(errors="replace").strip()
    if report != "ready":
        raise OSError(report or "the harness process died while it was set up")
    status = {
        "pid": pid,
        "start_time": start_time_of(pid),
        "started_at": time.time(),
        "keeper_pid": os.getpid(),
        "keeper_start_time": start_time_of(os.getpid()),
    }
    write_whole(Path(request["status"]), status)
    channel.sendall(b"go\n")
    return status


def reap(path: Path, status: dict[str, Any], leader: int) -> None:
    """Wait for every descendant; record the leader's exit when it comes."""
    while True:
        try:
            pid, wait_status = os.waitpid(-1, 0)
        except ChildProcessError:
            return
        if pid == leader:
            code = os.waitstatus_to_exitcode(wait_status)
            write_whole(
                path,
                {
                    **status,
                    "exit_code": code if code >= 0 else None,
                    "signal": -code if code < 0 else None,
                    "ended_at": time.time(),
                },
            )


def reply(connection: socket.socket, value: dict[str, Any]) -> None:
    """Answer; whoever asked may be gone."""
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(value).encode() + b"\n")
