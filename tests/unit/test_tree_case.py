"""The paper's branching execution: every published count comes out of the tree."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from gyre.contracts.events.calls import CallRecorded
from gyre.core.causes import Cause, causes
from gyre.core.tree import Tree, fold
from gyre.core.tree_counts import tree_counts
from gyre.core.tree_nodes import GENERATION, Node
from gyre.testkit import tree_case as paper
from gyre.testkit.branching_calls import calls_of_contexts
from gyre.testkit.draws import draw_samples
from gyre.testkit.tree_paths import target_leaves

EVENTS = calls_of_contexts(paper.EXECUTION, paper.TREE_CASE)


@pytest.fixture(scope="module")
def tree() -> Tree:
    return fold(EVENTS)


def leaves_of(tree: Tree, role: str) -> list[Node]:
    return [leaf for leaf in tree.leaves() if leaf.sampled and leaf.sampled.request_role == role]


def shared_messages(tree: Tree, one: str, other: str) -> int:
    """Message nodes that the paths to two nodes have in common."""
    both = zip(tree.path(one), tree.path(other), strict=False)
    shared = itertools.takewhile(lambda steps: steps[0].id == steps[1].id, both)
    return sum(step.role != GENERATION for step, _ in shared)


def test_tree_case_has_the_published_counts(tree: Tree) -> None:
    counts = tree_counts(tree)
    assert counts.num_requests == paper.REQUESTS
    assert counts.message_nodes == paper.MESSAGE_NODES
    assert counts.num_paths == paper.CANDIDATE_TRAJECTORIES
    assert (counts.path_nodes_min, counts.path_nodes_max) == (
        paper.PATH_NODES_MIN,
        paper.PATH_NODES_MAX,
    )
    assert counts.expanded_nodes == paper.EXPANDED_NODES
    assert counts.expanded_nodes - counts.message_nodes == paper.REPEATED_NODES


def test_tree_case_written_out_path_by_path_repeats_what_the_tree_has_once(tree: Tree) -> None:
    occurrences = Counter(
        step.id
        for leaf in target_leaves(tree)
        for step in tree.path(leaf.id)
        if step.role != GENERATION
    )
    assert len(occurrences) == paper.MESSAGE_NODES
    assert occurrences.total() == paper.EXPANDED_NODES
    assert occurrences.total() - len(occurrences) == paper.REPEATED_NODES
    tokens = sum(len(tree.path_tokens(leaf.id)) for leaf in tree.leaves())
    assert tokens == tree_counts(tree).expanded_tokens


def test_tree_case_prefixes_are_shared_as_long_as_published(tree: Tree) -> None:
    def longest(role: str) -> int:
        (summary,) = leaves_of(tree, f"{role}-summary")
        return max(shared_messages(tree, summary.id, leaf.id) for leaf in leaves_of(tree, role))

    assert longest("main") == paper.SHARED_PREFIX_MAIN
    assert longest("sub-agent") == paper.SHARED_PREFIX_SUBAGENT


def test_tree_case_agents_have_roots_of_their_own(tree: Tree) -> None:
    assert len(tree.children(None)) == 2
    roots = {
        leaf.sampled.request_role.removesuffix("-summary"): tree.path(leaf.id)[0].id
        for leaf in tree.leaves()
        if leaf.sampled
    }
    assert len(set(roots.values())) == len(roots) == 2
    mixed = itertools.product(leaves_of(tree, "main"), leaves_of(tree, "sub-agent"))
    assert all(shared_messages(tree, main.id, sub.id) == 0 for main, sub in mixed)


def test_tree_case_causes_are_apart_from_prefixes(tree: Tree) -> None:
    found = causes(tree)
    kinds = Counter(cause.kind for cause in found.values())
    assert kinds == {"delegation": 5, "summary": 2, "continuation": 2}
    for node, cause in found.items():
        shared = shared_messages(tree, node, cause.node)
        if cause.kind == "delegation":
            assert shared == 0
        if cause.kind == "continuation":
            assert shared == 2
    (summary,) = leaves_of(tree, "main-summary")
    last_turn = f"{paper.EXECUTION}-c00361"
    assert found[summary.id] == Cause(node=tree.calls[last_turn], kind="summary")


def test_tree_case_uncapped_admission_trains_each_turn_once(tree: Tree) -> None:
    drawn = draw_samples(
        tree, attempt=1, row_tokens=100_000, max_trajectories=1000, rng=random.Random(0)
    )
    sampled = sum(len(event.output_ids) for event in EVENTS if isinstance(event, CallRecorded))
    assert drawn.num_targets == sampled
