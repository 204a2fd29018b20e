"""Weights by Mooncake's transfer engine: the puller reads the core's memory by itself.

Who may read, what, and the digests are asked for over `tcp`'s authenticated connection, which stays
open as long as the puller reads: until then the buffer is not written again. The engine itself
listens on every interface and asks nobody for a key (docs/security.md); it says what failed by a
number alone, and may have written part of what was to be read: hence the digests.

RDMA where the kernel knows a device, else TCP. **RDMA was never tried.**
"""

from __future__ import annotations

import ctypes
import json
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from gyre.cell_agent.weights.addresses import check_interfaces
from gyre.cell_agent.weights.base import Pulled, Transport
from gyre.cell_agent.weights.errors import CutOff, Damaged, TransportMissing
from gyre.cell_agent.weights.manifest import Manifest, Verifier
from gyre.cell_agent.weights.memory import Memory, own_memory
from gyre.cell_agent.weights.opening import STALL_TIMEOUT_S, Opening
from gyre.cell_agent.weights.shelf import Buffer, Shelf
from gyre.cell_agent.weights.tcp import Answer, TcpWeightSource, until_closed

# One call of the engine's: long enough that its cost does not show, short enough that the first
# chunks are verified while the next are read.
READ_BYTES = 32 * 1024 * 1024
LIBRARIES = ("libnl-3.so.200", "libnl-route-3.so.200", "libibverbs.so.1")
"""What the package is linked to and does not bring, each after those that it needs."""

_RDMA_DEVICES = Path("/sys/class/infiniband")


class MooncakeEngine:
    """One transfer engine of this process. Raises TransportMissing, PublicAddress."""

    def __init__(self, host: str, *, allow_public: bool) -> None:
        check_interfaces("mooncake", allow_public=allow_public)
        self._engine = _import()()
        protocol = "rdma" if _RDMA_DEVICES.is_dir() and any(_RDMA_DEVICES.iterdir()) else "tcp"
        code = self._engine.initialize(host, "P2PHANDSHAKE", protocol, "")
        if code != 0:
            raise TransportMissing(f"mooncake: initialize({host}, {protocol}) gave {code}")
        self.session = f"{host}:{self._engine.get_rpc_port()}"

    def register(self, memory: memoryview) -> int:
        """Its address, readable by peers from now on and writable by our own reads."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        code = self._engine.register_memory(address, len(memory))
        if code != 0:
            raise TransportMissing(f"mooncake: register_memory of {len(memory)} bytes gave {code}")
        return address

    def unregister(self, address: int) -> None:
        self._engine.unregister_memory(address)

    @contextmanager
    def registered(self, memory: memoryview) -> Iterator[int]:
        address = self.register(memory)
        try:
            yield address
        finally:
            self.unregister(address)

    def read(self, session: str, into: int, source: int, size: int) -> None:
        """Raises CutOff: the peer is gone, or has no such memory."""
        code = self._engine.transfer_sync_read(session, into, source, size)
        if code != 0:
            raise CutOff(f"mooncake: a read of {size} bytes from {session} gave {code}")


class MooncakeWeightSource(TcpWeightSource):
    """Its buffers are registered once and written again and again."""

    transport: ClassVar[Transport] = "mooncake"

    def __init__(
        self,
        host: str,
        port: int = 0,
        *,
        key: str,
        allow_public: bool = False,
        stall_timeout_s: float = STALL_TIMEOUT_S,
    ) -> None:
        self._engine = MooncakeEngine(host, allow_public=allow_public)
        self._addresses: dict[int, int] = {}
        super().__init__(
            host,
            port,
            key=key,
            shelf=Shelf(added=self._register, dropped=self._unregister),
            hand_over=self._hand_over,
            stall_timeout_s=stall_timeout_s,
        )

    @property
    def session(self) -> str:
        return self._engine.session

    def _register(self, buffer: Buffer) -> None:
        self._addresses[id(buffer)] = self._engine.register(buffer.view)

    def _unregister(self, buffer: Buffer) -> None:
        self._engine.unregister(self._addresses.pop(id(buffer)))

    def place(self, buffer: Buffer) -> dict[str, Any]:
        """What a sink reads it by."""
        return {"session": self._engine.session, "address": self._addresses[id(buffer)]}

    def _hand_over(self, buffer: Buffer, connection: socket.socket, answer: Answer) -> None:
        answer(self.place(buffer))
        until_closed(connection)


class MooncakeWeightSink:
    """host: this side's own address. key: the job's."""

    transport: ClassVar[Transport] = "mooncake"

    def __init__(
        self,
        host: str,
        *,
        key: str,
        allow_public: bool = False,
        stall_timeout_s: float = STALL_TIMEOUT_S,
    ) -> None:
        self._engine = MooncakeEngine(host, allow_public=allow_public)
        self._opening = Opening(transport=self.transport, key=key, stall_timeout_s=stall_timeout_s)

    def pull(
        self, host: str, port: int, *, version: int, lineage: int, memory: Memory = own_memory
    ) -> Pulled:
        """Raises WeightTransportError."""
        with self._opening.of(
            host, port, version=version, lineage=lineage, memory=memory
        ) as opened:
            session, address = _place(opened.answer)
            self._read(opened.pulled.manifest, opened.pulled.payload, session, address)
            return opened.pulled

    def _read(self, manifest: Manifest, payload: memoryview, session: str, address: int) -> None:
        with self._engine.registered(payload) as own, Verifier(manifest, payload) as verifier:
            for start in range(0, manifest.num_bytes, READ_BYTES):
                size = min(READ_BYTES, manifest.num_bytes - start)
                self._engine.read(session, own + start, address + start, size)
                verifier.arrived(start + size)
            verifier.finish()


def _place(answer: dict[str, Any]) -> tuple[str, int]:
    try:
        place = answer["place"]
        return str(place["session"]), int(place["address"])
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"the answer says no place to read from: {error!r}") from error


def _import() -> Any:
    """The class `TransferEngine`. Raises TransportMissing."""
    try:
        _load_libraries()
        from mooncake.engine import TransferEngine
    except (ImportError, OSError) as error:
        raise TransportMissing(
            f"weights.transport: mooncake needs mooncake-transfer-engine and libibverbs1 on every "
            f"cell ({error}); install them, or set weights.transport: tcp"
        ) from error
    return TransferEngine


def _load_libraries() -> None:
    """The system's, else those that set-up has put beside this environment. Raises OSError."""
    try:
        ctypes.CDLL(LIBRARIES[-1], mode=ctypes.RTLD_GLOBAL)
    except OSError:
        known = Path(sys.prefix) / "gyre-env.json"
        directory = json.loads(known.read_text()).get("rdma_libraries") if known.exists() else None
        if directory is None:
            raise
        for library in LIBRARIES:
            ctypes.CDLL(f"{directory}/{library}", mode=ctypes.RTLD_GLOBAL)
