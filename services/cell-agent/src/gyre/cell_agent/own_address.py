"""Which of a machine's addresses others on a network know it by."""

from __future__ import annotations

import socket


def address_towards(host: str) -> str:
    """This machine's address on the network that leads there; no packet is sent. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
