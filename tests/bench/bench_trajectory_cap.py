"""What a step costs when an execution may give 1, 5 or all of its paths, beside the paper's ratios.

    python tests/bench/bench_trajectory_cap.py    # writes out/bench/trajectory_cap.json

Cost is tokens forwarded, as a share of uncapped flat rows. The paper has 41.4 % at one path and
74.8 % at five, of the time of forward and backward, over the executions of a step. Its one
published execution (`tree_case`) alone is far below: most of a job's executions cannot branch like
it. So a job is a mixture: executions drawn around the case, and such of one window. The share of
the first is fitted to the ratio at one path; the ratio at five then comes out by itself, and is
told for other numbers of sub-agents and a wider spread too, since it hangs on them. `tree` figures
are the same choices with every shared prefix once, as micro-steps carry them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from gyre.core.admission import admit
from gyre.testkit.benches import write_report
from gyre.testkit.branching_calls import Context, Sizes
from gyre.testkit.execution_population import Profile, contexts_of, outline
from gyre.testkit.tree_case import TREE_CASE

PAPER_CAP_1, PAPER_CAP_5 = 0.414, 0.748
# Tokens are not time, and the paper does not say how its executions branch.
NEAR = 0.05
# The system's text with two dozen tools is long; results of tools are longer than turns.
SIZES = Sizes(head=15_000, system=120, user=600, tool=700, turn=250)
NUM_EXECUTIONS = 400
CAPS = (1, 5, None)

ByCap: TypeAlias = dict[int | None, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Mean tokens of an execution by cap, its paths laid flat and as a tree."""

    flat: ByCap
    tree: ByCap
    num_paths: float

    def mixed(self, other: Costs, share: float) -> Costs:
        """Of executions of which `share` are of this kind."""

        def mix(mine: ByCap, theirs: ByCap) -> ByCap:
            return {cap: share * mine[cap] + (1 - share) * theirs[cap] for cap in CAPS}

        return Costs(
            flat=mix(self.flat, other.flat),
            tree=mix(self.tree, other.tree),
            num_paths=share * self.num_paths + (1 - share) * other.num_paths,
        )

    def ratios(self) -> dict[str, float]:
        whole = self.flat[None]
        return {
            "flat_cap_1": round(self.flat[1] / whole, 3),
            "flat_cap_5": round(self.flat[5] / whole, 3),
            "tree_cap_5": round(self.tree[5] / whole, 3),
            "tree_uncapped": round(self.tree[None] / whole, 3),
            "paths_an_execution": round(self.num_paths, 1),
        }


def costs_of(executions: Iterable[tuple[Context, ...]]) -> Costs:
    flat: ByCap = dict.fromkeys(CAPS, 0)
    tree: ByCap = dict.fromkeys(CAPS, 0)
    num = num_paths = 0
    for seed, contexts in enumerate(executions):
        lines = outline(contexts, SIZES)
        num, num_paths = num + 1, num_paths + len(contexts)
        for cap in CAPS:
            drawn = admit(lines.candidates, max_trajectories=cap, rng=random.Random(seed))
            paths = [one.path for one in drawn]
            flat[cap] += lines.flat_tokens(paths)
            tree[cap] += lines.tree_tokens(paths)
    return Costs(
        flat={cap: total / num for cap, total in flat.items()},
        tree={cap: total / num for cap, total in tree.items()},
        num_paths=num_paths / num,
    )


def population(profile: Profile) -> Costs:
    source = random.Random(0)
    return costs_of(contexts_of(profile, source) for _ in range(NUM_EXECUTIONS))


def share_for(branching: Costs, alone: Costs, ratio: float) -> float:
    """The share of branching executions at which one path each costs `ratio` of all paths."""
    over = alone.flat[1] - ratio * alone.flat[None]
    under = branching.flat[1] - ratio * branching.flat[None]
    return over / (over - under)


def main() -> None:
    case = costs_of([TREE_CASE] * 50)
    like_case = Profile(branching=1.0)
    branching, alone = population(like_case), population(Profile(branching=0.0))
    share = share_for(branching, alone, PAPER_CAP_1)
    fitted = branching.mixed(alone, share).ratios()
    figures = {f"case_{name}": value for name, value in case.ratios().items()}
    figures |= {f"branching_{name}": value for name, value in branching.ratios().items()}
    figures |= fitted | {"share_branching": round(share, 3)}
    others = {
        "2_sub_agents": replace(like_case, num_sub_agents=2),
        "8_sub_agents": replace(like_case, num_sub_agents=8),
        "a_wider_spread": replace(like_case, spread=0.5),
    }
    for name, profile in others.items():
        other = population(profile)
        mixed = other.mixed(alone, share_for(other, alone, PAPER_CAP_1))
        figures[f"flat_cap_5_with_{name}"] = mixed.ratios()["flat_cap_5"]
    targets = {"flat_cap_1": PAPER_CAP_1, "flat_cap_5": PAPER_CAP_5}
    ok = all(abs(figures[name] - paper) <= NEAR for name, paper in targets.items())
    write_report("trajectory_cap", figures, targets, ok=ok)


if __name__ == "__main__":
    main()
