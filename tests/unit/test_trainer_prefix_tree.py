"""The prefix tree: each shared prefix once, each sequence still there whole."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gyre.cell_agent.trainer.prefix_tree import build_prefix_tree

sequences = st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=8)


def test_the_example_of_the_module() -> None:
    tree = build_prefix_tree([[5, 6, 7, 8], [5, 6, 9]])
    assert tree.token_ids.tolist() == [5, 6, 7, 8, 9]
    assert tree.positions.tolist() == [0, 1, 2, 3, 2]
    assert [(edge.start, edge.stop, edge.path) for edge in tree.edges] == [
        (0, 2, ()),
        (2, 4, (0,)),
        (4, 5, (0,)),
    ]


@given(sequences)
def test_every_sequence_is_read_back_from_its_places(given_sequences: list[list[int]]) -> None:
    tree = build_prefix_tree(given_sequences)
    for sequence, places in zip(given_sequences, tree.places, strict=True):
        assert tree.token_ids[places].tolist() == sequence
        assert tree.positions[places].tolist() == list(range(len(sequence)))


@given(sequences)
def test_the_flat_sequence_holds_each_distinct_prefix_once(
    given_sequences: list[list[int]],
) -> None:
    tree = build_prefix_tree(given_sequences)
    prefixes = {tuple(s[: n + 1]) for s in given_sequences for n in range(len(s))}
    assert len(tree.token_ids) == len(prefixes)


@given(sequences)
def test_a_path_leads_through_the_edges_above_to_the_root(given_sequences: list[list[int]]) -> None:
    tree = build_prefix_tree(given_sequences)
    for number, edge in enumerate(tree.edges):
        assert all(above < number for above in edge.path)
        assert edge.depth == sum(tree.edges[a].stop - tree.edges[a].start for a in edge.path)
        assert np.array_equal(
            tree.positions[edge.start : edge.stop],
            np.arange(edge.depth, edge.depth + edge.stop - edge.start),
        )


def test_a_tree_deeper_than_the_interpreter_stack_is_built() -> None:
    longest = [n % 7 for n in range(1200)]
    tree = build_prefix_tree([longest[:n] for n in range(1, 1201)])
    assert len(tree.token_ids) == 1200
