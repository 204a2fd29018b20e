"""Throughput of the local engine over HTTP, at the quickstart's model size.

    python tests/bench/bench_engine.py    # writes out/bench/engine.json

Qwen3 of d=128, 2 layers; every prompt shares a 430-token prefix, as tool definitions make it.
Rounds of one stream and of eight alternate, since a shared machine changes from second to
second; the ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from gyre.cell_agent.engine.base import EngineClient
from gyre.testkit.benches import make_bench_model, write_report
from gyre.testkit.engine_server import running_engine

PREFIX = [10 + index % 500 for index in range(430)]
NEW_TOKENS = 200
ROUNDS = 5
STREAMS = 8
TARGET_RATIO = 3.0
PARAMS = {"max_new_tokens": NEW_TOKENS, "temperature": 1.0, "ignore_eos": True}

Call = Callable[[EngineClient, int], Awaitable[None]]


async def whole(client: EngineClient, index: int) -> None:
    """One request, answered at its end."""
    await client.generate(
        input_ids=[*PREFIX, 10 + index], sampling_params=PARAMS, rid=f"whole-{index:03d}"
    )


async def streamed(client: EngineClient, index: int) -> None:
    """One request, read event by event."""
    async for _ in client.stream(
        input_ids=[*PREFIX, 10 + index], sampling_params=PARAMS, rid=f"stream-{index:03d}"
    ):
        pass


async def one_token(client: EngineClient, index: int) -> None:
    """The shortest useful call: a cached prefix, one new token."""
    await client.generate(
        input_ids=[*PREFIX, 10 + index],
        sampling_params={**PARAMS, "max_new_tokens": 1},
        rid=f"one-{index:03d}",
    )


async def seconds(client: EngineClient, call: Call, count: int) -> float:
    began = time.perf_counter()
    await asyncio.gather(*(call(client, index) for index in range(count)))
    return time.perf_counter() - began


async def measure(url: str) -> dict[str, float]:
    async with EngineClient(url) as client:
        await whole(client, 0)
        single, batched, ratios = [], [], []
        for _ in range(ROUNDS):
            single.append(NEW_TOKENS / await seconds(client, whole, 1))
            batched.append(STREAMS * NEW_TOKENS / await seconds(client, whole, STREAMS))
            ratios.append(batched[-1] / single[-1])
        events = STREAMS * NEW_TOKENS / await seconds(client, streamed, STREAMS)
        ones = [await seconds(client, one_token, 1) for _ in range(20)]
    return {
        "tokens_per_s_1": round(statistics.median(single), 1),
        "tokens_per_s_8": round(statistics.median(batched), 1),
        "ratio_8_to_1": round(statistics.median(ratios), 2),
        "tokens_per_s_8_streamed": round(events, 1),
        "one_token_call_ms": round(1000 * statistics.median(ones), 2),
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        model = make_bench_model(root / "model")
        began = time.perf_counter()
        with running_engine("local", (model, model), root / "engine.log") as engine:
            started_s = time.perf_counter() - began
            figures = asyncio.run(measure(engine.url))
    figures["start_s"] = round(started_s, 2)
    ok = figures["ratio_8_to_1"] > TARGET_RATIO
    write_report("engine", figures, {"ratio_8_to_1": TARGET_RATIO}, ok=ok)


if __name__ == "__main__":
    main()
