"""Gradients of a cell's layouts against the plain policy's autograd on the same batch.

    python tests/bench/bench_gradients.py    # writes out/bench/gradients.json

Each figure is the worst, over the model's tensors, of |difference| / |gradient| (2-norms), of a
batch of three micro-steps of trees, in float64 and float32. Two ranks a cell, with embeddings tied
and not; four where two kinds of parallelism meet, with tied ones. Each rank is a process, on gloo.

Targets: 1e-10 in float64, 1e-5 in float32.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

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


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        figures = worst_of(work / "two", PAIRS, 2, tied=(True, False))
        figures |= worst_of(work / "four", FOURS, 4, tied=(True,))
    targets = {
        name: limit for name in figures for dtype, limit in TARGETS.items() if name.endswith(dtype)
    }
    met = all(figures[name] <= limit for name, limit in targets.items())
    write_report("gradients", figures, targets, ok=met)


def worst_of(
    work: Path, layouts: Mapping[str, LayoutSection], num_ranks: int, tied: Sequence[bool]
) -> dict[str, float]:
    """By layout and precision, over the models, with embeddings `tied`."""
    steps = steps_of_batch()
    models = {one: make_tiny_model(work / f"tied-{one}", tie_word_embeddings=one) for one in tied}
    plain = {one: plain_batch(model, steps) for one, model in models.items()}
    asked = [(name, one, dtype) for name in layouts for dtype in TARGETS for one in models]
    runs = [
        LayoutRun(layout=layouts[name], model=models[one], dtype=dtype)
        for name, one, dtype in asked
    ]
    figures: dict[str, float] = {}
    results = run_layouts(work, runs, steps, num_ranks=num_ranks)
    for (name, one, dtype), result in zip(asked, results, strict=True):
        worst = worst_difference(result, plain[one])
        key = f"{name}_{dtype}"
        figures[key] = max(worst, figures.get(key, 0.0))
    return figures


if __name__ == "__main__":
    main()
