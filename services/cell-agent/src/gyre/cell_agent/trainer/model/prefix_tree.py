"""Tree blocks as one compressed prefix tree, so that each shared prefix is computed once.

A block already carries its execution's shared prefixes once. Here the blocks of a forward unit are
merged token by token: executions of a group share their system prompt and tools, and the parts of a
split execution the context that they repeat. Paths are never laid out flat, the work is linear in
the blocks' tokens.

The tree goes through the model as one flat sequence, depth-first; a token attends to the tokens of
its root path. Its hidden state depends on that path alone, so every target reads what it would have
read in a row of its own, and gradients of shared tokens add up where they were computed.

Example: the paths [5, 6, 7, 8], [5, 6, 9] and [5, 6, 9, 4] give 5 6 7 8 9 4 in two runs:
5 6 7 8, and 9 4 below the first two.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gyre.core.microstep import NO_EDGE, TreeBlock

IntArray = np.ndarray[Any, np.dtype[np.int64]]
# Places of the flat sequence, first..last + 1.
Span = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Tokens start..stop of the flat sequence, each the next one's predecessor. depth: position of
    the first on its root path. above: spans that precede it there, root first; of L leaves, a run
    has at most log2(L) spans above it, because a branch that is not the heaviest opens a new run
    and holds at most half of its parent's leaves."""

    start: int
    stop: int
    depth: int
    above: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTree:
    """int64 [t], flat: token_ids; positions on the root path; parents, the place of the token
    before it there, -1 at a root; subtree_ends: token j is on i's root path exactly if
    j <= i < subtree_ends[j]. runs cover the sequence in order. places: by block, int64 [its
    length], where each of its tokens lies in the flat sequence."""

    token_ids: IntArray
    positions: IntArray
    parents: IntArray
    subtree_ends: IntArray
    runs: tuple[Run, ...]
    places: tuple[IntArray, ...]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


@dataclass(slots=True, eq=False, kw_only=True)
class _Node:
    """Tokens without a branch. Mutated by splits; whoever holds a node holds the place where it
    ends, which a split does not move. start, stop, num_leaves: given by the final walk."""

    tokens: IntArray
    above: _Node | None
    children: dict[int, _Node] = field(default_factory=dict)
    start: int = 0
    stop: int = 0
    num_leaves: int = 0

    def split(self, length: int) -> _Node:
        """Moves the first `length` tokens into a new node above, which is returned."""
        assert self.above is not None
        upper = _Node(tokens=self.tokens[:length], above=self.above)
        self.above.children[int(self.tokens[0])] = upper
        self.tokens, self.above = self.tokens[length:], upper
        upper.children[int(self.tokens[0])] = self
        return upper


def build_prefix_tree(blocks: Sequence[TreeBlock]) -> PrefixTree:
    """O(tokens of the blocks). The order depends on that of the blocks, and on nothing else."""
    root = _Node(tokens=np.empty(0, np.int64), above=None)
    ends = [_insert_block(root, block) for block in blocks]
    nodes = list(_depth_first(root))
    for node, below in itertools.pairwise(nodes):
        below.start = node.stop
        below.stop = below.start + len(below.tokens)
    runs = _runs(nodes[1:])
    # Without a token there is nothing to concatenate but the root's.
    return PrefixTree(
        token_ids=np.concatenate([node.tokens for node in nodes]),
        positions=_joined([np.arange(r.depth, r.depth + r.stop - r.start) for r in runs]),
        parents=_parents(runs),
        subtree_ends=_subtree_ends(nodes[1:]),
        runs=runs,
        places=tuple(_places(block, at) for block, at in zip(blocks, ends, strict=True)),
    )


def padded(tree: PrefixTree, num_tokens: int) -> PrefixTree:
    """With tokens behind it up to `num_tokens`, on a root path of their own: no token of the tree
    sees them, and they see none of its."""
    size, more = tree.num_tokens, num_tokens - tree.num_tokens
    if more == 0:
        return tree
    fill = np.arange(more, dtype=np.int64)
    return PrefixTree(
        token_ids=np.concatenate([tree.token_ids, np.zeros(more, np.int64)]),
        positions=np.concatenate([tree.positions, fill]),
        parents=np.concatenate([tree.parents, np.where(fill > 0, size + fill - 1, -1)]),
        subtree_ends=np.concatenate([tree.subtree_ends, np.full(more, num_tokens)]),
        runs=(*tree.runs, Run(start=size, stop=num_tokens, depth=0, above=())),
        places=tree.places,
    )


