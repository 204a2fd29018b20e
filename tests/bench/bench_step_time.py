"""How long a step takes by the number of cells, and what is lost against perfect scaling, by cause.

    python tests/bench/bench_step_time.py      # writes out/bench/step_time.json

Real trainer processes, real reductions and updates; each trains at the speed of an EMULATED device
(EMULATED_TOKENS_PER_S), since cells that share this machine's cores say nothing of cells that have
hardware of their own. Cells take the next micro-step when they can, as claims let them; satellites
pull the core's weights first, as joiners do, while the core trains already.

Perfect is the batch's tokens at that speed, over the number of cells. What a step takes beyond it
is told by cause, seconds, as a mean over its cells: computing slower than the emulated device,
which is this machine's doing, pulling weights, idle with nothing left to claim, and the sum over
the prefix with the update and its broadcast. The rest is unexplained.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from gyre.adapters.microsteps import encode_microstep
from gyre.cell_agent.group import TrainerGroup
from gyre.testkit.benches import write_report
from gyre.testkit.cells_job import make_batches
from gyre.testkit.trainer_cells import CALL_S, Cells, running

NUM_CELLS, NUM_MICRO_STEPS, NUM_STEPS = 4, 32, 3
EMULATED_TOKENS_PER_S = 2000.0
# At four cells, of the step: what none of the causes accounts for.
MOST_UNEXPLAINED = 0.1
BATCH = "b0"


async def claim_and_train(member: TrainerGroup, left: Iterator[Path]) -> None:
    for path in left:
        await member.call("submit_step", CALL_S, source=path)
    await member.call("flush_steps", CALL_S)


async def join(member: TrainerGroup, core: TrainerGroup, served: dict[str, Any]) -> float:
    """Seconds that the weights took."""
    began = time.perf_counter()
    if member is not core:
        place = {"host": served["host"], "port": served["port"]}
        await member.call("pull_weights", CALL_S, **place, version=3, lineage=0)
    took = time.perf_counter() - began
    await member.call("begin_batch", CALL_S, batch=BATCH, version=3)
    return took


async def one_step(cells: Cells, members: Sequence[TrainerGroup], work: list[Path]) -> list[float]:
    """Seconds of the step, computing, and of each cause: means over its cells."""
    core, left = members[0], iter(work)
    for member in members:
        await member.call("drop_accumulation", CALL_S)
    await cells.load(core)
    served = await core.call("serve_weights", CALL_S)
    began = time.perf_counter()

    async def live(member: TrainerGroup) -> tuple[float, float]:
        pulled = await join(member, core, served)
        await claim_and_train(member, left)
        return pulled, time.perf_counter()

    lives = await asyncio.gather(*(live(member) for member in members))
    closed = time.perf_counter()
    answers = await cells.finish(members)
    took = time.perf_counter() - began
    assert all(isinstance(answer, dict) for answer in answers), answers
    pull = mean(pulled for pulled, _ in lives)
    idle = mean(closed - ended for _, ended in lives)
    core_answer = answers[0]
    assert isinstance(core_answer, dict)
    busy = mean(each["busy_s"] for each in core_answer["statistics"]["cell_times"])
    return [took, busy, pull, idle, began + took - closed]


async def measure(root: Path) -> dict[str, float]:
    (steps,) = make_batches(num_batches=1, num_micro_steps=NUM_MICRO_STEPS, normalizer=64)
    work = []
    for step in steps:
        work.append(root / f"{step.index}.safetensors")
        work[-1].write_bytes(encode_microstep(replace(step, batch=BATCH)))
    figures = {"emulated_tokens_per_s": EMULATED_TOKENS_PER_S}
    async with running(
        root, dtype="float32", num_cells=NUM_CELLS, tokens_per_s=EMULATED_TOKENS_PER_S
    ) as cells:
        alone = sum(step.num_tokens for step in steps) / EMULATED_TOKENS_PER_S
        for count in range(1, NUM_CELLS + 1):
            members = cells.trainers[:count]
            await cells.form(members)
            steps_taken = [await one_step(cells, members, work) for _ in range(NUM_STEPS)]
            # One whole step, the one of median length: its causes add up to it.
            took, busy, pull, idle, finish = sorted(steps_taken)[NUM_STEPS // 2]
            perfect = alone / count
            figures |= {
                f"step_{count}_s": took,
                f"efficiency_{count}": perfect / took,
                f"lost_slow_{count}_s": busy - perfect,
                f"lost_pull_{count}_s": pull,
                f"lost_idle_{count}_s": idle,
                f"lost_reduce_update_{count}_s": finish,
                f"unexplained_{count}_share": (took - busy - pull - idle - finish) / took,
            }
    return {name: round(value, 4) for name, value in figures.items()}


def main() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as directory:
        figures = asyncio.run(measure(Path(directory)))
    name = f"unexplained_{NUM_CELLS}_share"
    ok = figures[name] <= MOST_UNEXPLAINED
    write_report("step_time", figures, {name: MOST_UNEXPLAINED}, ok=ok)


if __name__ == "__main__":
    main()
