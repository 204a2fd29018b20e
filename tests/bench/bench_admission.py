"""What admission costs on an execution with very many paths.

    python tests/bench/bench_admission.py    # writes out/bench/admission.json

A tree of 1,000 leaves: a main path of 200 nodes, and branches of one turn (a tool's result, the
opening of the turn, the turn) that leave the path or one another anywhere, of all four classes.
`path_nodes` is how long its paths are on average. The paper's own execution is beside it, from its
tree to the choice.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from gyre.core.admission import CLASS_ORDER, Candidates, Leaf, admit
from gyre.core.samples import choose
from gyre.core.tree import fold
from gyre.testkit.benches import write_report
from gyre.testkit.branching_calls import calls_of_contexts
from gyre.testkit.tree_case import TREE_CASE
from gyre.testkit.tree_paths import path_to

NUM_LEAVES, TRUNK_NODES, BRANCH_NODES = 1000, 200, 3
TURN_TOKENS = 150
NUM_ROUNDS = 30
TARGETS = {"cap_5_ms": 5.0, "uncapped_ms": 5.0}


def wide_tree(rng: random.Random) -> Candidates:
    parents: list[int | None] = [None, *range(TRUNK_NODES - 1)]
    targets = [TURN_TOKENS * (node % 3 == 2) for node in range(TRUNK_NODES)]
    leaves = []
    # Where a branch may leave: anywhere but at an end.
    inner = list(range(TRUNK_NODES))
    for _ in range(NUM_LEAVES):
        above = rng.choice(inner)
        for step in range(BRANCH_NODES):
            parents.append(above)
            targets.append(TURN_TOKENS * (step == BRANCH_NODES - 1))
            above = len(parents) - 1
        inner += range(above - BRANCH_NODES + 1, above)
        leaves.append(Leaf(node=above, role=rng.choice(CLASS_ORDER)))
    return Candidates(parents=parents, targets=targets, leaves=leaves)


def best_ms(work: Callable[[], object]) -> float:
    seconds = float("inf")
    for _ in range(NUM_ROUNDS):
        start = time.perf_counter()
        work()
        seconds = min(seconds, time.perf_counter() - start)
    return round(seconds * 1e3, 2)


def main() -> None:
    candidates = wide_tree(random.Random(0))
    case = fold(calls_of_contexts("case", TREE_CASE))

    def admitted(cap: int | None) -> Callable[[], object]:
        return lambda: admit(candidates, max_trajectories=cap, rng=random.Random(1))

    def of_case(cap: int | None) -> Callable[[], object]:
        return lambda: choose(
            case, attempt=1, row_tokens=131_072, max_trajectories=cap, rng=random.Random(1)
        )

    lengths = [len(path_to(candidates.parents, leaf.node)) for leaf in candidates.leaves]
    figures = {
        "cap_5_ms": best_ms(admitted(5)),
        "uncapped_ms": best_ms(admitted(None)),
        "tree_case_cap_5_ms": best_ms(of_case(5)),
        "tree_case_uncapped_ms": best_ms(of_case(None)),
        "num_leaves": NUM_LEAVES,
        "num_nodes": len(candidates.parents),
        "path_nodes": round(sum(lengths) / len(lengths), 1),
    }
    ok = all(figures[name] <= most for name, most in TARGETS.items())
    write_report("admission", figures, TARGETS, ok=ok)


if __name__ == "__main__":
    main()
