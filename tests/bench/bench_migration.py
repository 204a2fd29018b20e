"""A cached prefix copied between two engine processes, against prefilling it again.

    python tests/bench/bench_migration.py    # writes out/bench/migration.json

For contexts of 512, 2,048 and 8,192 tokens, on loopback: a call is cut at the source after some
tokens and goes on at the destination, once with the copy (copy, release, first new token) and once
without (first new token). Rounds alternate, since a shared machine changes from second to second;
figures are medians. `hit_share` is the cached part of what could be, by the destination's count.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from gyre.cell_agent.engine.base import EngineClient
from gyre.testkit.benches import make_bench_model, write_report
from gyre.testkit.engine_server import running_engine

KEY = "bench" * 8
CONTEXTS = (512, 2048, 8192)
CONTEXT_LENGTH = 9216
ROUNDS = 5
SAMPLED = 16
TARGET_HIT_SHARE = 0.9
ONE_TOKEN = {"temperature": 1.0, "max_new_tokens": 1, "ignore_eos": True}
LONG = {"temperature": 1.0, "max_new_tokens": 512, "ignore_eos": True}


@dataclass(slots=True, kw_only=True)
class Rounds:
    """Of one context length. Seconds; num_bytes of each copy."""

    migrated_s: list[float] = field(default_factory=list)
    copy_s: list[float] = field(default_factory=list)
    prefilled_s: list[float] = field(default_factory=list)
    hit_share: list[float] = field(default_factory=list)
    num_bytes: list[int] = field(default_factory=list)


async def cut(source: EngineClient, prompt: list[int], rid: str) -> list[int]:
    """Context and tokens of a call that was aborted and pinned after SAMPLED tokens."""
    tokens: list[int] = []
    aborted = False
    async for answer in source.stream(input_ids=prompt, sampling_params=LONG, rid=rid):
        tokens = [*prompt, *answer.output_ids]
        if not aborted and len(answer.output_ids) >= SAMPLED:
            aborted = True
            await source.abort(rid, pin_s=30.0)
    return tokens


async def ask(http: httpx.AsyncClient, url: str, **body: Any) -> dict[str, Any]:
    response = await http.post(url, json=body, headers={"Authorization": f"Bearer {KEY}"})
    response.raise_for_status()
    answer: dict[str, Any] = response.json()
    return answer


async def one_round(
    source: EngineClient, destination: EngineClient, size: int, index: int, rounds: Rounds
) -> None:
    prompt = [10 + (7 * position + 31 * index) % 500 for position in range(size)]
    rid = f"round-{size:05d}-{index:02d}"
    tokens = await cut(source, prompt, rid)
    async with httpx.AsyncClient(timeout=60.0) as http:
        began = time.perf_counter()
        await destination.generate(input_ids=tokens, sampling_params=ONE_TOKEN, rid=f"{rid}-p")
        rounds.prefilled_s.append(time.perf_counter() - began)
        await destination.flush_cache()
        began = time.perf_counter()
        told = await ask(
            http,
            f"{destination.base_url}/pull_cache",
            source=source.base_url,
            rid=rid,
            input_ids=tokens,
            deadline_s=30.0,
        )
        await ask(http, f"{source.base_url}/unpin_cache", rid=rid)
        rounds.copy_s.append(time.perf_counter() - began)
        answer = await destination.generate(
            input_ids=tokens, sampling_params=ONE_TOKEN, rid=f"{rid}-m"
        )
        rounds.migrated_s.append(time.perf_counter() - began)
    rounds.hit_share.append(answer.cached_tokens / (len(tokens) - 1))
    rounds.num_bytes.append(told["copied_bytes"])
    await source.flush_cache()
    await destination.flush_cache()


async def measure(source_url: str, destination_url: str) -> dict[str, float]:
    figures: dict[str, float] = {}
    async with EngineClient(source_url) as source, EngineClient(destination_url) as destination:
        for size in CONTEXTS:
            rounds = Rounds()
            await one_round(source, destination, size, ROUNDS, Rounds())  # warms both up
            for index in range(ROUNDS):
                await one_round(source, destination, size, index, rounds)
            migrated = statistics.median(rounds.migrated_s)
            prefilled = statistics.median(rounds.prefilled_s)
            figures |= {
                f"migrated_ms_{size}": round(1000 * migrated, 2),
                f"copy_ms_{size}": round(1000 * statistics.median(rounds.copy_s), 2),
                f"prefilled_ms_{size}": round(1000 * prefilled, 2),
                f"speedup_{size}": round(prefilled / migrated, 2),
                f"mbytes_{size}": round(statistics.median(rounds.num_bytes) / 1e6, 3),
                f"hit_share_{size}": round(min(rounds.hit_share), 4),
            }
    return figures


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        model = make_bench_model(root / "model", max_position_embeddings=16_384)
        extra = ["--context-length", str(CONTEXT_LENGTH), "--max-running-requests", "2"]
        with (
            running_engine(
                "local", (model, model), root / "0.log", *extra, migration_key=KEY
            ) as source,
            running_engine(
                "local", (model, model), root / "1.log", *extra, migration_key=KEY
            ) as destination,
        ):
            figures = asyncio.run(measure(source.url, destination.url))
    targets = {f"hit_share_{size}": TARGET_HIT_SHARE for size in CONTEXTS}
    ok = all(figures[name] >= target for name, target in targets.items())
    write_report("migration", figures, targets, ok=ok)


if __name__ == "__main__":
    main()
