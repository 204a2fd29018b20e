"""The fork server: starts harness processes quickly and remembers how each ended.

Runs under the harness's own Python, by path, with the standard library alone. It imports the
harness's modules once; each launch then forks a fresh process that goes on with the program's own
entry point, unchanged (`launching`). Without an entry point it executes argv instead, so programs
in any language have the same keeper.

    server --fork--> keeper (one a launch) --fork--> harness (own session)

- The keeper is the harness's subreaper: every descendant, daemons included, stays below it and is
  attributable to its launch. It writes the exit to the launch's status file and ends when the last
  descendant is gone.
- The status file is there before the harness runs its first instruction, and is only ever
  replaced whole. A launch whose status file exists starts nothing.
- Keepers outlive the server, and the server outlives whoever started it.
- The harness dies with its keeper (PR_SET_PDEATHSIG): nobody could record its exit.
- A launch may bring a listening socket: the harness's door to its proxies (`relay`). The keeper
  serves it, so the door is there for as long as the harness is, whoever else comes and goes.

Requests and answers are one JSON line each, over a Unix socket: ping, launch, shutdown.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # The directory of this file must not shadow the harness's imports.
    sys.path.pop(0)

import argparse
import contextlib
import fcntl
import gc
import importlib
import importlib.util
import json
import os
import selectors
import signal
import socket
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

REQUEST_S = 5.0
MAX_REQUEST_BYTES = 1 << 20


def beside(name: str) -> ModuleType:
    """A module from this file's directory, which is not where imports are looked for."""
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"gyre_{name}", path)
    if spec is None or spec.loader is None:
        raise ImportError(str(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from gyre.runner import launching, relay
else:
    launching, relay = beside("launching"), beside("relay")


def read_line(connection: socket.socket, data: bytes) -> dict[str, Any]:
    """One request, of which `data` has been read. Raises ValueError or OSError."""
    while not data.endswith(b"\n"):
        chunk = connection.recv(65536)
        if not chunk or len(data) > MAX_REQUEST_BYTES:
            raise ValueError("the request is not one JSON line")
        data += chunk
    value = json.loads(data)
    if not isinstance(value, dict):
        raise TypeError("the request is not a JSON object")
    return value


def read_first(connection: socket.socket) -> tuple[bytes, socket.socket | None]:
    """The first bytes of a request and the listener that came with them. Raises OSError."""
    connection.settimeout(REQUEST_S)
    data, descriptors, _, _ = socket.recv_fds(connection, 65536, 1)
    return data, socket.socket(fileno=descriptors[0]) if descriptors else None


def door_of(request: dict[str, Any], listener: socket.socket) -> relay.Relay:
    """The door that came with a launch, not open yet."""
    return relay.Relay(
        listener,
        execution=request["execution"],
        proxies=request["proxies"],
        note=Path(request["note"]),
    )


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

    def serve(self) -> launching.Harness | None:
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
                        if isinstance(outcome, launching.Harness):
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

    def handle(self, connection: socket.socket) -> launching.Harness | bool:
        """One request: whether to go on, or a Harness in the child."""
        self.last_used = time.monotonic()
        with connection, contextlib.ExitStack() as stack:
            try:
                data, listener = read_first(connection)
                if listener is not None:
                    stack.enter_context(listener)
                request = read_line(connection, data)
                operation = request["op"]
                if operation == "ping":
                    answer = {"fingerprint": self.fingerprint, "pid": os.getpid()}
                    launching.reply(connection, answer)
                elif operation == "shutdown":
                    launching.reply(connection, {"pid": os.getpid()})
                    return False
                elif operation == "launch":
                    return self.launch(request, connection, listener) or True
                else:
                    launching.reply(connection, {"error": f"unknown operation {operation!r}"})
            except (OSError, ValueError, TypeError, KeyError) as error:
                launching.reply(connection, {"error": f"{type(error).__name__}: {error}"})
        return True

    def launch(
        self, request: dict[str, Any], connection: socket.socket, listener: socket.socket | None
    ) -> launching.Harness | None:
        """Fork the keeper and wait until the launch is on disk; a Harness in the child."""
        status = Path(request["status"])
        if status.exists():
            launching.reply(connection, json.loads(status.read_text(encoding="utf-8")))
            return None
        sys.stdout.flush()
        sys.stderr.flush()
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            ours.close()
            connection.close()
            try:
                self.forget()
                door = None if listener is None else door_of(request["door"], listener)
                return launching.keep(request, self.entry, theirs, door)
            except BaseException:  # noqa: BLE001 - reported, and the process ends here
                # Nothing of a child may reach the server's loop.
                traceback.print_exc()
                os._exit(1)
        theirs.close()
        self.has_children = True
        with ours:
            ours.settimeout(launching.HANDSHAKE_S + REQUEST_S)
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
    launching.prctl(launching.PR_SET_CHILD_SUBREAPER, 1)
    server = Server(*listening, fingerprint=args.fingerprint, entry=args.entry, idle_s=args.idle_s)
    harness = server.serve()
    if harness is not None:
        harness.run()
    for path in (args.socket, args.socket.with_suffix(".lock")):
        path.unlink(missing_ok=True)  # the lock last, and while it is held


if __name__ == "__main__":
    main()
