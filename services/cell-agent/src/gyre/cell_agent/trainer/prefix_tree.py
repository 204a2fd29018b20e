"""Token sequences as a compressed prefix tree, so that a shared prefix is computed once.

The trajectories of a group share their system prompt and tools, those of an execution their
history. All of a micro-step's segments go through the model as one flat sequence of the tree's
tokens, edge after edge, parents first; an edge attends to the edges above it and to itself. The
hidden state of a token depends on its root path alone, so every segment reads what it would have
computed alone, and gradients of shared tokens add up in the one place where they were computed.

Example: [5, 6, 7, 8] and [5, 6, 9] give edges (5 6), (7 8), (9) and tokens 5 6 7 8 9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

TokenArray = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Tokens start..stop of the flat sequence. path: indices of the edges above, root first.
    depth: position of its first token on its root path."""

    start: int
    stop: int
    depth: int
    path: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTree:
    """token_ids, positions: int64 [t], flat. places: by sequence, int64 [its length], where each of
    its tokens lies in the flat sequence."""

    token_ids: TokenArray
    positions: TokenArray
    edges: tuple[Edge, ...]
    places: tuple[TokenArray, ...]


@dataclass(slots=True, kw_only=True)
class _Node:
    """An edge under construction. Mutated by splits; `number` is given by the final walk."""

    tokens: TokenArray
    depth: int
    children: dict[int, _Node] = field(default_factory=dict)
    number: int | None = None

    def split(self, length: int) -> None:
        """Keeps the first `length` tokens and pushes the rest down as the only child."""
        rest = _Node(tokens=self.tokens[length:], depth=self.depth + length, children=self.children)
        self.tokens = self.tokens[:length]
        self.children = {int(rest.tokens[0]): rest}


def build_prefix_tree(sequences: Sequence[Sequence[int]]) -> PrefixTree:
    """O(total tokens); the tree depends on the set of sequences, its order on theirs."""
    root = _Node(tokens=np.empty(0, np.int64), depth=0)
    arrays = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
    for array in arrays:
        _insert(root, array)
    edges, tokens = _flatten(root)
    token_ids = np.concatenate(tokens) if tokens else np.empty(0, np.int64)
    positions = [np.arange(edge.depth, edge.depth + edge.stop - edge.start) for edge in edges]
    return PrefixTree(
        token_ids=token_ids,
        positions=np.concatenate(positions) if positions else np.empty(0, np.int64),
        edges=tuple(edges),
        places=tuple(_places(root, array, edges) for array in arrays),
    )


def _insert(root: _Node, tokens: TokenArray) -> None:
    node, done = root, 0
    while done < len(tokens):
        child = node.children.get(int(tokens[done]))
        if child is None:
            node.children[int(tokens[done])] = _Node(tokens=tokens[done:], depth=done)
            return
        shared = _shared_length(child.tokens, tokens[done:])
        if shared < len(child.tokens):
            child.split(shared)
        node, done = child, done + shared


def _shared_length(left: TokenArray, right: TokenArray) -> int:
    length = min(len(left), len(right))
    differing = np.flatnonzero(left[:length] != right[:length])
    return int(differing[0]) if len(differing) else length


def _flatten(root: _Node) -> tuple[list[Edge], list[TokenArray]]:
    """Numbers the nodes parents first. Iterative: a tree can be deeper than Python's stack."""
    edges: list[Edge] = []
    tokens: list[TokenArray] = []
    start = 0
    pending: list[tuple[_Node, tuple[int, ...]]] = [
        (child, ()) for child in reversed(root.children.values())
    ]
    while pending:
        node, path = pending.pop()
        node.number = len(edges)
        stop = start + len(node.tokens)
        edges.append(Edge(start=start, stop=stop, depth=node.depth, path=path))
        tokens.append(node.tokens)
        below = (*path, node.number)
        pending.extend((child, below) for child in reversed(node.children.values()))
        start = stop
    return edges, tokens


def _places(root: _Node, tokens: TokenArray, edges: Sequence[Edge]) -> TokenArray:
    pieces, node, done = [], root, 0
    while done < len(tokens):
        node = node.children[int(tokens[done])]
        assert node.number is not None
        edge = edges[node.number]
        # A sequence always ends at an edge's end: insertion splits where it stops.
        pieces.append(np.arange(edge.start, edge.stop))
        done += len(node.tokens)
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64)
