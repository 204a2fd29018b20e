"""The fork server: starts harness processes quickly and remembers how each ended.

Runs under the harness's own Python, by path, with the standard library alone. It imports the
harness's modules once; each launch then forks a fresh process that goes on with the program's own
entry point, unchanged. Without an entry point it executes argv instead, so programs in any
language have the same keeper.

    server --fork--> keeper (one a launch) --fork--> harness (own session)

- The keeper is the harness's subreaper: every descendant, daemons included, stays below it and is
  attributable to its launch. It writes the exit to the launch's status file and ends when the last
  descendant is gone.
- The status file is there before the harness runs its first instruction, and is only ever
  replaced whole. A launch whose status file exists starts nothing.
- Keepers outlive the server, and the server outlives whoever started it.
- The harness dies with its keeper (PR_SET_PDEATHSIG): nobody could record its exit.

Requests and answers are one JSON line each, over a Unix socket: ping, launch, shutdown.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # The directory of this file must not shadow the harness's imports.
    sys.path.pop(0)

import argparse
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import resource
import selectors
import shutil
import signal
import socket
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
HANDSHAKE_S = 20.0
"""Longest wait for a launch to report; forking takes milliseconds unless the machine thrashes."""
REQUEST_S = 5.0
MAX_REQUEST_BYTES = 1 << 20


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


def keep(request: dict[str, Any], entry: str | None, answer: socket.socket) -> Harness:
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
        return become_harness(request, entry, theirs)
    theirs.close()
    try:
        status = record_start(request, pid, ours)
    except (OSError, ValueError) as error:
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


def read_line(connection: socket.socket) -> dict[str, Any]:
    """One request. Raises ValueError or OSError."""
    connection.settimeout(REQUEST_S)
    data = b""
    while not data.endswith(b"\n"):
        chunk = connection.recv(65536)
        if not chunk or len(data) > MAX_REQUEST_BYTES:
            raise ValueError("the request is not one JSON line")
        data += chunk
    value = json.loads(data)
    if not isinstance(value, dict):
        raise TypeError("the request is not a JSON object")
    return value


class Server:
    """The accepting loop. Single-threaded: at most one launch is between its request and answer."""

    def __init__(
        self,
        listener: socket.socket,
        lock: int,
        *,
        fingerprint: str,
        entry: str | None,
        idle_s: float,
    ) -> None:
        self.listener = listener
        self.lock = lock
        self.fingerprint = fingerprint
        self.entry = entry
        self.idle_s = idle_s
        self.has_children = False
        self.last_used = time.monotonic()
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_write, False)
        os.set_blocking(self.wake_read, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)

    def serve(self) -> Harness | None:
        """Serve until idle or told to stop; returns a Harness in each harness process."""
        with selectors.SelectSelector() as selector:
            selector.register(self.listener, selectors.EVENT_READ)
            selector.register(self.wake_read, selectors.EVENT_READ)
            while True:
                self.reap_keepers()
                ready = selector.select(self.idle_s / 4)
                for key, _ in ready:
                    if key.fileobj is self.listener:
                        connection, _ = self.listener.accept()
                        outcome = self.handle(connection)
                        if isinstance(outcome, Harness):
                            return outcome
                        if not outcome:
                            return None
                if not self.has_children and time.monotonic() - self.last_used > self.idle_s:
                    return None

    def reap_keepers(self) -> None:
        """Collect ended keepers, and orphans of keepers that were killed."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_read, 4096)
        try:
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
            self.has_children = True
        except ChildProcessError:
            self.has_children = False

    def handle(self, connection: socket.socket) -> Harness | bool:
        """One request: whether to go on, or a Harness in the child."""
        self.last_used = time.monotonic()
        with connection:
            try:
                request = read_line(connection)
                operation = request["op"]
                if operation == "ping":
                    reply(connection, {"fingerprint": self.fingerprint, "pid": os.getpid()})
                elif operation == "shutdown":
                    reply(connection, {"pid": os.getpid()})
                    return False
                elif operation == "launch":
                    return self.launch(request, connection) or True
                else:
                    reply(connection, {"error": f"unknown operation {operation!r}"})
            except (OSError, ValueError, TypeError, KeyError) as error:
                reply(connection, {"error": f"{type(error).__name__}: {error}"})
        return True

    def launch(self, request: dict[str, Any], connection: socket.socket) -> Harness | None:
        """Fork the keeper and wait until the launch is on disk; a Harness in the child."""
        status = Path(request["status"])
        if status.exists():
            reply(connection, json.loads(status.read_text(encoding="utf-8")))
            return None
        sys.stdout.flush()
        sys.stderr.flush()
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            ours.close()
            connection.close()
            try:
                self.forget()
                return keep(request, self.entry, theirs)
            except BaseException:  # noqa: BLE001 - reported, and the process ends here
                # Nothing of a child may reach the server's loop.
                traceback.print_exc()
                os._exit(1)
        theirs.close()
        self.has_children = True
        with ours:
            ours.settimeout(HANDSHAKE_S + REQUEST_S)
            answer = ours.recv(65536)
        connection.sendall(
            answer or b'{"error": "the keeper died before it started the harness"}\n'
        )
        return None

    def forget(self) -> None:
        """In the child: give back what belongs to the server alone."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.listener.close()
        for fd in (self.lock, self.wake_read, self.wake_write):
            os.close(fd)


def preload(modules: list[str], calls: list[str]) -> None:
    """Import the harness's modules and make its one-time calls (`module:function`)."""
    for module in modules:
        importlib.import_module(module)
    for call in calls:
        module, _, function = call.partition(":")
        getattr(importlib.import_module(module), function)()
    gc.collect()
    gc.freeze()  # the collector does not touch, and so does not copy, the shared pages


def take_lock(path: Path) -> int | None:
    """The descriptor that holds the file's lock; None if another process does."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        with contextlib.suppress(FileNotFoundError):
            if os.path.sameopenfile(lock, (current := os.open(path, os.O_RDONLY))):
                os.close(current)
                return lock
            os.close(current)
        os.close(lock)  # an ending server removed the file in between


def listen(path: Path) -> tuple[socket.socket, int] | None:
    """The server's socket and the lock that it holds; None if another server of this path lives."""
    lock = take_lock(path.with_suffix(".lock"))
    if lock is None:
        return None
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(128)
    return listener, lock


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--fingerprint", required=True)
    parser.add_argument("--idle-s", type=float, required=True)
    parser.add_argument("--entry")
    parser.add_argument("--preload", action="append", default=[])
    parser.add_argument("--call", action="append", default=[])
    return parser.parse_args()


def main() -> None:
    """Exit status 0 once a server accepts requests on the socket, this one or an older one."""
    args = arguments()
    preload(args.preload, args.call)
    listening = listen(args.socket)
    if listening is None or os.fork() != 0:
        os._exit(0)
    os.setsid()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    server = Server(*listening, fingerprint=args.fingerprint, entry=args.entry, idle_s=args.idle_s)
    harness = server.serve()
    if harness is not None:
        harness.run()
    for path in (args.socket, args.socket.with_suffix(".lock")):
        path.unlink(missing_ok=True)  # the lock last, and while it is held


if __name__ == "__main__":
    main()
