"""A source or sink by the name of its transport, and a pull that is made again where that helps."""

from __future__ import annotations

from typing import assert_never

from gyre.adapters.logging import get_logger
from gyre.cell_agent.own_address import address_towards
from gyre.cell_agent.weights.addresses import check_host
from gyre.cell_agent.weights.base import Pulled, Transport, WeightSink, WeightSource
from gyre.cell_agent.weights.errors import NobodyServes, WeightTransportError
from gyre.cell_agent.weights.memory import Memory, own_memory
from gyre.cell_agent.weights.tcp import TcpWeightSink, TcpWeightSource

# A connection that breaks or a byte that flips is rare; three in a row are no accident.
ATTEMPTS = 3


def open_source(
    transport: Transport, host: str, port: int = 0, *, key: str, allow_public: bool = False
) -> WeightSource:
    """Listens on host. Raises WeightTransportError."""
    try:
        check_host(host, allow_public=allow_public)
        match transport:
            case "tcp":
                return TcpWeightSource(host, port, key=key)
            case "mooncake":
                from gyre.cell_agent.weights.mooncake import MooncakeWeightSource

                return MooncakeWeightSource(host, port, key=key, allow_public=allow_public)
            case "nccl":
                from gyre.cell_agent.weights.nccl import NcclWeightSource

                return NcclWeightSource(host, port, key=key, allow_public=allow_public)
            case _:
                assert_never(transport)
    except OSError as error:
        raise NobodyServes(f"{host}:{port}: {error}") from error


def open_sink(
    transport: Transport, host: str, *, key: str, allow_public: bool = False
) -> WeightSink:
    """host: of the source. Raises WeightTransportError."""
    match transport:
        case "tcp":
            return TcpWeightSink(key=key)
        case "mooncake":
            from gyre.cell_agent.weights.mooncake import MooncakeWeightSink

            try:
                own = address_towards(host)
            except OSError as error:
                raise NobodyServes(f"{host}: {error}") from error
            return MooncakeWeightSink(own, key=key, allow_public=allow_public)
        case "nccl":
            from gyre.cell_agent.weights.nccl import NcclWeightSink

            return NcclWeightSink(key=key, allow_public=allow_public)
        case _:
            assert_never(transport)


def pull(
    sink: WeightSink,
    host: str,
    port: int,
    *,
    version: int,
    lineage: int,
    memory: Memory = own_memory,
) -> Pulled:
    """Up to ATTEMPTS times where that may help. Raises WeightTransportError, the last one."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return sink.pull(host, port, version=version, lineage=lineage, memory=memory)
        except WeightTransportError as error:
            if not error.again or attempt == ATTEMPTS:
                raise
            get_logger().warning(
                "weights_pulled_again", reason=f"{type(error).__name__}: {error}", attempt=attempt
            )
    raise AssertionError("unreachable: the last attempt returns or raises")
