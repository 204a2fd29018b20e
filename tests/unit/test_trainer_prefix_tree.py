"""The prefix tree of a forward unit: each shared prefix once, each path still there whole."""

from __future__ import annotations

import math
import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gyre.cell_agent.trainer.model.prefix_tree import PrefixTree, Run, build_prefix_tree
from gyre.core.microstep import NO_EDGE, Edge, TreeBlock
from gyre.testkit.training_trees import TreeShape, num_distinct_prefixes, random_block
from gyre.testkit.tree_paths import path_of

shapes = st.builds(
    TreeShape,
    num_edges=st.integers(1, 12),
    edge_tokens=st.integers(1, 6),
    depth_first=st.sampled_from([0.2, 0.5, 0.9]),
    vocab_size=st.integers(1, 3),
)


@st.composite
def block_lists(draw: st.DrawFn) -> list[TreeBlock]:
    shape, seed = draw(shapes), draw(st.integers(0, 2**32))
    rng = random.Random(seed)
    prompt = [0] * draw(st.integers(0, 4))
    return [
        random_block(rng, shape, prompt=prompt if rng.random() < 0.5 else ())
        for _ in range(draw(st.integers(0, 5)))
    ]


def path_block(*token_ids: int) -> TreeBlock:
    return TreeBlock(
        execution=0,
        token_ids=token_ids,
        edges=(Edge(start=0, stop=len(token_ids), parent=NO_EDGE),),
        target_positions=(),
        behaviour_logprobs=(),
    )


def root_path(tree: PrefixTree, place: int) -> list[int]:
    path = []
    while place != -1:
        path.append(place)
        place = int(tree.parents[place])
    return path[::-1]


def test_the_example_of_the_module() -> None:
    tree = build_prefix_tree([path_block(5, 6, 7, 8), path_block(5, 6, 9), path_block(5, 6, 9, 4)])
    assert tree.token_ids.tolist() == [5, 6, 7, 8, 9, 4]
    assert tree.positions.tolist() == [0, 1, 2, 3, 2, 3]
    assert tree.parents.tolist() == [-1, 0, 1, 2, 1, 4]
    assert tree.subtree_ends.tolist() == [6, 6, 4, 4, 6, 6]
    assert tree.runs == (
        Run(start=0, stop=4, depth=0, above=()),
        Run(start=4, stop=6, depth=2, above=((0, 2),)),
    )
    assert [places.tolist() for places in tree.places] == [[0, 1, 2, 3], [0, 1, 4], [0, 1, 4, 5]]


def test_without_blocks_there_is_an_empty_tree() -> None:
    tree = build_prefix_tree([])
    assert tree.num_tokens == len(tree.runs) == len(tree.parents) == len(tree.subtree_ends) == 0


@given(block_lists())
def test_every_path_of_every_block_is_read_back_from_its_places(blocks: list[TreeBlock]) -> None:
    tree = build_prefix_tree(blocks)
    for block, places in zip(blocks, tree.places, strict=True):
        assert tree.token_ids[places].tolist() == list(block.token_ids)
        for leaf in block.leaves:
            path = [int(places[at]) for at in path_of(block, leaf)]
            assert path == root_path(tree, path[-1])
            assert tree.positions[path].tolist() == list(range(len(path)))


@given(block_lists())
def test_the_flat_sequence_holds_each_distinct_prefix_once(blocks: list[TreeBlock]) -> None:
    assert build_prefix_tree(blocks).num_tokens == num_distinct_prefixes(blocks)


@given(block_lists())
def test_the_tree_of_trees_is_the_tree_of_their_paths(blocks: list[TreeBlock]) -> None:
    paths = [
        path_block(*(block.token_ids[place] for place in path_of(block, leaf)))
        for block in blocks
        for leaf in block.leaves
    ]
    merged, flat = build_prefix_tree(blocks), build_prefix_tree(paths)
    assert merged.token_ids.tolist() == flat.token_ids.tolist()
    assert merged.runs == flat.runs


@given(block_lists())
def test_runs_cover_the_sequence_and_lead_to_the_root(blocks: list[TreeBlock]) -> None:
    tree = build_prefix_tree(blocks)
    assert [place for run in tree.runs for place in range(run.start, run.stop)] == list(
        range(tree.num_tokens)
    )
    for run in tree.runs:
        above = [place for start, stop in run.above for place in range(start, stop)]
        assert above == root_path(tree, run.start)[:-1]
        assert run.depth == len(above)


@given(block_lists())
def test_a_token_is_on_the_root_path_of_exactly_those_in_its_subtree(
    blocks: list[TreeBlock],
) -> None:
    tree = build_prefix_tree(blocks)
    for place in range(tree.num_tokens):
        seen = [j for j in range(place + 1) if place < tree.subtree_ends[j]]
        assert seen == root_path(tree, place)


@given(block_lists())
def test_a_run_has_few_spans_above_it(blocks: list[TreeBlock]) -> None:
    tree = build_prefix_tree(blocks)
    num_leaves = tree.num_tokens - len(set(tree.parents.tolist()) - {-1})
    for run in tree.runs:
        assert len(run.above) <= math.log2(num_leaves)


def test_a_tree_deeper_than_the_interpreter_stack_is_built() -> None:
    """A leaf at every token of a path of 1,200."""
    edges = []
    for n in range(1200):
        edges.append(Edge(start=2 * n, stop=2 * n + 1, parent=2 * n - 2 if n else NO_EDGE))
        edges.append(Edge(start=2 * n + 1, stop=2 * n + 2, parent=2 * n))
    block = replace(path_block(*(7, 9) * 1200), edges=tuple(edges))
    tree = build_prefix_tree([block])
    assert tree.num_tokens == 2400
    assert tree.positions.max() == 1200
    assert max(len(run.above) for run in tree.runs) == 1
    assert tree.token_ids[tree.places[0]].tolist() == list(block.token_ids)
