"""An engine told to emulate a speed: each request has it, however many run, and nothing else is
slower."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gyre.cell_agent.engine.base import EngineClient, Generation
from gyre.cell_agent.engine.local.options import parse_options
from gyre.testkit.engine_server import RunningEngine, running_engine
from gyre.testkit.tiny_model import make_tiny_model

RATE = 40.0
TOKENS = 40
# Times as long as the speed says: others may have the machine for a while.
PATIENCE = 5
# From one token to the next: what comes sooner did not wait for one.
SLOW_S = 120.0


@contextmanager
def emulating(root: Path, rate: float) -> Iterator[RunningEngine]:
    model = make_tiny_model(root / "m", seed=0)
    flag = ("--emulate-decode-tokens-per-s", str(rate))
    with running_engine("local", (model, model), root / "engine.log", *flag) as server:
        yield server


async def generate(client: EngineClient, rid: str, num_tokens: int) -> tuple[Generation, float]:
    started = time.perf_counter()
    sampling = {"max_new_tokens": num_tokens, "ignore_eos": True}
    answer = await client.generate(input_ids=[5, 6, 7], sampling_params=sampling, rid=rid)
    return answer, time.perf_counter() - started


async def test_each_request_has_the_emulated_speed(tmp_path: Path) -> None:
    """One alone, and as many as would take longer than PATIENCE allows if they shared it."""
    with emulating(tmp_path, RATE) as engine:
        async with EngineClient(engine.url) as client:
            for num_requests in (1, 2 * PATIENCE):
                calls = (generate(client, f"r{i}", TOKENS) for i in range(num_requests))
                answers = await asyncio.gather(*calls)
                assert {len(answer.output_ids) for answer, _ in answers} == {TOKENS}
                assert min(seconds for _, seconds in answers) >= (TOKENS - 1) / RATE
                assert max(seconds for _, seconds in answers) <= PATIENCE * TOKENS / RATE


async def test_an_aborted_request_returns_at_once_with_what_it_has(tmp_path: Path) -> None:
    """Its first token comes with the prefill; it does not wait for the second to end."""
    with emulating(tmp_path, 1 / SLOW_S) as engine:
        async with EngineClient(engine.url) as client:
            call = asyncio.create_task(generate(client, "long", 1000))
            while (await client.loads())["num_running_reqs"] == 0:
                await asyncio.sleep(0.02)
            await client.abort("long")
            answer, seconds = await call
    assert (len(answer.output_ids), answer.finish_type) == (1, "abort")
    assert seconds < SLOW_S / 4


@pytest.mark.parametrize("speed", ["0", "-3", "inf", "nan", "fast"])
def test_a_speed_that_is_none_is_refused(speed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_options(["--model-path", "x", "--emulate-decode-tokens-per-s", speed])

    assert ended.value.code == 2
    assert "--emulate-decode-tokens-per-s" in capsys.readouterr().err
