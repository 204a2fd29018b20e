"""Gradients of a cell's layouts against the plain policy's autograd on the same batch.

    python tests/bench/bench_gradients.py    # writes out/bench/gradients.json

Each figure is the worst, over the model's tensors, of |difference| / |gradient| (2-norms), of a
batch of three micro-steps of trees, in float64 and float32. Two ranks a cell, with embeddings tied
and not; four where two kinds of parallelism meet, with tied ones; `ep` with experts, shared out
over ranks of the kinds named before it. Each rank is a process, on gloo.

Targets: 1e-10 in float64, or 1e-6 with experts, whose shares Megatron works out in float32; 1e-5 in
float32.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gyre.contracts.training_job import LayoutSection
from gyre.testkit.benches import write_report
from gyre.testkit.layout_runs import (
    LayoutRun,
    plain_batch,
    run_layouts,
    steps_of_batch,
    worst_difference,
)
from gyre.testkit.tiny_model import make_tiny_model

TARGETS = {"float64": 1e-10, "float32": 1e-5}
EXPERTS_TARGETS = TARGETS | {"float64": 1e-6}
PAIRS = {
    "tp2": LayoutSection(tensor=2),
    "tp2_sp": LayoutSection(tensor=2, sequence_parallel=True),
    "pp2": LayoutSection(pipeline=2),
    "cp2": LayoutSection(context=2),
    "dp2": LayoutSection(data=2),
}
FOURS = {
    "tp2_sp_pp2": LayoutSection(tensor=2, pipeline=2, sequence_parallel=True),
    "tp2_sp_cp2": LayoutSection(tensor=2, context=2, sequence_parallel=True),
    "pp2_dp2": LayoutSection(pipeline=2, data=2),
    "cp2_dp2": LayoutSection(context=2, data=2),
}
EXPERTS_PAIRS = {
    "tp2_sp_ep2": LayoutSection(tensor=2, sequence_parallel=True, expert=2),
    "cp2_ep2": LayoutSection(context=2, expert=2),
    "dp2_ep2": LayoutSection(data=2, expert=2),
}
EXPERTS_FOURS = {
    "tp2_sp_dp2_ep2": LayoutSection(tensor=2, data=2, sequence_parallel=True, expert=2),
    "pp2_dp2_ep2": LayoutSection(pipeline=2, data=2, expert=2),
    "dp4_ep4": LayoutSection(data=4, expert=4),
}


# Settings of `make_tiny_model`.
TIED: dict[str, Any] = {}
UNTIED: dict[str, Any] = {"tie_word_embeddings": False}
EXPERTS: dict[str, Any] = {"num_experts": 4}


def main() -> None:
    figures: dict[str, float] = {}
    targets: dict[str, float] = {}
    for layouts, num_ranks, models, limits in (
        (PAIRS, 2, (TIED, UNTIED), TARGETS),
        (FOURS, 4, (TIED,), TARGETS),
        (EXPERTS_PAIRS, 2, (EXPERTS,), EXPERTS_TARGETS),
        (EXPERTS_FOURS, 4, (EXPERTS,), EXPERTS_TARGETS),
    ):
        with tempfile.TemporaryDirectory() as place:
            figures |= worst_of(Path(place), layouts, num_ranks, models)
        targets |= {f"{name}_{dtype}": limits[dtype] for name in layouts for dtype in limits}
    met = all(figures[name] <= limit for name, limit in targets.items())
    write_report("gradients", figures, targets, ok=met)


def worst_of(
    work: Path,
    layouts: Mapping[str, LayoutSection],
    num_ranks: int,
    models: Sequence[Mapping[str, Any]],
) -> dict[str, float]:
    """By layout and precision, over the models."""
    steps = steps_of_batch()
    made = [make_tiny_model(work / f"m{n}", **settings) for n, settings in enumerate(models)]
    plain = {model: plain_batch(model, steps) for model in made}
    asked = [(name, model, dtype) for name in layouts for dtype in TARGETS for model in made]
    runs = [
        LayoutRun(layout=layouts[name], model=model, dtype=dtype) for name, model, dtype in asked
    ]
    figures: dict[str, float] = {}
    results = run_layouts(work, runs, steps, num_ranks=num_ranks)
    for (name, model, dtype), result in zip(asked, results, strict=True):
        worst = worst_difference(result, plain[model])
        key = f"{name}_{dtype}"
        figures[key] = max(worst, figures.get(key, 0.0))
    return figures


if __name__ == "__main__":
    main()
