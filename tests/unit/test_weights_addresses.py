"""Weights are not served where anybody may connect, unless the job says so."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

import pytest

from gyre.cell_agent.engine.tensors import SINGLE_FILE
from gyre.cell_agent.weights import addresses
from gyre.cell_agent.weights.addresses import check_host, check_interfaces, own_addresses
from gyre.cell_agent.weights.courier import Courier, WeightsNotServable
from gyre.cell_agent.weights.errors import NobodyServes, PublicAddress
from gyre.cell_agent.weights.transports import open_source


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "::1", "10.1.2.3", "172.16.0.9", "192.168.1.1", "fd00::1", "169.254.3.4"]
)
def test_a_private_address_may_serve_weights(host: str) -> None:
    check_host(host, allow_public=False)


@pytest.mark.parametrize("host", ["8.8.8.8", "2001:4860:4860::8888"])
def test_a_public_address_is_refused_with_the_way_out(host: str) -> None:
    with pytest.raises(PublicAddress, match=f"{host} is a public address.*weights.allow_public"):
        check_host(host, allow_public=False)
    check_host(host, allow_public=True)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_every_interface_is_no_private_address(host: str) -> None:
    with pytest.raises(PublicAddress, match=r"every interface.*GYRE_CELL_HOST"):
        open_source("tcp", host, key="k")


def test_an_address_of_another_machine_serves_nothing() -> None:
    with pytest.raises(NobodyServes, match=r"192\.0\.2\.1"):
        open_source("tcp", "192.0.2.1", key="k")


def test_this_machine_is_known_by_its_addresses() -> None:
    assert ip_address("127.0.0.1") in own_addresses()


def test_a_transport_that_listens_everywhere_looks_at_every_interface(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(addresses, "own_addresses", lambda: {ip_address("10.0.0.1")})
    check_interfaces("mooncake", allow_public=False)
    both = {ip_address("10.0.0.1"), ip_address("8.8.4.4")}
    monkeypatch.setattr(addresses, "own_addresses", lambda: both)
    with pytest.raises(PublicAddress, match=r"8\.8\.4\.4 is a public one"):
        check_interfaces("mooncake", allow_public=False)
    check_interfaces("mooncake", allow_public=True)


def test_a_machine_whose_addresses_are_not_known_counts_as_public(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(addresses, "_ROUTES", tmp_path / "fib_trie")
    with pytest.raises(PublicAddress, match=r"not known .*fib_trie.*weights\.transport: tcp"):
        check_interfaces("mooncake", allow_public=False)


def test_a_machine_without_ipv6_is_known_by_its_other_addresses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(addresses, "_INET6", tmp_path / "if_inet6")
    assert {found.version for found in own_addresses()} == {4}


def test_a_public_address_is_said_as_an_error_not_asked_for_again(tmp_path: Path) -> None:
    (tmp_path / SINGLE_FILE).write_bytes(b"weights")
    with pytest.raises(WeightsNotServable, match="every interface"):
        Courier("secret", "0.0.0.0").offer("j", str(tmp_path), (1, 2), allow_public=False)