def cut(runs: tuple[Run, ...], here: slice) -> tuple[Run, ...]:
    """The parts of `runs` that lie in the places `here`; what a run has before its part is one span
    more above it."""
    return tuple(
        _part(run, max(run.start, here.start), min(run.stop, here.stop))
        for run in runs
        if run.start < here.stop and run.stop > here.start
    )


def _part(run: Run, start: int, stop: int) -> Run:
    if start == run.start:
        return replace(run, stop=stop)
    return Run(
        start=start,
        stop=stop,
        depth=run.depth + start - run.start,
        above=(*run.above, (run.start, start)),
    )


def _insert_block(root: _Node, block: TreeBlock) -> list[_Node]:
    """By edge of the block: the node with whose end it ends."""
    tokens = np.asarray(block.token_ids, dtype=np.int64)
    ends: list[_Node] = []
    for edge in block.edges:
        above = root if edge.parent == NO_EDGE else ends[edge.parent]
        ends.append(_insert(above, tokens[edge.start : edge.stop]))
    return ends


def _insert(node: _Node, tokens: IntArray) -> _Node:
    """Adds `tokens` below the end of `node`; returns the node with whose end they end."""
    done = 0
    while done < len(tokens):
        child = node.children.get(int(tokens[done]))
        if child is None:
            child = _Node(tokens=tokens[done:], above=node)
            node.children[int(tokens[done])] = child
            return child
        shared = _shared_length(child.tokens, tokens[done:])
        if shared < len(child.tokens):
            child = child.split(shared)
        node, done = child, done + shared
    return node


def _shared_length(left: IntArray, right: IntArray) -> int:
    length = min(len(left), len(right))
    differing = np.flatnonzero(left[:length] != right[:length])
    return int(differing[0]) if len(differing) else length


def _depth_first(root: _Node) -> Iterator[_Node]:
    """The root, then parents before children, the child with most leaves first, in the order of
    insertion where they are equal. Iterative: a tree can be deeper than Python's stack."""
    seen, pending = [], [root]
    while pending:
        node = pending.pop()
        seen.append(node)
        pending.extend(node.children.values())
    for node in reversed(seen):
        node.num_leaves = sum(child.num_leaves for child in node.children.values()) or 1
    pending = [root]
    while pending:
        node = pending.pop()
        yield node
        children = list(reversed(node.children.values()))
        children.sort(key=lambda child: child.num_leaves)
        pending.extend(children)


def _runs(nodes: Sequence[_Node]) -> tuple[Run, ...]:
    """nodes: depth-first with their places, without the root. A node that directly follows the one
    above it continues its run."""
    runs: list[Run] = []
    run_of: dict[_Node, int] = {}
    for node in nodes:
        above = run_of.get(node.above) if node.above is not None else None
        if above is not None and node.above is not None and node.above.stop == node.start:
            before = runs.pop()
            runs.append(
                Run(start=before.start, stop=node.stop, depth=before.depth, above=before.above)
            )
        else:
            spans = _spans_above(runs, above, node)
            depth = sum(stop - start for start, stop in spans)
            runs.append(Run(start=node.start, stop=node.stop, depth=depth, above=spans))
        run_of[node] = len(runs) - 1
    return tuple(runs)


def _spans_above(runs: Sequence[Run], above: int | None, node: _Node) -> tuple[Span, ...]:
    if above is None or node.above is None:
        return ()
    return (*runs[above].above, (runs[above].start, node.above.stop))


def _parents(runs: Sequence[Run]) -> IntArray:
    parents = np.arange(-1, (runs[-1].stop if runs else 0) - 1, dtype=np.int64)
    for run in runs:
        parents[run.start] = run.above[-1][1] - 1 if run.above else -1
    return parents


def _subtree_ends(nodes: Sequence[_Node]) -> IntArray:
    ends: dict[_Node, int] = {}
    for node in reversed(nodes):
        ends[node] = max((ends[child] for child in node.children.values()), default=node.stop)
    return _joined([np.full(len(node.tokens), ends[node]) for node in nodes])


def _places(block: TreeBlock, ends: Sequence[_Node]) -> IntArray:
    """An edge was split where another branched off, so its nodes are those upwards from its end."""
    places = np.empty(len(block.token_ids), dtype=np.int64)
    for edge, end in zip(block.edges, ends, strict=True):
        node: _Node | None = end
        stop = edge.stop
        while stop > edge.start:
            assert node is not None
            start = stop - len(node.tokens)
            places[start:stop] = np.arange(node.start, node.stop)
            node, stop = node.above, start
    return places


def _joined(pieces: Sequence[IntArray]) -> IntArray:
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64)
