"""How an execution's admitted paths lie in blocks: each shared prefix once, depth-first.

Paths that share a root are one tree. A tree that fits into a row is one block; a larger one is cut
between two paths, and the later block repeats, as context, what its first path shares with the
block before. What is shared is a matter of nodes: an execution's tree has one node for each message
that paths have in common. Two answers that begin equally stay two edges, each with its targets;
tokens and targets are laid along a plan by `gyre.core.samples`.

Invariants (tests/properties/test_block_law.py):
- the blocks' root-to-leaf paths are the admitted paths, each once;
- a node is in one block as its own and in any other one only in the part that the block repeats;
- no block is larger than a row, given that no path is;
- no cut of the depth-first order into whole paths repeats fewer tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gyre.core.microstep import NO_EDGE, Edge


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan:
    """places: the block's nodes, depth-first. edges: over the tokens of these nodes, chains of
    nodes as one edge. num_repeated: how many of the first places another block holds as its own."""

    places: tuple[int, ...]
    edges: tuple[Edge, ...]
    num_repeated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Branch:
    """A path's end, in depth-first order: the nodes that no earlier path has. num_shared: tokens
    above them on the path; num_tokens: their own."""

    places: tuple[int, ...]
    num_shared: int
    num_tokens: int


def plan_trees(
    paths: Iterable[Sequence[int]], sizes: Sequence[int], row_tokens: int
) -> tuple[BlockPlan, ...]:
    """Blocks of at most `row_tokens` tokens, one for each tree that fits.

    paths: nodes from root to leaf, a shared prefix as the same nodes; no path inside another one.
    sizes: tokens of each node; one without tokens is left out. O(nodes) for trees that fit.
    """
    above = _forest(paths, sizes)
    trees = _trees(_branches(above, sizes))
    parts = [part for tree in trees for part in _cut(tree, row_tokens)]
    return tuple(_plan(part, above, sizes) for part in parts)


def _forest(paths: Iterable[Sequence[int]], sizes: Sequence[int]) -> dict[int, int | None]:
    """The node above each node of the paths, None at a root. O(nodes): where a path meets an
    earlier one, all above is known."""
    above: dict[int, int | None] = {}
    for path in paths:
        below = None
        for place in reversed(path):
            if not sizes[place]:
                continue
            if below is not None:
                above[below] = place
            if place in above:
                break
            above[place] = None
            below = place
    return above


def _branches(above: Mapping[int, int | None], sizes: Sequence[int]) -> list[_Branch]:
    """Depth-first, siblings in the order of their numbers."""
    children: dict[int | None, list[int]] = {}
    for place in sorted(above):
        children.setdefault(above[place], []).append(place)
    ends: dict[int | None, int] = {None: 0}
    branches: list[_Branch] = []
    run: list[int] = []
    pending = children.get(None, [])[::-1]
    while pending:
        place = pending.pop()
        ends[place] = ends[above[place]] + sizes[place]
        run.append(place)
        below = children.get(place)
        if below is not None:
            pending.extend(reversed(below))
            continue
        num_shared = ends[above[run[0]]]
        branches.append(
            _Branch(places=tuple(run), num_shared=num_shared, num_tokens=ends[place] - num_shared)
        )
        run = []
    return branches


def _trees(branches: Iterable[_Branch]) -> list[list[_Branch]]:
    trees: list[list[_Branch]] = []
    for branch in branches:
        if branch.num_shared == 0:
            trees.append([])
        trees[-1].append(branch)
    return trees


def _cut(tree: Sequence[_Branch], row_tokens: int) -> list[Sequence[_Branch]]:
    """Runs of `tree` that fit into a row with what they repeat; as few repeated tokens as can be,
    then as few runs, then the last one as short as can be. O(branches * branches of a run)."""
    if sum(branch.num_tokens for branch in tree) <= row_tokens:
        return [tree]
    # (repeated tokens, runs, -start of the last run) of the first k branches, by k.
    best: list[tuple[int, int, int]] = [(0, 0, 0)]
    for stop in range(1, len(tree) + 1):
        best.append(min(_last_runs(tree, best, stop, row_tokens)))
    runs: list[Sequence[_Branch]] = []
    stop = len(tree)
    while stop:
        start = -best[stop][2]
        runs.append(tree[start:stop])
        stop = start
    return runs[::-1]


def _last_runs(
    tree: Sequence[_Branch], best: Sequence[tuple[int, int, int]], stop: int, row_tokens: int
) -> Iterable[tuple[int, int, int]]:
    """Each way to end the first `stop` branches with one run. The run of a single branch always
    fits: no path is longer than a row."""
    used = 0
    for start in range(stop - 1, -1, -1):
        used += tree[start].num_tokens
        if used > row_tokens:
            return
        shared = tree[start].num_shared
        if shared + used <= row_tokens:
            repeated, runs, _ = best[start]
            yield repeated + shared, runs + 1, -start


def _plan(
    branches: Sequence[_Branch], above: Mapping[int, int | None], sizes: Sequence[int]
) -> BlockPlan:
    repeated: list[int] = []
    place = above[branches[0].places[0]]
    while place is not None:
        repeated.append(place)
        place = above[place]
    places = [*reversed(repeated), *(place for branch in branches for place in branch.places)]
    return BlockPlan(
        places=tuple(places), edges=_edges(places, above, sizes), num_repeated=len(repeated)
    )


def _edges(
    places: Sequence[int], above: Mapping[int, int | None], sizes: Sequence[int]
) -> tuple[Edge, ...]:
    """A node that is the only one below another, here, goes on with its edge."""
    num_below = Counter(above[place] for place in places)
    edge_of: dict[int, int] = {}
    starts, stops, parents = list[int](), list[int](), list[int]()
    end = 0
    for place in places:
        parent = above[place]
        start, end = end, end + sizes[place]
        if parent is not None and num_below[parent] == 1:
            stops[-1] = end
        else:
            starts.append(start)
            stops.append(end)
            parents.append(NO_EDGE if parent is None else edge_of[parent])
        edge_of[place] = len(stops) - 1
    return tuple(
        Edge(start=start, stop=stop, parent=parent)
        for start, stop, parent in zip(starts, stops, parents, strict=True)
    )
