"""Prefixes of calls that have ended, copied between two processes of `local`: announced, pinned by
their tokens, copied, released; and how long a cell waits for them."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from gyre.cell_agent.engine.base import EngineClient
from gyre.cell_agent.engine_turn import PIN_S
from gyre.testkit.engine_server import running_engine
from gyre.testkit.engine_use import drain
from gyre.testkit.migration_world import (
    PROMPT,
    SAMPLING,
    continued,
    destination,
    models,
    pair,
    post,
    pull,
    source,
)

__all__ = ["destination", "models", "pair", "source"]

# Of the pair, which all tests share.
NUMBERS = itertools.count(1)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that waits in vain waits for as long as it may, so that it shows."""
    monkeypatch.setattr("gyre.cell_agent.engine_turn.ANNOUNCE_S", PIN_S)


@pytest.fixture
def switch() -> int:
    """The sequence of a decision that is newer than those of the tests before."""
    return next(NUMBERS)


async def ended(client: EngineClient, rid: str) -> list[int]:
    """Context and output of a call of PROMPT that is over."""
    return [*PROMPT, *(await continued(client, PROMPT, rid)).output_ids]


async def announced(
    client: EngineClient, switch: int, *rids: str, num: int | None = None, pin_s: float = 20.0
) -> None:
    body: dict[str, Any] = {"switch": switch, "rids": list(rids), "pin_s": pin_s}
    num = len(rids) if num is None else num
    response = await post(client, "/announce_pins", **body, num_executions=num)
    assert response.status_code == 200, response.text


async def pinned(client: EngineClient, rid: str, tokens: list[int], pin_s: float = 20.0) -> int:
    """How many of `tokens` are."""
    response = await post(client, "/pin_cache", rid=rid, input_ids=tokens, pin_s=pin_s)
    assert response.status_code == 200, response.text
    return int(response.json()["pinned_tokens"])


async def test_the_prefix_of_an_ended_call_goes_along(
    source: EngineClient, destination: EngineClient, switch: int
) -> None:
    tokens = await ended(source, "idle-00")
    told = await continued(source, tokens, "idle-01")
    await announced(source, switch, "pin-00")
    await source.pause("in_place")
    assert await pinned(source, "pin-00", tokens) == len(tokens)
    answer = await pull(destination, source, "pin-00", tokens)
    assert answer["copied_tokens"] == answer["cached_tokens"] == len(tokens) - 1
    answered = await continued(destination, tokens, "idle-02")
    assert answered.cached_tokens >= 0.9 * (len(tokens) - 1)
    assert answered.output_ids == told.output_ids
    assert answered.logprobs == pytest.approx(told.logprobs, abs=1e-3)


async def test_what_is_announced_counts_as_a_pin_until_it_is_one_or_released(
    source: EngineClient, switch: int
) -> None:
    tokens = await ended(source, "count-00")
    await announced(source, switch, "a", "b", "c", num=5)
    assert await source.num_pins() == 3
    assert await source.num_announced(switch) == 5
    assert await source.num_announced(switch + 1) == 0
    assert await pinned(source, "a", tokens) == len(tokens) - 1
    assert await source.num_pins() == 3
    assert await pinned(source, "b", [5, 6, 7]) == 0
    await post(source, "/unpin_cache", rid="c")
    assert await source.num_pins() == 1
    await announced(source, switch, num=2)
    assert await source.num_announced(switch) == 7
    await post(source, "/unpin_cache", rid="a")
    assert await source.num_pins() == 0


async def test_an_announcement_that_nobody_follows_up_expires(
    source: EngineClient, switch: int
) -> None:
    await announced(source, switch, "late", pin_s=1.0)
    assert await source.num_pins() == 1
    async with asyncio.timeout(5.0):
        while await source.num_pins():
            await asyncio.sleep(0.02)


async def test_a_drain_waits_for_what_is_announced_to_be_copied(
    source: EngineClient, destination: EngineClient, switch: int
) -> None:
    tokens = await ended(source, "drain-00")
    began = time.monotonic()
    draining = asyncio.create_task(drain(source, 20.0, switch=switch, num_moved=2))
    await announced(source, switch, "d", num=2)
    await pinned(source, "d", tokens)
    answer = await pull(destination, source, "d", tokens)
    assert answer["success"], answer
    assert not draining.done()
    await post(source, "/unpin_cache", rid="d")
    await draining
    assert time.monotonic() - began < PIN_S - 1
    assert (await continued(destination, tokens, "drain-01")).cached_tokens == len(tokens) - 1


async def test_a_drain_waits_for_an_announcement_only_where_executions_move(
    source: EngineClient, switch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gyre.cell_agent.engine_turn.ANNOUNCE_S", 0.5)
    for num_moved, at_least in ((0, 0.0), (3, 0.5)):
        began = time.monotonic()
        await drain(source, 20.0, switch=switch, num_moved=num_moved)
        assert at_least <= time.monotonic() - began < at_least + 2.0
        await source.resume_memory()
        await source.resume()


async def test_an_engine_that_cannot_pin_is_not_waited_for(
    models: tuple[Path, Path], tmp_path: Path, switch: int
) -> None:
    with running_engine("local", models, tmp_path / "plain.log", migration_key="") as plain:
        async with EngineClient(plain.url) as client:
            assert await client.num_announced(switch) is None
            began = time.monotonic()
            await drain(client, 20.0, switch=switch, num_moved=3)
            assert time.monotonic() - began < PIN_S - 1


async def test_a_pinned_prefix_outlives_what_fills_the_cache(source: EngineClient) -> None:
    tokens = await ended(source, "full-00")
    await pinned(source, "kept", tokens)
    capacity = (await source.loads())["max_total_num_tokens"]
    for number in range(capacity // len(PROMPT) + 1):
        other = [20 + number, *PROMPT[1:]]
        await source.generate(
            input_ids=other, sampling_params=SAMPLING | {"max_new_tokens": 1}, rid=f"f{number:04d}"
        )
    assert (await continued(source, tokens, "full-01")).cached_tokens == len(tokens) - 1
