"""Gradients summed over a prefix of cells against the plain policy's autograd on the same batch.

    python tests/bench/bench_gradients_cells.py    # writes out/bench/gradients_cells.json

Real trainer processes, one a rank, on gloo. Each figure is the worst, over the model's tensors, of
|difference| / |gradient| (2-norms) in the core's buffers, after the sum over the prefix:
- prefix_1, prefix_2, prefix_3: the batch's micro-steps on so many cells of one rank;
- join: the second cell comes in mid-batch, with weights that it pulls from the core;
- tp2_prefix_2: two cells of two tensor-parallel ranks each.

Targets: 1e-10 in float64, 1e-5 in float32.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from gyre.contracts.training_job import LayoutSection
from gyre.core.microstep import MicroStep
from gyre.testkit.benches import write_report
from gyre.testkit.plain_batch import largest_difference, plain_run
from gyre.testkit.trainer_cells import CALL_S, Cells, batch_of_steps, running

TARGETS = {"float64": 1e-10, "float32": 1e-5}
# By cell, the micro-steps that it claims.
PREFIXES = {
    "prefix_1": [[0, 1, 2, 3, 4]],
    "prefix_2": [[4, 3, 2], [1, 0]],
    "prefix_3": [[0, 1], [], [2, 3, 4]],
}


async def main() -> None:
    steps = batch_of_steps()
    figures: dict[str, float] = {}
    for dtype in TARGETS:
        with tempfile.TemporaryDirectory() as work:
            async with running(Path(work), dtype=dtype, num_cells=3) as cells:
                for name, claims in PREFIXES.items():
                    figures[f"{name}_{dtype}"] = await shared(cells, steps, claims)
                figures[f"join_{dtype}"] = await joined(cells, steps)
    with tempfile.TemporaryDirectory() as work:
        layout = LayoutSection(tensor=2)
        async with running(Path(work), dtype="float64", num_cells=2, layout=layout) as cells:
            figures["tp2_prefix_2_float64"] = await shared(cells, steps, PREFIXES["prefix_2"])
    targets = {
        name: limit for name in figures for dtype, limit in TARGETS.items() if name.endswith(dtype)
    }
    met = all(figures[name] <= limit for name, limit in targets.items())
    write_report("gradients_cells", figures, targets, ok=met)


async def shared(
    cells: Cells, steps: Sequence[MicroStep], claims: Sequence[Sequence[int]]
) -> float:
    members = cells.trainers[: len(claims)]
    for member in members:
        await cells.load(member)
    await cells.form(members)
    await cells.begin(members)
    await asyncio.gather(
        *(
            cells.train(member, [steps[index] for index in claimed])
            for member, claimed in zip(members, claims, strict=True)
        )
    )
    return await difference(cells, steps, len(members))


async def joined(cells: Cells, steps: Sequence[MicroStep]) -> float:
    core, satellite = members = cells.trainers[:2]
    await cells.load(core)
    await satellite.call("load_weights", CALL_S, path=cells.model, version=0, lineage=0)
    await cells.form(members)
    served = await core.call("serve_weights", CALL_S)
    await cells.begin([core])
    await cells.train(core, steps[:2])
    place = {"host": served["host"], "port": served["port"]}
    await satellite.call("pull_weights", CALL_S, **place, version=3, lineage=0)
    await cells.begin([satellite])
    await asyncio.gather(cells.train(core, steps[2:4]), cells.train(satellite, steps[4:]))
    return await difference(cells, steps, 2)


async def difference(cells: Cells, steps: Sequence[MicroStep], num_members: int) -> float:
    """In the core's buffers, once the batch is finished."""
    members = cells.trainers[:num_members]
    for answer in await cells.finish(members, final=True):
        if isinstance(answer, BaseException):
            raise answer
    plain = plain_run(cells.model, steps, torch.float64)
    found = await cells.gradients(members[0])
    in_double = {name: gradient.double() for name, gradient in found.items()}
    return largest_difference(in_double, plain.gradients)


if __name__ == "__main__":
    asyncio.run(main())
