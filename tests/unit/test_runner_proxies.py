"""Which proxy an execution belongs to: rendezvous hashing, and what the setting may say."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from gyre.runner.proxies import Proxies
from gyre.runner.relay import addresses, endpoint, preference

PROXIES = [f"http://proxy-{index}:7410" for index in range(4)]
EXECUTIONS = [f"job-g{group:04d}-e{index}" for group in range(500) for index in range(8)]
SHARE = len(EXECUTIONS) / len(PROXIES)
# Four standard deviations of a fair draw.
SPREAD = 4 * (len(EXECUTIONS) * 0.25 * 0.75) ** 0.5


def firsts(proxies: list[str]) -> dict[str, str]:
    return {execution: preference(execution, proxies)[0] for execution in EXECUTIONS}


def test_executions_spread_evenly() -> None:
    counts = Counter(firsts(PROXIES).values())
    assert set(counts) == set(PROXIES)
    assert all(abs(count - SHARE) < SPREAD for count in counts.values())


def test_the_loss_of_a_proxy_moves_its_executions_alone_and_to_all_the_others() -> None:
    lost, *left = PROXIES
    before, after = firsts(PROXIES), firsts(left)
    moved = {execution for execution in EXECUTIONS if before[execution] != after[execution]}
    assert moved == {execution for execution, proxy in before.items() if proxy == lost}
    counts = Counter(after[execution] for execution in moved)
    assert set(counts) == set(left)
    assert all(abs(count - len(moved) / 3) < SPREAD for count in counts.values())


def test_a_further_proxy_takes_its_share_and_moves_nothing_else() -> None:
    added = "http://proxy-4:7410"
    before, after = firsts(PROXIES), firsts([*PROXIES, added])
    moved = [execution for execution in EXECUTIONS if before[execution] != after[execution]]
    assert {after[execution] for execution in moved} == {added}
    assert abs(len(moved) - len(EXECUTIONS) / 5) < SPREAD


def test_whoever_is_next_is_who_would_be_first_without_those_before() -> None:
    for execution in EXECUTIONS[:100]:
        order = preference(execution, PROXIES)
        assert sorted(order) == PROXIES
        for index in range(1, len(order)):
            assert preference(execution, order[index:]) == order[index:]


def test_the_order_does_not_depend_on_how_they_are_listed() -> None:
    assert firsts(PROXIES) == firsts(PROXIES[::-1])


def test_the_order_is_the_same_in_every_process_and_release() -> None:
    assert [proxy[13] for proxy in preference("job-g0000-e0", PROXIES)] == ["2", "3", "0", "1"]


async def test_one_proxy_has_no_door(tmp_path: Path) -> None:
    proxies = Proxies.parse("http://127.0.0.1:7410")
    assert not proxies.have_doors
    assert await proxies.of("e") == ["http://127.0.0.1:7410"]
    with proxies.door("e", tmp_path / "proxy") as door:
        assert door is None


@pytest.mark.parametrize("text", [",".join(PROXIES), f" {PROXIES[0]} , {PROXIES[1]},"])
async def test_several_proxies_have_doors(text: str, tmp_path: Path) -> None:
    proxies = Proxies.parse(text)
    assert proxies.have_doors
    assert await proxies.of("e") == preference("e", proxies.urls)
    with proxies.door("e", tmp_path / "proxy") as door, proxies.door("f", tmp_path) as other:
        assert door is not None
        assert other is not None
        assert door.url.startswith("http://127.0.0.1:")
        assert door.url != other.url


@pytest.mark.parametrize(
    "text",
    [
        "",
        " , ",
        "http://a:1,b:2",
        "http://a:1,https://b:2",
        "http://a:1,http://b:2/v1",
        "http://a:1,http://user@b:2",
        "http://a:1,http://b:99999",
        "dns+https://a:1",
    ],
)
def test_what_is_no_proxy_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no proxy|is not http|[Pp]ort"):
        Proxies.parse(text)


def test_a_name_stands_for_each_of_its_addresses() -> None:
    by_name = Proxies.parse("dns+http://localhost:7410")
    assert by_name.have_doors
    assert addresses(by_name.urls) == ["http://127.0.0.1:7410"]
    assert addresses(["http://a:1", "dns+http://127.0.0.1:7410"]) == [
        "http://a:1",
        "http://127.0.0.1:7410",
    ]
    assert addresses(["dns+http://[::1]:7410"]) == ["http://[::1]:7410"]
    assert addresses(["dns+http://no..name:7410"]) == []


def test_an_endpoint_is_host_and_port() -> None:
    assert endpoint("dns+http://proxy:7410") == ("proxy", 7410)
    assert endpoint("http://[::1]:7410/") == ("::1", 7410)
    assert endpoint("http://proxy") == ("proxy", 80)
