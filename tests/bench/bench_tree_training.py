"""Tree training against flat rows on the same executions.

    python tests/bench/bench_tree_training.py    # writes out/bench/tree_training.json

Executions of the paper's tree_case (main agent and sub-agents, two compactions), admitted with the
default cap of five and without one, go forward and backward through a small Megatron model on one
core: as trees, each shared prefix once, and with the same paths as rows of their own. Tokens are
counted in the model's embedding.

Time: after one pass of each to warm up, trees and flat rows take turns, and each turn's two times
give a ratio; the median of the ratios is reported, with the least and the most. Processor time of
the one thread is wall time less the machine's other work, and is what has a target. What is freed
stays with the process (`keep_memory`), so that memory costs neither of them anything.

Three things cost: a token by itself, in proportion to the tokens; a pair of a token and one that it
attends to, in proportion to the pairs, of which sharing leaves more, because what is shared lies
first in a path and has few tokens before it (`pairs_ratio`); and a target, the same either way. The
model is wide enough beside its paths' lengths for the first to be most of it, as in real ones.

Targets: of the tokens, the share that sharing leaves by the micro-steps' own counts is reached to
2 %; of the time, to NEAR.
"""

from __future__ import annotations

import ctypes
import random
import statistics
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
from gyre.core.tree import fold
from gyre.testkit.benches import write_report
from gyre.testkit.branching_calls import calls_of_contexts
from gyre.testkit.draws import draw_samples
from gyre.testkit.tiny_model import make_tiny_model
from gyre.testkit.trainer_in_process import (
    add_gradient,
    embedded_tokens,
    make_trainer,
    start_world,
)
from gyre.testkit.training_trees import TreeShape, laid_flat, random_tree_step, step_of_samples
from gyre.testkit.tree_case import EXECUTION, TREE_CASE

if TYPE_CHECKING:
    from gyre.cell_agent.trainer.model.packing import PackedMicroStep
    from gyre.cell_agent.trainer.model.prefix_tree import PrefixTree
    from gyre.cell_agent.trainer.trainer import MegatronTrainer

CAPS = {"cap_5": 5, "uncapped": 1000}
ROW_TOKENS = 1 << 20
VOCABULARY = 512
NUM_TURNS = {"cap_5": 7, "uncapped": 5}
# How far above the sharing the time may lie. Pairs and targets take a third of it.
NEAR = 0.08
# Of glibc's malloc.h, for mallopt.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
# A trunk with many branches hanging deep below it, for what attention alone costs there.
DEEP = TreeShape(num_edges=320, edge_tokens=300, depth_first=0.8, vocab_size=VOCABULARY)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The same targets as a tree and as flat rows. sharing: tokens of the one over those of the
    other, by the micro-steps' own counts."""

    tree: PackedMicroStep
    flat: PackedMicroStep
    sharing: float


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
        sharing=shared.num_tokens / flat_rows.num_tokens,
    )


def unshared(packed: PackedMicroStep) -> PackedMicroStep:
    """Units of one path each as one unit, nothing merged: rows as a trainer without trees has
    them."""
    from gyre.cell_agent.trainer.model.packing import ForwardUnit

    starts = np.cumsum([0, *(unit.tree.num_tokens for unit in packed.units)]).tolist()
    predictors = [u.predictors + start for u, start in zip(packed.units, starts, strict=False)]
    unit = ForwardUnit(
        tree=behind_one_another([unit.tree for unit in packed.units], starts),
        predictors=torch.cat(predictors),
        targets=slice(0, packed.units[-1].targets.stop),
    )
    return replace(packed, units=(unit,))


