"""Where weights and engines may be served: not where anybody connects, unless the job says so."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

from gyre.cell_agent.weights.errors import PublicAddress

_INET6 = Path("/proc/net/if_inet6")
_ROUTES = Path("/proc/net/fib_trie")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def check_host(host: str, *, allow_public: bool) -> None:
    """Of one address to listen on. Raises PublicAddress, OSError for a name that nobody knows."""
    if allow_public:
        return
    for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM):
        address = ipaddress.ip_address(str(found[4][0]).partition("%")[0])
        if address.is_unspecified:
            raise PublicAddress(
                f"{host} is every interface of this machine: name one address in GYRE_CELL_HOST, "
                "or set weights.allow_public"
            )
        if _is_public(address):
            raise PublicAddress(
                f"{host} is a public address: serve weights and engines on a private one "
                "(GYRE_CELL_HOST), or set weights.allow_public"
            )


def check_interfaces(transport: str, *, allow_public: bool) -> None:
    """Of one that listens where it likes, whatever it is told. Raises PublicAddress."""
    if allow_public:
        return
    try:
        found = own_addresses()
    except OSError as error:
        raise PublicAddress(
            f"{transport} may listen on every interface, and this machine's are not known "
            f"({error}): use weights.transport: tcp, or set weights.allow_public"
        ) from error
    for address in found:
        if _is_public(address):
            raise PublicAddress(
                f"{transport} may listen on every interface, and {address} is a public one: use "
                "weights.transport: tcp, or set weights.allow_public"
            )


def own_addresses() -> set[Address]:
    """This machine's, as the kernel lists them. Raises OSError: it does not."""
    # Without IPv6 there is no list of its addresses; without the other nothing is known.
    interfaces = _text(_INET6) if _INET6.exists() else ""
    return _ipv4(_text(_ROUTES)) | _ipv6(interfaces)


def _ipv4(routes: str) -> set[Address]:
    """An address of a machine's own is a leaf of its routing table that is followed by
    `/32 host LOCAL`."""
    found: set[Address] = set()
    leaf = ""
    for line in routes.splitlines():
        words = line.split()
        if words[:1] == ["|--"] and len(words) == 2:
            leaf = words[1]
        elif words[:3] == ["/32", "host", "LOCAL"]:
            found.add(ipaddress.IPv4Address(leaf))
    return found


def _ipv6(interfaces: str) -> set[Address]:
    return {
        ipaddress.IPv6Address(bytes.fromhex(line.split()[0]))
        for line in interfaces.splitlines()
        if line
    }


def _is_public(address: Address) -> bool:
    return address.is_global


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii")
