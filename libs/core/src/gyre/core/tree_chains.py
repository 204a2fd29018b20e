"""A tree folded for the eye: runs of nodes without a branch that share what is said of them.

A chain is some calls of one agent, each going on where the one before ended, with the inputs that
each of them brought and with one verdict for all. Where a chain branches, the child with most below
it is the one that goes on; so no more than log2(nodes) branches lie inside one another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gyre.core.tree import Tree
from gyre.core.tree_nodes import Node
from gyre.core.tree_report import NodeView, TreeReport

# Kind of a chain: what its calls have in common. None for inputs that several calls share.
Key = tuple[str, int | None, int, str, str | None]


@dataclass(slots=True, kw_only=True)
class Chain:
    """nodes: parents first. below: its children, the one that goes on last. num_below: nodes of
    the chain and of all chains below it."""

    key: Key | None
    nodes: list[NodeView]
    below: list[Chain] = field(default_factory=list)
    num_below: int = 0

    @property
    def calls(self) -> list[NodeView]:
        """Its sampled nodes."""
        return [view for view in self.nodes if view.node.sampled is not None]

    @property
    def num_tokens(self) -> int:
        return sum(len(view.node.token_ids) for view in self.nodes)

    @property
    def num_sampled(self) -> int:
        """Tokens of its sampled nodes."""
        return sum(len(view.node.token_ids) for view in self.calls)

    @property
    def versions(self) -> tuple[int, int] | None:
        """The lowest and the highest policy version that sampled its tokens."""
        found = [
            span.version
            for view in self.calls
            if view.node.sampled is not None
            for span in view.node.sampled.spans
        ]
        return (min(found), max(found)) if found else None


def chains(report: TreeReport, *, folded: bool = True) -> list[Chain]:
    """One a root, in the order of the log. folded: False gives every node a chain of its own."""
    roots = [_grow(report, root, folded) for root in report.tree.children(None)]
    for chain in reversed([chain for root in roots for chain in walk(root)]):
        chain.num_below = len(chain.nodes) + sum(child.num_below for child in chain.below)
        chain.below.sort(key=lambda child: child.num_below)
    return roots


def walk(chain: Chain) -> Iterator[Chain]:
    """The chain and those below it, parents first."""
    waiting = [chain]
    while waiting:
        here = waiting.pop()
        yield here
        waiting.extend(reversed(here.below))


def _grow(report: TreeReport, root: Node, folded: bool) -> Chain:
    """The chains of one root. A loop: a path may have thousands of them."""
    first: Chain | None = None
    waiting: list[tuple[Chain | None, Node]] = [(None, root)]
    while waiting:
        above, start = waiting.pop()
        run, after = _run(report.tree, start)
        views = [report.nodes[node.id] for node in run]
        for chain in _cut(views) if folded else _each(views):
            first = first or chain
            if above is not None:
                above.below.append(chain)
            above = chain
        waiting.extend((above, child) for child in reversed(after))
    assert first is not None
    return first


def _run(tree: Tree, start: Node) -> tuple[list[Node], tuple[Node, ...]]:
    """From `start` down to the next branch or leaf, and the children there."""
    run, below = [start], tree.children(start.id)
    while len(below) == 1:
        run.append(below[0])
        below = tree.children(below[0].id)
    return run, below


def _cut(views: Iterable[NodeView]) -> list[Chain]:
    """Inputs go with the call that they were brought for; those before a branch end the chain."""
    found: list[Chain] = []
    inputs: list[NodeView] = []
    for view in views:
        inputs.append(view)
        if view.node.sampled is None:
            continue
        key = _key(view)
        if found and found[-1].key == key and _goes_on(view):
            found[-1].nodes.extend(inputs)
        else:
            found.append(Chain(key=key, nodes=inputs))
        inputs = []
    if inputs and found:
        found[-1].nodes.extend(inputs)
    elif inputs:
        found.append(Chain(key=None, nodes=inputs))
    return found


def _goes_on(view: NodeView) -> bool:
    """Whether nothing is to be said of its call beside what is said of the one above."""
    return (
        view.cause is None and view.node.sampled is not None and not view.node.sampled.fork_reason
    )


def _each(views: Iterable[NodeView]) -> list[Chain]:
    return [
        Chain(key=_key(view) if view.node.sampled is not None else None, nodes=[view])
        for view in views
    ]


def _key(view: NodeView) -> Key:
    sampled = view.node.sampled
    assert sampled is not None
    return (view.verdict, view.path, sampled.attempt, sampled.request_role, sampled.agent)