def behind_one_another(trees: Sequence[PrefixTree], starts: Sequence[int]) -> PrefixTree:
    from gyre.cell_agent.trainer.model.prefix_tree import PrefixTree

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
        from gyre.cell_agent.trainer.model.packing import pack_micro_step

        return pack_micro_step(step, self.trainer.policy, rows_per_unit=rows_per_unit)

    def cost(self, packed: PackedMicroStep) -> Cost:
        """Forward and backward."""
        wall, processor = time.perf_counter(), time.process_time()
        with embedded_tokens(self.trainer) as counted:
            add_gradient(self.trainer, packed)
        return Cost(
            wall_s=time.perf_counter() - wall,
            processor_s=time.process_time() - processor,
            num_tokens=sum(counted),
        )


def measured(bench: Bench, name: str, cap: int) -> dict[str, float]:
    both = pair(bench, cap)
    bench.cost(both.tree)
    bench.cost(both.flat)
    turns = [in_turn(bench, both, number) for number in range(NUM_TURNS[name])]
    trees, flats = zip(*turns, strict=True)
    processor = [tree.processor_s / flat.processor_s for tree, flat in turns]
    wall = [tree.wall_s / flat.wall_s for tree, flat in turns]
    figures = {
        "flat_tokens": flats[0].num_tokens,
        "tree_tokens": trees[0].num_tokens,
        "sharing": both.sharing,
        "tokens_ratio": trees[0].num_tokens / flats[0].num_tokens,
        "pairs_ratio": num_pairs(both.tree) / num_pairs(both.flat),
        "flat_processor_s": statistics.median(flat.processor_s for flat in flats),
        "tree_processor_s": statistics.median(tree.processor_s for tree in trees),
        "processor_ratio": statistics.median(processor),
        "processor_ratio_least": min(processor),
        "processor_ratio_most": max(processor),
        "wall_ratio": statistics.median(wall),
        "wall_ratio_least": min(wall),
        "wall_ratio_most": max(wall),
    }
    return {f"{name}_{figure}": round(value, 4) for figure, value in figures.items()}


def in_turn(bench: Bench, both: Pair, number: int) -> tuple[Cost, Cost]:
    """Tree and flat rows; which comes first alternates, so that a machine that grows slower favours
    neither."""
    if number % 2:
        flat = bench.cost(both.flat)
        return bench.cost(both.tree), flat
    return bench.cost(both.tree), bench.cost(both.flat)


def num_pairs(packed: PackedMicroStep) -> int:
    """A token attends to those before it on its path and to itself."""
    return sum(int(unit.tree.positions.sum()) + unit.tree.num_tokens for unit in packed.units)


def deep_tree(bench: Bench) -> dict[str, float]:
    """Tokens a second through one large tree with branches at every depth."""
    step = random_tree_step(random.Random(0), DEEP, num_executions=1, prompt_tokens=100)
    cost = bench.cost(bench.packed(step))
    return {
        "deep_tree_tokens": cost.num_tokens,
        "deep_tree_flat_tokens": step.num_path_tokens,
        "deep_tree_tokens_per_s": round(cost.num_tokens / cost.processor_s),
    }


def keep_memory() -> None:
    """glibc gives tensors above 32 MiB back to the system whenever they are freed, and faults them
    in again, page by page. Some are larger than that in flat rows and not in trees, which would
    flatter the trees. Elsewhere than with glibc nothing is done."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def main() -> None:
    keep_memory()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="megatron")
        model = make_tiny_model(
            work,
            hidden_size=192,
            intermediate_size=768,
            num_layers=1,
            max_position_embeddings=1 << 17,
        )
        start_world()
        bench = Bench(trainer=make_trainer(model, torch.float32))
        figures: dict[str, float] = {}
        for name, cap in CAPS.items():
            figures |= measured(bench, name, cap)
        figures |= deep_tree(bench)
    targets = {}
    for name in CAPS:
        sharing = figures[f"{name}_sharing"]
        targets[f"{name}_tokens_ratio"] = round(sharing * 1.02, 4)
        targets[f"{name}_processor_ratio"] = round(sharing + NEAR, 4)
    ok = all(figures[name] <= most for name, most in targets.items())
    write_report("tree_training", figures, targets, ok=ok)


if __name__ == "__main__":
    main()
