"""The door of an attempt: the harness's base URL, behind which proxies may die and come back.

Runs in the attempt's keeper, under the harness's own Python, loaded by its path: the standard
library alone.

    harness --loopback--> door --> the execution's proxy

- An execution has one proxy: of those that answer, the first in the order that its name gives them
  (rendezvous hashing). It stays there while that one answers, also when the first is back, because
  each change makes a proxy read the execution's log.
- A connection leads to one proxy and breaks with it. Nothing is sent a second time: what has
  arrived, only the client and the log can tell, so the client is the one to ask again.
- While no proxy answers, clients wait, PATIENCE_S at most.
- What goes through is not looked at.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import socket
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

BY_NAME = "dns+"
"""Before a URL: each address that its host's name has is a proxy."""
CONNECT_S = 2.0
KNOCK_S = 2.0
"""For a sign of life, which a proxy gives within 50 ms under full load; machines may be slow."""
PATIENCE_S = 240.0
"""Clients give up after 300 s."""
PAUSE_S = 0.1
MAX_CONNECTIONS = 256
"""Of one harness; further ones wait. Two descriptors each, of the 1024 that a process has."""
CHUNK_BYTES = 1 << 16
# A machine that vanished is noticed within a minute; one that only computes is not disturbed.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


def preference(execution: str, proxies: Iterable[str]) -> list[str]:
    """The proxies in the order in which the execution wants them, the same for everybody.

    Rendezvous hashing (Thaler and Ravishankar, 1998): each pair has a weight of its own, so one
    proxy less moves only the executions that had it, evenly to all the others.
    """

    def weight(proxy: str) -> bytes:
        return hashlib.sha256(f"{execution}\0{proxy}".encode()).digest()

    return sorted(proxies, key=weight, reverse=True)


def endpoint(proxy: str) -> tuple[str, int]:
    """Host and port of a proxy's URL."""
    parts = urlsplit(proxy[len(BY_NAME) :] if proxy.startswith(BY_NAME) else proxy)
    return parts.hostname or "127.0.0.1", parts.port or 80


def addresses(proxies: Iterable[str]) -> list[str]:
    """The proxies with each `dns+` URL replaced by the addresses of its name; none while it has
    none. Asks the resolver, so it may block."""
    found = []
    for proxy in proxies:
        if not proxy.startswith(BY_NAME):
            found.append(proxy)
            continue
        host, port = endpoint(proxy)
        with contextlib.suppress(OSError, UnicodeError):
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            hosts = sorted(str(info[4][0]) for info in infos)
            # A proxy with addresses of both families is one proxy.
            if four := [host for host in hosts if ":" not in host]:
                found += [f"http://{host}:{port}" for host in four]
            else:
                found += [f"http://[{host}]:{port}" for host in hosts]
    return list(dict.fromkeys(found))


class Connection:
    """One connection of the harness, relayed."""

    def __init__(self, proxy: str, upstream: socket.socket) -> None:
        self.proxy = proxy
        self.upstream = upstream

    def sever(self) -> None:
        """Ends both directions; whoever is blocked on the socket wakes."""
        with contextlib.suppress(OSError):
            self.upstream.shutdown(socket.SHUT_RDWR)


class Relay:
    """Serves `listener` with threads until the process ends.

    proxies: URLs without a path. note: the file that names the proxy in use. The lock guards
    the choice and the connections.
    """

    def __init__(
        self, listener: socket.socket, *, execution: str, proxies: Iterable[str], note: Path
    ) -> None:
        self._listener = listener
        self._execution = execution
        self._proxies = tuple(proxies)
        self._note = note
        self._lock = threading.Lock()
        self._current: str | None = None
        self._connections: set[Connection] = set()
        self._places = threading.Semaphore(MAX_CONNECTIONS)

    def open(self) -> None:
        """Begins to accept. Raises RuntimeError when there are no threads to be had."""
        self._listener.settimeout(None)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Gives the listener up, in a process that does not serve it."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            self._places.acquire()
            try:
                client, _ = self._listener.accept()
            except OSError:  # the client is gone already, or the machine is out of descriptors
                self._places.release()
                time.sleep(PAUSE_S)
                continue
            try:
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()
            except RuntimeError:  # no thread to be had: the client asks again
                client.close()
                self._places.release()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client:
                connection = self._reach()
                if connection is not None:
                    with connection.upstream, contextlib.suppress(OSError, RuntimeError):
                        self._both_ways(client, connection)
                    with self._lock:
                        self._connections.discard(connection)
        finally:
            self._places.release()

    def _both_ways(self, client: socket.socket, connection: Connection) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option in _KEEPALIVE:
            connection.upstream.setsockopt(*option)
        back = threading.Thread(target=self._answer, args=(client, connection), daemon=True)
        back.start()
        self._ask(client, connection)
        back.join()

    def _ask(self, client: socket.socket, connection: Connection) -> None:
        try:
            while data := client.recv(CHUNK_BYTES):
                connection.upstream.sendall(data)
            connection.upstream.shutdown(socket.SHUT_WR)
        except OSError:  # broken on one side is broken on both
            connection.sever()

    def _answer(self, client: socket.socket, connection: Connection) -> None:
        with contextlib.suppress(OSError):
            while data := connection.upstream.recv(CHUNK_BYTES):
                client.sendall(data)
        connection.sever()
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def _reach(self) -> Connection | None:
        """A connection to the execution's proxy; None when none answered all that time."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            own = self._current
            upstream = None if own is None else _answering(own)
            with self._lock:
                if upstream is None and self._current == own:
                    own, upstream = self._choose(own)
                if upstream is not None and own is not None and own == self._current:
                    connection = Connection(own, upstream)
                    self._connections.add(connection)
                    return connection
            if upstream is not None:  # the execution has moved meanwhile
                upstream.close()
            time.sleep(PAUSE_S)
        return None

    def _choose(self, lost: str | None) -> tuple[str | None, socket.socket | None]:
        """The first proxy other than `lost` that answers, and a connection to it."""
        for proxy in preference(self._execution, addresses(self._proxies)):
            upstream = None if proxy == lost else _answering(proxy)
            if upstream is not None:
                self._belong_to(proxy)
                return proxy, upstream
        return None, None

    def _belong_to(self, proxy: str) -> None:
        """From here on the execution is that proxy's; what still leads to another one is broken,
        since that one did not answer."""
        self._current = proxy
        with contextlib.suppress(OSError):  # a hint for the runner, worth no connection
            part = self._note.with_name(f"{self._note.name}.{os.getpid()}.part")
            part.write_text(proxy, encoding="utf-8")
            part.replace(self._note)
        for connection in self._connections:
            if connection.proxy != proxy:
                connection.sever()


def _answering(proxy: str) -> socket.socket | None:
    """A new connection on which a proxy that serves has answered; None if there is none to be had.

    That a connection is accepted says nothing: a socket that outlives its process accepts for it,
    and so does a process that is stuck.
    """
    connection = http.client.HTTPConnection(*endpoint(proxy), timeout=CONNECT_S)
    try:
        connection.connect()
        connection.sock.settimeout(KNOCK_S)
        connection.request("GET", "/healthz")
        response = connection.getresponse()
        response.read()
    except (OSError, http.client.HTTPException):
        connection.close()
        return None
    upstream: socket.socket | None = connection.sock  # none if the proxy is about to close it
    if upstream is None or response.status != 200:
        connection.close()
        return None
    upstream.settimeout(None)
    return upstream
