"""What is the `nccl` transport's own: who does not come, is gone or says nothing costs nobody else
his pull, and it is served nowhere but where it was told to. Gloo stands in NCCL's place."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from ipaddress import ip_address

import pytest
import torch

from gyre.cell_agent.weights import addresses
from gyre.cell_agent.weights.errors import CutOff, PublicAddress, TransportMissing
from gyre.cell_agent.weights.memory import own_memory
from gyre.cell_agent.weights.nccl import PULLS_AT_ONCE, NcclWeightSink, NcclWeightSource
from gyre.cell_agent.weights.opening import Opened, Opening
from gyre.cell_agent.weights.pair import Pair
from gyre.cell_agent.weights.transports import open_sink, open_source

KEY, HOST = "of the job", "127.0.0.1"
PAYLOAD = bytes(range(256)) * 64
# Far below the time-out of a silent peer.
AT_ONCE_S = 10.0


@pytest.fixture
def source() -> Iterator[NcclWeightSource]:
    opened = exposed(NcclWeightSource(HOST, key=KEY, allow_public=True))
    yield opened
    opened.close()


def exposed(source: NcclWeightSource) -> NcclWeightSource:
    buffer = source.buffer(len(PAYLOAD))
    buffer.view[:] = PAYLOAD
    source.expose(buffer, version=1, lineage=2)
    return source


def pulled(source: NcclWeightSource, sink: NcclWeightSink | None = None) -> bytes:
    sink = sink or NcclWeightSink(key=KEY, allow_public=True)
    return bytes(sink.pull(*source.address, version=1, lineage=2).payload)


def asked(source: NcclWeightSource) -> AbstractContextManager[Opened]:
    """A puller that has the answer, and has not come yet."""
    opening = Opening(transport="nccl", key=KEY)
    return opening.of(*source.address, version=1, lineage=2, memory=own_memory)


def test_pullers_that_do_not_come_are_missed_when_their_connection_ends(
    source: NcclWeightSource,
) -> None:
    for _ in range(PULLS_AT_ONCE):
        with asked(source):
            pass
    began = time.monotonic()
    assert pulled(source) == PAYLOAD
    assert time.monotonic() - began < AT_ONCE_S


def test_pullers_that_keep_their_connection_and_do_not_come_lose_their_turn() -> None:
    source = exposed(NcclWeightSource(HOST, key=KEY, allow_public=True, stall_timeout_s=0.5))
    with ExitStack() as held:
        for _ in range(PULLS_AT_ONCE):
            held.enter_context(asked(source))
        began = time.monotonic()
        assert pulled(source) == PAYLOAD
        assert time.monotonic() - began < AT_ONCE_S
    source.close()


def test_more_pullers_than_there_are_turns_all_get_theirs(source: NcclWeightSource) -> None:
    number = 2 * PULLS_AT_ONCE
    with ThreadPoolExecutor(number) as pullers:
        found = list(pullers.map(pulled, [source] * number))
    assert found == [PAYLOAD] * number


def test_a_source_that_sends_nothing_is_given_up(
    source: NcclWeightSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()

    def silent(pair: Pair, stage: torch.Tensor, piece: memoryview, start: int) -> None:
        ended.wait()

    monkeypatch.setattr(Pair, "load", silent)
    sink = NcclWeightSink(key=KEY, allow_public=True, stall_timeout_s=0.5)
    with pytest.raises(CutOff):
        pulled(source, sink)
    ended.set()


def test_a_cell_on_another_kind_of_device_says_so_and_does_not_come(
    source: NcclWeightSource,
) -> None:
    sink = NcclWeightSink(key=KEY, allow_public=True, device=torch.device("cuda", 0))
    with pytest.raises(TransportMissing, match="the core trains on cpu, this cell on cuda; set"):
        pulled(source, sink)
    assert pulled(source) == PAYLOAD


def test_the_two_meet_at_the_sources_address_alone(source: NcclWeightSource) -> None:
    with asked(source) as opened:
        port = opened.answer["place"]["port"]
        socket.create_connection((HOST, port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port))


def test_a_machine_with_a_public_address_neither_serves_nor_pulls_unless_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(addresses, "own_addresses", lambda: {ip_address("8.8.4.4")})
    with pytest.raises(PublicAddress, match=r"nccl may listen .* 8\.8\.4\.4 is a public one"):
        open_source("nccl", HOST, key=KEY)
    with pytest.raises(PublicAddress):
        open_sink("nccl", HOST, key=KEY)
    open_source("nccl", HOST, key=KEY, allow_public=True).close()
