"""Tree training against flat rows on the same executions.

    python tests/bench/bench_tree_training.py    # writes out/bench/tree_training.json

Executions of the paper's tree_case (main agent and sub-agents, two compactions), admitted with the
default cap of five and without one, go forward and backward through a small Megatron model on one
core: as trees, each shared prefix once, and with the same paths as rows of their own. Tokens are
counted in the model's embedding. Targets: the share of the tokens that sharing leaves, by the
micro-steps' own counts, is reached to 2 % in tokens and to 10 % in the one thread's processor time,
which is wall time less the machine's other work.
"""

from __future__ import annotations

import random
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from gyre.core.admission import seeded
from gyre.core.microstep import MicroStep
from gyre.core.samples import draw_samples
from gyre.core.tree import fold
from gyre.testkit.benches import write_report
from gyre.testkit.branching_calls import calls_of_contexts
from gyre.testkit.tiny_model import make_tiny_model
from gyre.testkit.trainer_in_process import (
    OBJECTIVE,
    embedded_tokens,
    make_trainer,
    start_world,
)
from gyre.testkit.training_trees import TreeShape, laid_flat, random_tree_step, step_of_samples
from gyre.testkit.tree_case import EXECUTION, TREE_CASE

if TYPE_CHECKING:
    from gyre.cell_agent.trainer.megatron import MegatronTrainer
    from gyre.cell_agent.trainer.packing import PackedMicroStep
    from gyre.cell_agent.trainer.prefix_tree import PrefixTree

