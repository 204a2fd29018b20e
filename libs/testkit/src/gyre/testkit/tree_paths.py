"""Paths of trees written out, root first: what the code that shares prefixes is held against."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from gyre.core.microstep import NO_EDGE, TreeBlock
from gyre.core.tree import Tree
from gyre.core.tree_nodes import Node


def path_to(parents: Sequence[int | None], node: int) -> tuple[int, ...]:
    """Node indices from the root to `node`, both included. parents: None at a root."""
    path: list[int] = []
    here: int | None = node
    while here is not None:
        path.append(here)
        here = parents[here]
    return tuple(reversed(path))


def target_leaves(tree: Tree) -> list[Node]:
    """Targets with no target below them, in the order of their calls. What does hang below them (an
    aborted call, a last tool result) is read by no target."""
    targets = tree.targets()
    above = {step.id for target in targets for step in tree.path(target.parent)}
    return [target for target in targets if target.id not in above]


def path_of(block: TreeBlock, edge: int) -> tuple[int, ...]:
    """Indices into the block's tokens from the root to the end of `edge`."""
    runs: list[range] = []
    while edge != NO_EDGE:
        run = block.edges[edge]
        runs.append(range(run.start, run.stop))
        edge = run.parent
    return tuple(chain.from_iterable(reversed(runs)))
