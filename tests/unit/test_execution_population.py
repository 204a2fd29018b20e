"""Executions that benchmarks draw: their outlines are those of calls that a proxy can record."""

from __future__ import annotations

import random
from statistics import mean

import pytest

from gyre.core.admission import admit
from gyre.core.records import fold_record
from gyre.core.samples import choose
from gyre.core.tree import Tree
from gyre.core.tree_counts import tree_counts
from gyre.testkit.branching_calls import Context, Sizes, calls_of_contexts
from gyre.testkit.execution_population import Profile, contexts_of, outline
from gyre.testkit.tree_case import TREE_CASE

SIZES = Sizes()


def tree_of(contexts: tuple[Context, ...]) -> Tree:
    tree = Tree()
    for sequence, event in enumerate(calls_of_contexts("x", contexts, sizes=SIZES), start=1):
        fold_record(tree, "x", sequence, event)
    return tree


@pytest.mark.parametrize("seed", range(6))
def test_an_outline_is_the_tree_that_its_calls_make(seed: int) -> None:
    contexts = contexts_of(Profile(branching=0.8), random.Random(seed))
    lines, tree = outline(contexts, SIZES), tree_of(contexts)
    counts = tree_counts(tree)
    assert counts.message_nodes == len(lines.sizes)
    assert counts.num_paths == len(contexts)
    paths = [
        one.path for one in admit(lines.candidates, max_trajectories=None, rng=random.Random())
    ]
    assert sum(map(len, paths)) == counts.expanded_nodes
    drawn = choose(
        tree, attempt=1, row_tokens=10**9, max_trajectories=None, rng=random.Random(seed)
    )
    assert sum(drawn.candidates.targets) == sum(lines.candidates.targets)
    assert sorted(leaf.role for leaf in drawn.candidates.leaves) == sorted(
        leaf.role for leaf in lines.candidates.leaves
    )


def test_the_population_lies_around_the_papers_case() -> None:
    source = random.Random(0)
    drawn = [contexts_of(Profile(branching=1.0), source) for _ in range(200)]
    num_paths = [len(contexts) for contexts in drawn]
    assert abs(mean(num_paths) - len(TREE_CASE)) < 1
    messages = [len(outline(contexts, SIZES).sizes) for contexts in drawn]
    assert 0.8 < mean(messages) / len(outline(TREE_CASE, SIZES).sizes) < 1.2


def test_what_does_not_branch_has_one_path() -> None:
    source = random.Random(0)
    drawn = [contexts_of(Profile(branching=0.0), source) for _ in range(50)]
    assert {len(contexts) for contexts in drawn} == {1}
