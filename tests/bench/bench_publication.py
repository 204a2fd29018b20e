"""What a publication costs the calls that run through it, by what the job has them do.

    python tests/bench/bench_publication.py    # writes out/bench/publication.json

A real `local` engine at an emulated decode speed, eight calls of a long context under way. Each run
is one publication, from the directory or over the network by another courier, compared with
the same calls undisturbed. Seconds: from the order to the engine's confirmation. Tokens computed
again: of the calls that ran, as `weights_loaded.num_retracted` has them. Added: to a call's
completion, mean and most. late_s: until a call that comes 50 ms behind the order has its first
token. old_tokens: sampled under the old version from the order on.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gyre.cell_agent.engine.base import EngineClient, Generation
from gyre.cell_agent.engine.local.weights import read_checkpoint
from gyre.cell_agent.engine.torch_checksum import checksum
from gyre.cell_agent.weights.courier import Courier
from gyre.cell_agent.weights.delivery import InFlight, ServedWeights, load_while_serving
from gyre.core.cell.state import Exposure
from gyre.testkit.benches import write_report
from gyre.testkit.engine_server import running_engine
from gyre.testkit.engine_use import serve_weights
from gyre.testkit.tiny_model import make_tiny_model

CALLS = 8
CONTEXT_TOKENS = 1000
NEW_TOKENS = 150
DECODE_TOKENS_PER_S = 100.0
# The calls are in their middle.
ORDER_AFTER_TOKENS = 75
MODES: tuple[InFlight, ...] = ("retract", "in_place", "hold")
LATE_S = 0.05
TARGETS = {
    "calls_cut_short": 0,
    "in_place_tokens_computed_again": 0,
    "hold_tokens_computed_again": 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """seconds: of each call. update_s, late_s, num_retracted, old_tokens: of the publication."""

    calls: tuple[Generation, ...]
    seconds: tuple[float, ...]
    update_s: float = 0.0
    late_s: float = 0.0
    num_retracted: int = 0
    old_tokens: int = 0


async def call(client: EngineClient, rid: str, num_tokens: int) -> tuple[Generation, float]:
    started = time.perf_counter()
    place = 1 + int(rid.rpartition("-")[2])
    answer = await client.generate(
        input_ids=[place + (7 * token) % 400 for token in range(CONTEXT_TOKENS)],
        sampling_params={"max_new_tokens": num_tokens, "temperature": 1.0, "ignore_eos": True},
        rid=rid,
    )
    return answer, time.perf_counter() - started


async def run(
    client: EngineClient, name: str, weights: ServedWeights | None, in_flight: InFlight
) -> Run:
    courier = Courier("of the bench", "127.0.0.1")
    tasks = [
        asyncio.create_task(call(client, f"{name}-{place}", NEW_TOKENS)) for place in range(CALLS)
    ]
    while (await client.loads())["num_active_tokens"] < CALLS * (
        CONTEXT_TOKENS + ORDER_AFTER_TOKENS
    ):
        await asyncio.sleep(0.01)
    update_s = late_s = 0.0
    num_retracted = before = 0
    if weights is not None:
        before = int((await client.loads())["num_active_tokens"]) - CALLS * CONTEXT_TOKENS
        started = time.perf_counter()
        late = asyncio.create_task(_late(client, f"{name}-{CALLS}"))
        num_retracted = await load_while_serving(client, weights, courier, in_flight)
        update_s = time.perf_counter() - started
        late_s = await late
    answers = await asyncio.gather(*tasks)
    old = sum(
        span.end - span.start
        for answer, _ in answers
        for span in answer.spans
        if span.version == "1.1"
    )
    return Run(
        calls=tuple(answer for answer, _ in answers),
        seconds=tuple(seconds for _, seconds in answers),
        update_s=update_s,
        late_s=late_s,
        num_retracted=num_retracted,
        old_tokens=old - before if weights is not None else 0,
    )


async def _late(client: EngineClient, rid: str) -> float:
    await asyncio.sleep(LATE_S)
    _, seconds = await call(client, rid, 1)
    return seconds


def figures_of(name: str, found: Run, undisturbed: Run) -> dict[str, float]:
    added = [
        seconds - usual
        for seconds, usual in zip(sorted(found.seconds), sorted(undisturbed.seconds), strict=True)
    ]
    return {
        f"{name}_update_s": found.update_s,
        f"{name}_tokens_computed_again": found.num_retracted,
        f"{name}_added_mean_s": statistics.mean(added),
        f"{name}_added_max_s": max(added),
        f"{name}_late_s": found.late_s,
        f"{name}_old_tokens": found.old_tokens,
    }


def cut_short(runs: Sequence[Run]) -> int:
    return sum(len(answer.output_ids) != NEW_TOKENS for found in runs for answer in found.calls)


def model(path: Path, seed: int) -> Path:
    return make_tiny_model(
        path, seed=seed, hidden_size=128, num_heads=4, head_dim=32, num_kv_heads=2
    )


async def measure(root: Path) -> dict[str, float]:
    models = model(root / "m0", 0), model(root / "m1", 1)
    core = Courier("of the bench", "127.0.0.1")
    place = core.offer("j", str(models[1]), (1, 2), allow_public=False)
    by_disk = ServedWeights(
        path=str(models[1]),
        version=(1, 2),
        checksum=checksum(read_checkpoint(models[1])),
        job="j",
    )
    offered = Exposure(version=(1, 2), host=place.host, port=place.port, checksum="")
    by_wire = replace(by_disk, offered=offered)
    speed = ("--emulate-decode-tokens-per-s", str(DECODE_TOKENS_PER_S))
    figures: dict[str, float] = {}
    runs: list[Run] = []
    with running_engine("local", models, root / "engine.log", *speed) as server:
        async with server.client() as client:
            await serve_weights(client, models[0], "1.1")
            undisturbed = await run(client, "alone", None, "retract")
            runs.append(undisturbed)
            for mode in MODES:
                for way, weights in (("disk", by_disk), ("tcp", by_wire)):
                    await serve_weights(client, models[0], "1.1")
                    found = await run(client, f"{mode}-{way}", weights, mode)
                    runs.append(found)
                    name = mode if way == "disk" else f"{mode}_tcp"
                    figures |= figures_of(name, found, undisturbed)
    await core.close()
    return figures | {
        "call_alone_s": statistics.mean(undisturbed.seconds),
        "calls_cut_short": cut_short(runs),
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        figures = asyncio.run(measure(Path(directory)))
    ok = all(figures[name] <= target for name, target in TARGETS.items())
    write_report("publication", figures, TARGETS, ok=ok)


if __name__ == "__main__":
    main()
