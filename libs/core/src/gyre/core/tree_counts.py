"""What sharing prefixes saves: an execution's tree against its paths written out one by one.

A message node is one message's segment. The tokens that open an assistant's turn are a node of
their own in the tree and belong to the message that is sampled after them.
"""

from __future__ import annotations

from dataclasses import dataclass

from gyre.core.tree import Tree
from gyre.core.tree_nodes import GENERATION


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeCounts:
    """num_requests: recorded calls. num_paths: ends, each a candidate trajectory. path_nodes_min,
    path_nodes_max: message nodes on the shortest and the longest path. expanded: occurrences when
    every path is written out.
    """

    num_requests: int
    message_nodes: int
    num_paths: int
    path_nodes_min: int
    path_nodes_max: int
    expanded_nodes: int
    tokens: int
    expanded_tokens: int


def tree_counts(tree: Tree) -> TreeCounts:
    """O(nodes)."""
    depths: dict[str | None, int] = {None: 0}
    for node in tree.nodes.values():
        depths[node.id] = depths[node.parent] + (node.role != GENERATION)
    leaves = tree.leaves()
    paths = [depths[leaf.id] for leaf in leaves]
    return TreeCounts(
        num_requests=tree.num_calls,
        message_nodes=sum(node.role != GENERATION for node in tree.nodes.values()),
        num_paths=len(leaves),
        path_nodes_min=min(paths, default=0),
        path_nodes_max=max(paths, default=0),
        expanded_nodes=sum(paths),
        tokens=sum(len(node.token_ids) for node in tree.nodes.values()),
        expanded_tokens=sum(leaf.num_path_tokens for leaf in leaves),
    )
