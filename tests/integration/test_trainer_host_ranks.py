"""Weights come to a cell once for each of its hosts, and to all of its ranks or to none."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from gyre.cell_agent.weights.tcp import TcpWeightSource
from gyre.testkit.host_rank import pulled
from gyre.testkit.weight_relay import Relay, relaying

KEY = "of the job"
CONTENT = hashlib.sha256(b"weights").digest() * 300_000


@pytest.fixture
def relay() -> Iterator[Relay]:
    """Before a source; `said` has an entry for each connection."""
    source = TcpWeightSource("127.0.0.1", key=KEY)
    buffer = source.buffer(len(CONTENT))
    buffer.view[:] = CONTENT
    source.expose(buffer, version=1, lineage=0)
    with relaying(source.address) as carrying:
        yield carrying
    source.close()


def test_each_host_pulls_once_and_all_its_ranks_have_the_bytes(relay: Relay) -> None:
    found = pulled(relay.address, hosts=["a", "b", "a", "b"], keys=[KEY] * 4)
    assert found == [hashlib.sha256(CONTENT).hexdigest()] * 4
    assert len(relay.said) == 2


def test_what_one_host_cannot_have_no_rank_of_the_cell_takes(relay: Relay) -> None:
    found = pulled(relay.address, hosts=["a", "a", "b"], keys=[KEY, KEY, "of another job"])
    assert found == ["NotTheJob"] * 3