CAPS = {"cap_5": 5, "uncapped": 1000}
ROW_TOKENS = 1 << 20
VOCABULARY = 512
NUM_ROUNDS = 2
# A trunk with many branches hanging deep below it, for what attention alone costs there.
DEEP = TreeShape(num_edges=320, edge_tokens=300, depth_first=0.8, vocab_size=VOCABULARY)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The same targets as a tree and as flat rows, and the tokens of either by the micro-steps' own
    counts."""

    tree: PackedMicroStep
    flat: PackedMicroStep
    num_carried: int
    num_path_tokens: int


def pair(bench: Bench, cap: int) -> Pair:
    tree = fold(calls_of_contexts(EXECUTION, TREE_CASE))
    samples = draw_samples(
        tree, attempt=1, row_tokens=ROW_TOKENS, max_trajectories=cap, rng=seeded(0, EXECUTION)
    )
    num_rows = len(samples.blocks)
    shared = step_of_samples(samples, vocab_size=VOCABULARY, window_rows=num_rows)
    flat_rows = laid_flat(shared, window_rows=samples.num_paths)
    return Pair(
        tree=bench.packed(shared),
        flat=unshared(bench.packed(flat_rows, rows_per_unit=1)),
        num_carried=shared.num_tokens,
        num_path_tokens=flat_rows.num_tokens,
    )


def unshared(packed: PackedMicroStep) -> PackedMicroStep:
    """Units of one path each as one unit, nothing merged: rows as a trainer without trees has
    them."""
    from gyre.cell_agent.trainer.packing import ForwardUnit

    starts = np.cumsum([0, *(unit.tree.num_tokens for unit in packed.units)]).tolist()
    predictors = [u.predictors + start for u, start in zip(packed.units, starts, strict=False)]
    unit = ForwardUnit(
        tree=behind_one_another([unit.tree for unit in packed.units], starts),
        predictors=torch.cat(predictors),
        targets=slice(0, packed.units[-1].targets.stop),
    )
    return replace(packed, units=(unit,))


def behind_one_another(trees: Sequence[PrefixTree], starts: Sequence[int]) -> PrefixTree:
    from gyre.cell_agent.trainer.prefix_tree import PrefixTree

    placed = list(zip(trees, starts, strict=False))
    return PrefixTree(
        token_ids=np.concatenate([tree.token_ids for tree in trees]),
        positions=np.concatenate([tree.positions for tree in trees]),
        parents=np.concatenate([np.where(t.parents < 0, -1, t.parents + at) for t, at in placed]),
        subtree_ends=np.concatenate([tree.subtree_ends + at for tree, at in placed]),
        runs=tuple(
            replace(run, start=run.start + at, stop=run.stop + at)
            for tree, at in placed
            for run in tree.runs
        ),
        places=(),
    )


@dataclass(frozen=True, kw_only=True)
class Cost:
    """num_tokens: that the embedding saw."""

    wall_s: float
    processor_s: float
    num_tokens: int


@dataclass(frozen=True, kw_only=True)
class Bench:
    trainer: MegatronTrainer

    def packed(self, step: MicroStep, rows_per_unit: int | None = None) -> PackedMicroStep:
        from gyre.cell_agent.trainer.packing import pack_micro_step

        return pack_micro_step(step, self.trainer.policy, rows_per_unit=rows_per_unit)

    def cost(self, packed: PackedMicroStep) -> Cost:
        """Forward and backward."""
        from gyre.cell_agent.trainer.passes import add_gradient

        self.trainer.model.zero_grad_buffer()
        wall, processor = time.perf_counter(), time.process_time()
        with embedded_tokens(self.trainer) as counted:
            add_gradient(self.trainer.model, packed, OBJECTIVE)
        return Cost(
            wall_s=time.perf_counter() - wall,
            processor_s=time.process_time() - processor,
            num_tokens=sum(counted),
        )


def cheapest(costs: Sequence[Cost]) -> Cost:
    """Each time at its least."""
    return Cost(
        wall_s=min(cost.wall_s for cost in costs),
        processor_s=min(cost.processor_s for cost in costs),
        num_tokens=costs[0].num_tokens,
    )


def measured(bench: Bench, name: str, cap: int) -> dict[str, float]:
    """The fastest of a few rounds, in which tree and flat rows take turns."""
    both = pair(bench, cap)
    trees: list[Cost] = []
    flats: list[Cost] = []
    for _ in range(NUM_ROUNDS):
        trees.append(bench.cost(both.tree))
        flats.append(bench.cost(both.flat))
    tree, flat = cheapest(trees), cheapest(flats)
    return {
        f"{name}_flat_tokens": flat.num_tokens,
        f"{name}_tree_tokens": tree.num_tokens,
        f"{name}_sharing": round(both.num_carried / both.num_path_tokens, 4),
        f"{name}_tokens_ratio": round(tree.num_tokens / flat.num_tokens, 4),
        f"{name}_flat_wall_s": round(flat.wall_s, 3),
        f"{name}_tree_wall_s": round(tree.wall_s, 3),
        f"{name}_wall_ratio": round(tree.wall_s / flat.wall_s, 4),
        f"{name}_processor_ratio": round(tree.processor_s / flat.processor_s, 4),
    }


def deep_tree(bench: Bench) -> dict[str, float]:
    """Tokens a second through one large tree with branches at every depth."""
    step = random_tree_step(random.Random(0), DEEP, num_executions=1, prompt_tokens=100)
    cost = bench.cost(bench.packed(step))
    return {
        "deep_tree_tokens": cost.num_tokens,
        "deep_tree_flat_tokens": step.num_path_tokens,
        "deep_tree_tokens_per_s": round(cost.num_tokens / cost.processor_s),
    }


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="megatron")
        model = make_tiny_model(
            work, hidden_size=128, intermediate_size=512, max_position_embeddings=1 << 17
        )
        start_world()
        bench = Bench(trainer=make_trainer(model, torch.float32))
        figures: dict[str, float] = {}
        for name, cap in CAPS.items():
            figures |= measured(bench, name, cap)
        figures |= deep_tree(bench)
    targets = {
        f"{name}_{kind}_ratio": round(figures[f"{name}_sharing"] * slack, 4)
        for name in CAPS
        for kind, slack in (("tokens", 1.02), ("processor", 1.1))
    }
    ok = all(figures[name] <= most for name, most in targets.items())
    write_report("tree_training", figures, targets, ok=ok)


if __name__ == "__main__":
    main()
