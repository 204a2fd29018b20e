"""Who may stand at a source's door: connections that have proved nothing yet, a few of them.

Anybody may connect, and each connection costs a thread until it has proved the job's key or its
time is up. Beyond the limit the oldest of the host that has most goes. A puller proves itself in
two messages, so whoever holds many connections loses those, and a puller of another host none.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from contextlib import suppress

# A job's satellites and agents may all come at once, and each stands here for a millisecond or two.
MAX_UNPROVEN = 128


class Door:
    """Thread-safe. limit: connections that stand here at once."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        # In the order of their coming.
        self._standing: dict[socket.socket, str] = {}

    def come(self, connection: socket.socket, host: str) -> None:
        """From now on it may be shut down, by which whoever reads from it learns of its end."""
        with self._lock:
            self._standing[connection] = host
            if len(self._standing) > self._limit:
                self._send_away()

    def go(self, connection: socket.socket) -> None:
        """It has proved itself, or has ended. No error if it does not stand here."""
        with self._lock:
            self._standing.pop(connection, None)

    def _send_away(self) -> None:
        most, _ = Counter(self._standing.values()).most_common(1)[0]
        oldest = next(one for one, host in self._standing.items() if host == most)
        del self._standing[oldest]
        with suppress(OSError):  # it has gone by itself
            oldest.shutdown(socket.SHUT_RDWR)
