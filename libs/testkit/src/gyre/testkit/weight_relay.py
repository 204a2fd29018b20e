"""A network between a puller of weights and the core that damages what it carries."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from gyre.cell_agent.weights.handshake import ANSWER_BYTES

Alter = Callable[[int, bytes], bytes | None]
"""(bytes of the payload that went before, the next ones) -> what is sent on; None cuts it off."""

_PIECE_BYTES = 65536


@dataclass(slots=True)
class Relay:
    """address: where pullers connect. said: what each connection's puller sent, in order. alter:
    applied to the payload behind the source's answer, on connection after connection."""

    address: tuple[str, int]
    alter: Alter
    said: list[bytes] = field(default_factory=list)


@contextmanager
def relaying(to: tuple[str, int], alter: Alter = lambda _, data: data) -> Iterator[Relay]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        relay = Relay(server.getsockname()[:2], alter)
        threads: list[threading.Thread] = []

        def accept() -> None:
            with suppress(OSError):  # the server was shut down
                while True:
                    puller, _ = server.accept()
                    threads.append(threading.Thread(target=_carry, args=(relay, puller, to)))
                    threads[-1].start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield relay
        finally:
            server.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for thread in threads:
                thread.join()


def _carry(relay: Relay, puller: socket.socket, to: tuple[str, int]) -> None:
    number = len(relay.said)
    relay.said.append(b"")
    with puller, socket.create_connection(to) as source:

        def up() -> None:
            with suppress(OSError):
                while data := puller.recv(_PIECE_BYTES):
                    relay.said[number] += data
                    source.sendall(data)
            with suppress(OSError):
                source.shutdown(socket.SHUT_RDWR)

        rising = threading.Thread(target=up)
        rising.start()
        with suppress(OSError):
            _down(relay.alter, source, puller)
        with suppress(OSError):
            puller.shutdown(socket.SHUT_RDWR)
        rising.join()


def _down(alter: Alter, source: socket.socket, puller: socket.socket) -> None:
    """Two messages, the nonce and the answer, go as they are; the payload through `alter`."""
    stream = source.makefile("rb")
    with stream:
        for _ in range(2):
            size = stream.read(4)
            puller.sendall(size + stream.read(min(ANSWER_BYTES, int.from_bytes(size, "big"))))
        carried = 0
        while data := stream.read1(_PIECE_BYTES):
            altered = alter(carried, data)
            if altered is None:
                return
            puller.sendall(altered)
            carried += len(data)
