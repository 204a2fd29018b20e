"""An engine told to emulate a speed: each request has it, however many run, and nothing else is
slower."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from gyre.cell_agent.engine.base import EngineClient, Generation
from gyre.cell_agent.engine.local.options import parse_options
from gyre.testkit.engine_server import RunningEngine, running_engine
from gyre.testkit.tiny_model import make_tiny_model

RATE = 40.0
TOKENS = 40
# The emulated speed is below the machine's, but for a while others may have the machine: one try
# that is in time shows what the engine can do.
TRIES = 10


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    root = tmp_path_factory.mktemp("engine")
    model = make_tiny_model(root / "m", seed=0)
    flag = ("--emulate-decode-tokens-per-s", str(RATE))
    with running_engine("local", (model, model), root / "engine.log", *flag) as server:
        yield server


async def generate(client: EngineClient, rid: str, num_tokens: int) -> tuple[Generation, float]:
    started = time.perf_counter()
    sampling = {"max_new_tokens": num_tokens, "ignore_eos": True}
    answer = await client.generate(input_ids=[5, 6, 7], sampling_params=sampling, rid=rid)
    return answer, time.perf_counter() - started


def one_takes(limit_s: float, once: Callable[[], Coroutine[Any, Any, float]]) -> bool:
    """Whether one of TRIES is done within limit_s seconds, which `once` returns."""
    return any(asyncio.run(once()) <= limit_s for _ in range(TRIES))


@pytest.mark.parametrize("num_requests", [1, 8])
def test_each_request_has_the_emulated_speed(emulated: RunningEngine, num_requests: int) -> None:
    async def longest() -> float:
        async with EngineClient(emulated.url) as client:
            calls = (generate(client, f"r{i}", TOKENS) for i in range(num_requests))
            answers = await asyncio.gather(*calls)
        assert {len(answer.output_ids) for answer, _ in answers} == {TOKENS}
        assert min(seconds for _, seconds in answers) >= (TOKENS - 1) / RATE
        return max(seconds for _, seconds in answers)

    assert one_takes(1.1 * TOKENS / RATE, longest)


def test_an_aborted_request_returns_at_once_with_what_it_has(emulated: RunningEngine) -> None:
    async def aborted() -> float:
        async with EngineClient(emulated.url) as client:
            call = asyncio.create_task(generate(client, "long", 1000))
            while await client.num_requests() == 0:
                await asyncio.sleep(0.02)
            await asyncio.sleep(10 / RATE)
            started = time.perf_counter()
            await client.abort("long")
            answer, _ = await call
            spent = time.perf_counter() - started
        assert 0 < len(answer.output_ids) < 1000
        return spent

    assert one_takes(2 / RATE, aborted)


@pytest.mark.parametrize("speed", ["0", "-3", "inf", "nan", "fast"])
def test_a_speed_that_is_none_is_refused(speed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(["--model-path", "x", "--emulate-decode-tokens-per-s", speed])

    assert ended.value.code == 2
    assert "--emulate-decode-tokens-per-s" in capsys.readouterr().err
